//! Reads the lines of `models.txt`, and makes the blocks of each architecture.

use autoplace_gguf::TensorType as T;

use super::block::{ALL_NORMS, Better, Block, Feed, POST_NORMS, PRE_NORMS, QKV, QkNorms};
use super::{Dims, Sketch};

const MODELS: &str = include_str!("models.txt");

/// All models whose cache layout the planner knows.
pub fn all() -> Vec<Sketch> {
    let mut all = models("small");
    all.extend(well_known());
    all
}

/// A small model for each kind of memory; each computes in milliseconds. The models have rows that CUDA pads, types
/// that the CPU repacks, and types that it does not repack.
pub fn computed() -> Vec<Sketch> {
    models("computed")
}

/// The same models with more blocks and other widths, so that more layers can be distributed.
pub fn computed_deep() -> Vec<Sketch> {
    models("computed, deep")
}

/// A model whose last block has no attention.
pub fn without_attention() -> Sketch {
    models("computed, the last block without attention").remove(0)
}

/// A model of this architecture with a vocabulary. Its positions have several axes (M-RoPE).
pub fn with_axes(arch: &str) -> Sketch {
    let mut all = models("computed, positions of several axes").into_iter();
    let mut sketch = all.find(|sketch| sketch.arch == arch).expect(arch);
    sketch.vocabulary();
    sketch
}

/// A model with these tokens in its vocabulary. Projectors put such tokens around images.
pub fn with_tokens(tokens: &[&str]) -> Sketch {
    let mut sketch = models("computed, with tokens around images").remove(0);
    sketch.vocabulary_with(tokens);
    sketch
}

/// A model of this architecture that computes with 32 bits throughout. So its choices do not depend on the number of
/// tokens that are computed together. If activations were rounded to 8 bits, the last bit of a sum could change a
/// choice.
pub fn in_32_bits(arch: &str) -> Sketch {
    let mut all = models("32 bits").into_iter();
    let mut sketch = all.find(|sketch| sketch.arch == arch).expect(arch);
    sketch.vocabulary();
    sketch.u32("context_length", 2048);
    sketch
}

/// Well-known models at their full depth and width.
pub fn well_known() -> Vec<Sketch> {
    models("well known")
}

/// The well-known model with this title, at its full size.
pub fn named(title: &str) -> Sketch {
    let mut all = at_size().into_iter();
    all.find(|sketch| sketch.title() == title).expect(title)
}

/// Well-known models of every kind at their full size, as `llama-quantize` makes them in Q4_K_M. The fit table compares
/// our plans for them with llama.cpp's own fit.
pub fn at_size() -> Vec<Sketch> {
    models("at size")
}

/// The models of [`at_size`], and further models that the ledger of measured speeds names.
pub fn measured() -> Vec<Sketch> {
    let mut all = at_size();
    all.extend(models("measured"));
    all
}

/// The models under a heading.
fn models(heading: &str) -> Vec<Sketch> {
    under(heading).map(|line| Line::new(line).sketch()).collect()
}

fn under(heading: &str) -> impl Iterator<Item = &'static str> {
    let mut sections = MODELS.split("\n## ");
    let found = sections.find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    let lines = found.expect(heading).lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A line of `models.txt`.
struct Line {
    arch: &'static str,
    name: &'static str,
    dims: Dims,
    /// The type of the embedding, and the type of the output.
    ends: (T, Option<T>),
    block: Block,
    /// The parts of the blocks: words, some of them with a value.
    parts: Vec<(&'static str, &'static str)>,
    /// Further keys of the header.
    keys: Vec<(&'static str, &'static str)>,
}

fn type_called(name: &str) -> T {
    *T::ALL.iter().find(|ty| ty.name() == name).expect(name)
}

fn numbers(text: &str) -> Vec<u64> {
    let parts = text.trim_matches(['[', ']']).split([',', ' ', 'x', '%']);
    parts.map(|part| part.parse().expect(text)).collect()
}

impl Line {
    fn new(line: &'static str) -> Self {
        let mut columns = line.split(" | ");
        let mut next = || columns.next().unwrap_or_default();
        let (arch, name, dims, ends) = (next(), next(), next(), next());
        let words = |text: &'static str| {
            let words = text.split_whitespace();
            words.map(|word| word.split_once('=').unwrap_or((word, "")))
        };
        let (mut parts, keys) = (words(next()), words(next()));
        let types = parts.next().expect(line).0;
        let (embedding, output) = ends.split_once(' ').unwrap_or((ends, ""));
        let output = (!output.is_empty()).then(|| type_called(output));
        let mut line = Self {
            arch,
            name,
            dims: Dims::new(numbers(dims).try_into().unwrap()),
            ends: (type_called(embedding), output),
            block: match types.split_once('/') {
                Some((ty, fine)) => Block::new(type_called(ty), type_called(fine)),
                None if types == "Q4_K_M" => Block { better: Better::Half, ..Block::new(T::Q4_K, T::Q6_K) },
                None => Block::new(type_called(types), type_called(types)),
            },
            parts: parts.collect(),
            keys: keys.collect(),
        };
        line.read_block();
        line
    }

    fn read_block(&mut self) {
        let is = |word: &str| self.stated(word).unwrap_or_default();
        let norms: &[&str] = match is("norms") {
            "post" => POST_NORMS,
            "all" => ALL_NORMS,
            "attn" => &["attn_norm.weight"],
            "attn+post" => &["attn_norm.weight", "post_attention_norm.weight"],
            _ => PRE_NORMS,
        };
        let qk_norms = match is("qk_norms") {
            "head" => QkNorms::PerHead,
            "all" => QkNorms::OverAll,
            _ => QkNorms::None,
        };
        let biases: &[&str] = match is("biases") {
            "qkv" => QKV,
            "qkvo" => &["attn_q", "attn_k", "attn_v", "attn_output"],
            _ => &[],
        };
        let feed = match (self.stated("experts"), self.stated("shared")) {
            (None, _) => Feed::Dense,
            (_, shared) => {
                let (n, _, ff, ty) = self.experts();
                let shared = shared.map(|stated| stated.split_once(':').expect(stated));
                match shared.map(|(ff, ty)| (ff.parse().unwrap(), type_called(ty))) {
                    Some(shared) => Feed::Shared { n, ff, ty, shared },
                    None => Feed::Experts { n, ff, ty },
                }
            }
        };
        self.block = Block { norms, qk_norms, biases, sinks: self.stated("sinks").is_some(), feed, ..self.block };
    }

    /// The value that the line states for a word or a key.
    fn stated(&self, word: &str) -> Option<&'static str> {
        let mut all = self.parts.iter().chain(&self.keys);
        all.find(|entry| entry.0 == word).map(|entry| entry.1)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.stated(key).map(|text| text.parse().expect(text))
    }

    /// The number for block `il` in a list.
    fn of_block(&self, key: &str, il: u64) -> u64 {
        numbers(self.stated(key).expect(key))[il as usize]
    }

    /// The experts: their number, the number of experts that each token uses, their width and their type.
    fn experts(&self) -> (u64, u64, u64, T) {
        let stated = self.stated("experts").unwrap();
        let (sizes, ty) = match stated.split_once(':') {
            Some((sizes, ty)) => (sizes, type_called(ty)),
            None => (stated, self.block.ty),
        };
        match numbers(sizes)[..] {
            [n, used] => (n, used, self.dims.n_ff, ty),
            [n, used, ff] => (n, used, ff, ty),
            _ => panic!("{stated}"),
        }
    }

    fn attends(&self, il: u64) -> bool {
        let Some(stated) = self.stated("attends") else {
            return true;
        };
        match (stated.contains('%'), &numbers(stated)[..]) {
            (true, &[first, every]) => il % every == first,
            (_, blocks) => blocks.contains(&il),
        }
    }

    /// A list with a number for each block: `n` if `is` returns true for the block, otherwise 0.
    fn where_it(&self, n: u64, is: impl Fn(u64) -> bool) -> Vec<u32> {
        let n = u32::try_from(n).unwrap();
        (0..self.dims.n_layer).map(|il| if is(il) { n } else { 0 }).collect()
    }

    /// Whether block `il` of Nemotron has a feed-forward step. Its other blocks without attention are recurrent.
    fn feeds(&self, il: u64) -> bool {
        il % 2 == 1 && !self.attends(il)
    }

    /// The size for a word, with an optional factor before it: `2ff`.
    fn size(&self, sketch: &Sketch, text: &str) -> u64 {
        let name = text.trim_start_matches(char::is_numeric);
        let count = &text[..text.len() - name.len()];
        let count = if count.is_empty() { 1 } else { count.parse().unwrap() };
        let dims = sketch.dims;
        let of_mixer = |n: usize| numbers(self.stated("ssm").expect(text))[n];
        let (inner, state, groups) = (|| of_mixer(0), || of_mixer(1), || of_mixer(3));
        let size = match name {
            "" => 1,
            "embd" => dims.n_embd,
            "ff" => dims.n_ff,
            "q" => dims.q(),
            "kv" => dims.kv(),
            "head" => dims.head_dim,
            "heads" => dims.n_head,
            "inner" => inner(),
            "state" => state(),
            "rank" => of_mixer(2),
            "groups" => groups(),
            "per_group" => inner() / groups(),
            "conv" => inner() + 2 * groups() * state(),
            "experts" => self.experts().0,
            "expert_ff" => self.experts().2,
            "shared" => match self.number("expert_shared_count") {
                Some(count) => count * self.experts().2,
                None => self.number("expert_shared_feed_forward_length").unwrap(),
            },
            key => {
                let key = self.keys.iter().find(|entry| entry.0.rsplit('.').next() == Some(key));
                key.expect(text).1.parse().unwrap()
            }
        };
        count * size
    }

    /// Adds the tensors of a part to a block.
    fn put(&self, sketch: &mut Sketch, il: u64, part: &str) {
        if part == "block" {
            let feed = if self.is_so("dense", il) { Feed::Dense } else { self.block.feed };
            return sketch.put(il, &Block { feed, ..self.block });
        }
        let mut lines = under("parts");
        let found = lines.find_map(|line| line.strip_prefix(part)?.strip_prefix(" | "));
        for tensor in found.expect(part).split(' ') {
            let words: Vec<&str> = tensor.split(',').collect();
            let name = match words[0].strip_suffix('!') {
                Some(name) => name.to_owned(),
                None => format!("{}.weight", words[0]),
            };
            let ty = match words[1] {
                "ty" => self.block.ty,
                "fine" => self.block.fine_in(il, self.dims.n_layer),
                name => type_called(name),
            };
            let sizes = words[2..].iter().map(|sum| {
                let terms = sum.split('+');
                terms.map(|term| self.size(sketch, term)).sum()
            });
            let shape: Vec<u64> = sizes.collect();
            sketch.block(il, &name, ty, &shape);
        }
    }

    fn sketch(&self) -> Sketch {
        let mut sketch = match self.arch {
            "mamba" | "mamba2" | "rwkv6" => Sketch::bare(self.arch, self.name, self.dims),
            _ => Sketch::new(self.arch, self.name, self.dims),
        };
        self.put_keys(&mut sketch);
        self.put_ends(&mut sketch);
        for il in 0..self.dims.n_layer {
            if matches!(self.arch, "openelm" | "deci") {
                sketch.dims.n_head = self.of_block("attention.head_count", il);
                sketch.dims.n_head_kv = self.of_block("attention.head_count_kv", il);
                sketch.dims.n_ff = self.of_block("feed_forward_length", il);
            }
            self.put_block(&mut sketch, il);
        }
        // Some parts change the sizes in each block.
        sketch.dims = self.dims;
        sketch
    }

    fn put_keys(&self, sketch: &mut Sketch) {
        if let Some(shards) = self.number("shards") {
            sketch.shards = shards as usize;
        }
        if self.stated("attends").is_some() {
            let heads = self.where_it(self.dims.n_head_kv, |il| self.attends(il));
            sketch.u32s("attention.head_count_kv", &heads);
        }
        if self.stated("experts").is_some() {
            let (n, used, ff, _) = self.experts();
            sketch.u32("expert_count", n);
            sketch.u32("expert_used_count", used);
            // The key is written only if the line states it.
            if self.stated("experts").unwrap().matches('x').count() == 2 {
                sketch.u32("expert_feed_forward_length", ff);
            }
        }
        if self.stated("ssm").is_some() {
            sketch.u32("ssm.conv_kernel", 4);
            let names = ["inner_size", "state_size", "time_step_rank", "group_count"];
            for (name, size) in names.iter().zip(numbers(self.stated("ssm").unwrap())) {
                sketch.u32(&format!("ssm.{name}"), size);
            }
        }
        if self.arch == "nemotron_h" {
            sketch.u32s("feed_forward_length", &self.where_it(self.dims.n_ff, |il| self.feeds(il)));
        }
        for &(key, value) in &self.keys {
            if value.contains("true") {
                let list = value.trim_matches(['[', ']']).split(',');
                let list: Vec<bool> = list.map(|flag| flag.parse().unwrap()).collect();
                sketch.bools(key, &list);
            } else if value.starts_with('[') {
                let list: Vec<u32> = numbers(value).into_iter().map(|n| n.try_into().unwrap()).collect();
                sketch.u32s(key, &list);
            } else if value.contains(['.', 'e']) {
                sketch.f32(key, value.parse().unwrap());
            } else {
                sketch.u32(key, value.parse().unwrap());
            }
        }
    }

    fn put_ends(&self, sketch: &mut Sketch) {
        let Dims { n_embd, n_vocab, head_dim, .. } = self.dims;
        let (embedding, output) = self.ends;
        if self.arch == "lfm2" {
            sketch.tensor("token_embd.weight", embedding, &[n_embd, n_vocab]);
            sketch.tensor("token_embd_norm.weight", T::F32, &[n_embd]);
        } else {
            sketch.ends(embedding, output);
        }
        let more = match self.arch {
            "phi3" => vec![("rope_factors_long.weight", head_dim / 2), ("rope_factors_short.weight", head_dim / 2)],
            "rwkv6" => {
                ["token_embd_norm.weight", "token_embd_norm.bias", "output_norm.bias"].map(|name| (name, n_embd)).into()
            }
            _ if self.stated("rope").is_some() => vec![("rope_freqs.weight", head_dim / 2)],
            _ => Vec::new(),
        };
        for (name, n) in more {
            sketch.tensor(name, T::F32, &[n]);
        }
    }

    /// Adds block `il`, made of the parts of its architecture.
    fn put_block(&self, sketch: &mut Sketch, il: u64) {
        let of_arch = |line: &'static str| line.strip_prefix(self.arch)?.strip_prefix(" | ");
        for part in under("blocks").find_map(of_arch).unwrap_or("block").split(", ") {
            let mut choices = part.split(" / ").map(|choice| choice.split_once("? ").unwrap_or(("", choice)));
            if let Some((_, parts)) = choices.find(|(condition, _)| self.is_so(condition, il)) {
                parts.split(" + ").for_each(|part| self.put(sketch, il, part));
            }
        }
    }

    /// Whether a condition holds for block `il`. A condition without a rule in this function holds if the model's line
    /// states it.
    fn is_so(&self, condition: &str, il: u64) -> bool {
        match condition {
            "" => true,
            "dense" => il < self.number("leading_dense_block_count").unwrap_or(0),
            "attends" => self.attends(il),
            "feeds" => self.feeds(il),
            "has heads" => self.of_block("attention.head_count_kv", il) > 0,
            "one of the first three" => il < 3,
            "a fourth" => il % 4 == 3,
            "a second of experts" => il % 2 == 1 && self.stated("experts").is_some(),
            "predicts" => self.number("nextn_predict_layers").is_some() && il + 1 == self.dims.n_layer,
            word => self.stated(word).is_some(),
        }
    }
}
