//! The models of `models.txt`: what a line says, and the blocks of each architecture.

use autoplace_planner::gguf::TensorType as T;

use super::block::{ALL_NORMS, Better, Block, Feed, POST_NORMS, PRE_NORMS, QKV, QkNorms};
use super::{Dims, Sketch};

const MODELS: &str = include_str!("models.txt");

/// The models under a heading.
pub(super) fn models(heading: &str) -> Vec<Sketch> {
    under(heading).map(|line| Line::new(line).sketch()).collect()
}

fn under(heading: &str) -> impl Iterator<Item = &'static str> {
    let mut sections = MODELS.split("\n## ");
    let found = sections.find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    let lines = found.expect(heading).lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A line of the file.
struct Line {
    arch: &'static str,
    name: &'static str,
    dims: Dims,
    /// Of the embedding, and of the output.
    ends: (T, Option<T>),
    block: Block,
    /// What the blocks are made of: words, and what is stated of them.
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
            dims: Dims::of(numbers(dims).try_into().unwrap()),
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

    /// What is stated of a word or a key.
    fn stated(&self, word: &str) -> Option<&'static str> {
        let mut all = self.parts.iter().chain(&self.keys);
        all.find(|it| it.0 == word).map(|it| it.1)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.stated(key).map(|text| text.parse().expect(text))
    }

    /// The number of a list that block `il` has.
    fn of_block(&self, key: &str, il: u64) -> u64 {
        numbers(self.stated(key).expect(key))[il as usize]
    }

    /// How many there are, how many a token uses, their width and their type.
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

    /// By block what it has where `is` says so, and 0 elsewhere.
    fn where_it(&self, n: u64, is: impl Fn(u64) -> bool) -> Vec<u32> {
        let n = u32::try_from(n).unwrap();
        let blocks = 0..self.dims.n_layer;
        blocks.map(|il| if is(il) { n } else { 0 }).collect()
    }

    /// Nemotron's other blocks mix or feed forward.
    fn feeds(&self, il: u64) -> bool {
        il % 2 == 1 && !self.attends(il)
    }

    /// The size of a name, or so many of them: `2ff`.
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
                let key = self.keys.iter().find(|it| it.0.rsplit('.').next() == Some(key));
                key.expect(text).1.parse().unwrap()
            }
        };
        count * size
    }

    /// Adds the tensors of a part to a block.
    fn put(&self, sketch: &mut Sketch, il: u64, part: &str) {
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
                "fine" => self.block.fine,
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
            match self.parts_of(il) {
                Some(parts) => parts.iter().for_each(|part| self.put(&mut sketch, il, part)),
                None => self.transformer(&mut sketch, il),
            }
        }
        // Some have other sizes in each block.
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
            // Where it is stated.
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
        match self.arch {
            "nemotron_h" => {
                let widths = self.where_it(self.dims.n_ff, |il| self.feeds(il));
                sketch.u32s("feed_forward_length", &widths);
            }
            "deepseek2" if self.stated("attention.kv_lora_rank").is_none() => self.deepseek2_keys(sketch),
            _ => {}
        }
        for &(key, value) in &self.keys {
            if value.contains("true") {
                let list = value.trim_matches(['[', ']']).split(',');
                let list: Vec<bool> = list.map(|it| it.parse().unwrap()).collect();
                sketch.bools(key, &list);
            } else if value.starts_with('[') {
                let list = numbers(value);
                let list: Vec<u32> = list.into_iter().map(|n| n.try_into().unwrap()).collect();
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
        let more: &[&str] = match self.arch {
            "phi3" => &["rope_factors_long.weight", "rope_factors_short.weight"],
            _ if self.stated("rope").is_some() => &["rope_freqs.weight"],
            _ => &[],
        };
        for name in more {
            sketch.tensor(name, T::F32, &[head_dim / 2]);
        }
        if self.arch == "rwkv6" {
            let embedding = ["token_embd_norm.weight", "token_embd_norm.bias"];
            for name in embedding.iter().chain(&["output_norm.bias"]) {
                sketch.tensor(name, T::F32, &[n_embd]);
            }
        }
    }

    /// The block of most models, and what some add to it.
    fn transformer(&self, sketch: &mut Sketch, il: u64) {
        if il < self.number("leading_dense_block_count").unwrap_or(0) {
            let feed = Feed::Dense;
            return sketch.put(il, &Block { feed, ..self.block });
        }
        sketch.put(il, &self.block);
        match self.arch {
            "qwen2moe" => self.put(sketch, il, "shared router"),
            "glm4moe" => self.put(sketch, il, "chances of experts"),
            "gpt-oss" => self.put(sketch, il, "biases of experts"),
            _ => {}
        }
        if self.number("nextn_predict_layers").is_some() && il + 1 == self.dims.n_layer {
            self.put(sketch, il, "prediction");
        }
    }

    /// The parts of a block that differs from that of most models.
    fn parts_of(&self, il: u64) -> Option<Vec<&'static str>> {
        let attends = self.attends(il);
        let mixer = match self.stated("ssm").map(|sizes| numbers(sizes).len()) {
            Some(4) => "mixer of groups",
            _ => "mixer",
        };
        let dense = il < self.number("leading_dense_block_count").unwrap_or(0);
        let one_of = |first, parts: &[&'static str], other: &[&'static str]| if first { parts } else { other }.to_vec();
        let parts: Vec<Vec<&'static str>> = match self.arch {
            "phi3" => vec![vec!["fused"]],
            "openelm" => vec![vec!["growing"]],
            "rwkv6" => vec![vec!["rwkv"]],
            "deci" => {
                let has_heads = self.of_block("attention.head_count_kv", il) > 0;
                vec![one_of(has_heads, &["norm", "attention"], &[]), vec!["second norm", "feed"]]
            }
            "deepseek2" => {
                let attention = match (self.stated("attention.kv_lora_rank"), self.stated("mla")) {
                    (Some(_), _) => vec!["small compressed"],
                    (None, Some(_)) => vec!["compressed", "one key"],
                    (None, None) => vec!["compressed", "all keys"],
                };
                let experts = &["experts", "chances of experts", "shared expert"];
                vec![attention, one_of(dense, &["feed"], experts)]
            }
            // Short convolutions beside attention.
            "lfm2" => vec![vec!["norms", "feed"], one_of(attends, &["attention", "head norms"], &["convolution"])],
            "qwen3next" => {
                let mix = if il % 4 == 3 { "gated attention" } else { "delta rule" };
                vec![vec!["norms of results", mix], vec!["experts", "shared router", "shared expert"]]
            }
            "qwen35" => {
                let mix = if il < 3 { "gated delta rule" } else { "gated attention" };
                let predicts = il + 1 == self.dims.n_layer;
                vec![vec!["norms of results", mix, "feed"], one_of(predicts, &["prediction"], &[])]
            }
            // State-space mixers alone or beside attention.
            "mamba" | "mamba2" => vec![vec!["norm", mixer]],
            "jamba" => {
                let has_experts = self.stated("experts").is_some() && il % 2 == 1;
                let mix = one_of(attends, &["attention"], &[mixer, "mixer's norms"]);
                vec![vec!["norms"], mix, one_of(has_experts, &["experts"], &["fine feed"])]
            }
            "granitehybrid" => {
                vec![vec!["norms"], one_of(attends, &["attention"], &[mixer]), vec!["experts", "shared expert"]]
            }
            "falcon-h1" => vec![vec!["falcon's norms", "attention", mixer, "fine feed"]],
            "nemotron_h" if self.feeds(il) => vec![vec!["norm", "plain feed"]],
            "nemotron_h" => vec![vec!["norm"], one_of(attends, &["attention"], &[mixer])],
            _ => return None,
        };
        Some(parts.concat())
    }

    /// Where the heads share one key, that is all that is kept; files from before hold the keys of all heads.
    fn deepseek2_keys(&self, sketch: &mut Sketch) {
        let mla = self.stated("mla").is_some();
        let (key, value) = if mla { (RANK + ROPE, RANK) } else { (NOPE + ROPE, V) };
        sketch.u32("attention.key_length", key);
        sketch.u32("attention.value_length", value);
        if mla {
            sketch.u32("attention.key_length_mla", NOPE + ROPE);
            sketch.u32("attention.value_length_mla", V);
        }
        sketch.u32("rope.dimension_count", ROPE);
        sketch.u32("attention.kv_lora_rank", RANK);
    }
}

/// Of DeepSeek's heads: the rank of the keys, and the parts of a key with rope and without, and of a value.
const RANK: u64 = 512;
const ROPE: u64 = 64;
const NOPE: u64 = 128;
const V: u64 = 128;
