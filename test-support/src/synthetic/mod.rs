//! Models that nobody trained. Short descriptions become GGUF files with a hole for the data.
//!
//! Each model has the tensors and keys that llama.cpp's loader requires of its architecture (models/*.cpp). It has no
//! vocabulary, so that a load without allocation (`no_alloc`) takes milliseconds.

pub mod block;
pub mod mmproj;
mod models;
pub mod shapes;

use std::path::{Path, PathBuf};

use autoplace_gguf::{Builder, TensorType as T};

pub use crate::dims::Dims;
pub use models::{
    all, at_size, computed, computed_deep, in_32_bits, measured, named, well_known, with_axes, with_tokens,
    without_attention,
};

/// A small model with grouped queries, and with rows that CUDA pads: `n_ff` is 5.5 times 512.
pub const SMALL: Dims = Dims::new([4, 2048, 2816, 16, 4, 128, 32000]);

/// The kinds of tokens, by their numbers in files.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;

/// A model under construction.
pub struct Sketch {
    /// The model's name among the models of its architecture.
    pub name: &'static str,
    pub arch: &'static str,
    pub dims: Dims,
    shards: usize,
    keys: Builder,
    tensors: Vec<(String, T, Vec<u64>)>,
}

impl Sketch {
    /// A sketch with the keys of every model that has attention.
    pub fn new(arch: &'static str, name: &'static str, dims: Dims) -> Self {
        let mut sketch = Self::bare(arch, name, dims);
        sketch.u32("attention.head_count", dims.n_head);
        sketch.u32("attention.head_count_kv", dims.n_head_kv);
        sketch.u32("attention.key_length", dims.head_dim);
        sketch.u32("attention.value_length", dims.head_dim);
        sketch.u32("rope.dimension_count", dims.head_dim);
        sketch
    }

    /// A sketch with the keys of every model.
    pub fn bare(arch: &'static str, name: &'static str, dims: Dims) -> Self {
        let mut sketch = Self {
            name,
            arch,
            dims,
            shards: 1,
            keys: Builder::new(arch).str("tokenizer.ggml.model", "no_vocab"),
            tensors: Vec::new(),
        };
        sketch.u32("block_count", dims.n_layer);
        sketch.u32("context_length", 131_072);
        sketch.u32("embedding_length", dims.n_embd);
        sketch.u32("feed_forward_length", dims.n_ff);
        sketch.u32("vocab_size", dims.n_vocab);
        sketch.f32("attention.layer_norm_rms_epsilon", 1e-5);
        sketch
    }

    /// The same model with all weights in 32 bits, so that rounding hardly matters.
    pub fn in_floats(mut self) -> Self {
        for (_, ty, _) in &mut self.tensors {
            *ty = T::F32;
        }
        self
    }

    pub fn u32(&mut self, key: &str, value: u64) {
        let value = u32::try_from(value).unwrap();
        self.key(key, |keys, key| keys.u32(key, value));
    }

    pub fn u32s(&mut self, key: &str, values: &[u32]) {
        self.key(key, |keys, key| keys.array_u32(key, values));
    }

    pub fn bools(&mut self, key: &str, values: &[bool]) {
        self.key(key, |keys, key| keys.array_bool(key, values));
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        self.key(key, |keys, key| keys.f32(key, value));
    }

    pub fn bool(&mut self, key: &str, value: bool) {
        self.key(key, |keys, key| keys.bool(key, value));
    }

    pub fn strings(&mut self, key: &str, values: &[&str]) {
        self.key(key, |keys, key| keys.array_str(key, values));
    }

    /// Sets a text under a key without the architecture's prefix.
    pub fn text(&mut self, key: &str, value: &str) {
        self.edit(|keys| keys.str(key, value));
    }

    /// Sets a key with the architecture's prefix.
    fn key(&mut self, suffix: &str, put: impl FnOnce(Builder, &str) -> Builder) {
        let key = format!("{}.{suffix}", self.arch);
        self.edit(|keys| put(keys, &key));
    }

    fn edit(&mut self, with: impl FnOnce(Builder) -> Builder) {
        self.keys = with(std::mem::replace(&mut self.keys, Builder::empty()));
    }

    /// Adds a tensor by its full name. If its rows do not consist of whole blocks of the type, the tensor gets
    /// `llama-quantize`'s fallback type.
    pub fn tensor(&mut self, name: &str, ty: T, shape: &[u64]) {
        let ty = match ty {
            T::Q4_K if !shape[0].is_multiple_of(256) => T::Q5_0,
            T::Q6_K if !shape[0].is_multiple_of(256) => T::Q8_0,
            ty => ty,
        };
        self.tensors.push((name.to_owned(), ty, shape.to_vec()));
    }

    /// Adds a tensor of a block, such as `attn_q.weight`.
    pub fn block(&mut self, il: u64, name: &str, ty: T, shape: &[u64]) {
        self.tensor(&format!("blk.{il}.{name}"), ty, shape);
    }

    /// Adds a vector of a block, in 32-bit floats.
    pub fn vector(&mut self, il: u64, name: &str, n: u64) {
        self.block(il, name, T::F32, &[n]);
    }

    /// Adds the embedding, the norm before the output, and the output matrix if the model has its own.
    pub fn ends(&mut self, embedding: T, output: Option<T>) {
        let Dims { n_embd, n_vocab, .. } = self.dims;
        self.tensor("token_embd.weight", embedding, &[n_embd, n_vocab]);
        self.tensor("output_norm.weight", T::F32, &[n_embd]);
        if let Some(ty) = output {
            self.tensor("output.weight", ty, &[n_embd, n_vocab]);
        }
    }

    /// Adds the norms before attention and before the feed-forward step.
    pub fn norms(&mut self, il: u64) {
        self.vector(il, "attn_norm.weight", self.dims.n_embd);
        self.vector(il, "ffn_norm.weight", self.dims.n_embd);
    }

    /// Adds a vocabulary of bytes and filler words, which a model needs to generate text.
    pub fn vocabulary(&mut self) {
        self.vocabulary_with(&[]);
    }

    /// Adds the vocabulary of [`vocabulary`](Self::vocabulary) and further control tokens.
    pub fn vocabulary_with(&mut self, control: &[&str]) {
        const BYTE: i32 = 6;
        let mut special = vec![("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)];
        special.extend(control.iter().map(|&text| (text, CONTROL)));
        let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE));
        let words = (0..).map(|n| (format!("word{n}"), NORMAL));
        self.tokens("llama", &special, bytes.chain(words));
    }

    /// Adds the tokens of a tokenizer, each with its kind: first `special`, then `others` until the vocabulary is full.
    fn tokens(&mut self, tokenizer: &str, special: &[(&str, i32)], others: impl Iterator<Item = (String, i32)>) {
        let n_vocab = usize::try_from(self.dims.n_vocab).unwrap();
        let special = special.iter().map(|&(text, kind)| (text.to_owned(), kind));
        let all = special.chain(others).take(n_vocab);
        let (texts, kinds): (Vec<String>, Vec<i32>) = all.unzip();
        self.edit(|keys| {
            keys.str("tokenizer.ggml.model", tokenizer)
                .array_str("tokenizer.ggml.tokens", texts)
                .array_f32("tokenizer.ggml.scores", &vec![0.0; n_vocab])
                .array_i32("tokenizer.ggml.token_type", &kinds)
        });
    }

    /// Gives tokens of the vocabulary their roles, by llama.cpp's names: `fim_pre`, `eot`.
    pub fn token_ids(&mut self, ids: &[(&str, u32)]) {
        for (name, id) in ids {
            self.edit(|keys| keys.u32(&format!("tokenizer.ggml.{name}_token_id"), *id));
        }
    }

    /// Adds BERT's vocabulary: these words, and letters and digits that compose other words.
    pub fn word_pieces(&mut self, words: &[&str]) {
        let special =
            [("[PAD]", CONTROL), ("[UNK]", UNKNOWN), ("[CLS]", CONTROL), ("[SEP]", CONTROL), ("[MASK]", CONTROL)];
        let letters = || ('a'..='z').chain('0'..='9').map(String::from);
        // A token that begins a word is marked, and a token that continues one is not.
        let begins = |text: String| (format!("\u{2581}{text}"), NORMAL);
        let pieces = letters().map(|text| (text, NORMAL));
        // The letters already include all words of one letter.
        let words = words.iter().filter(|word| word.len() > 1);
        let words = words.map(|&word| word.to_owned());
        let fill = (0..).map(|n| format!("word{n}"));
        let begun = letters().chain(words).chain(fill).map(begins);
        self.tokens("bert", &special, pieces.chain(begun));
        for (key, value) in [
            ("token_type_count", 2),
            ("padding_token_id", 0),
            ("unknown_token_id", 1),
            ("bos_token_id", 2),
            ("cls_token_id", 2),
            ("seperator_token_id", 3),
            ("mask_token_id", 4),
        ] {
            self.edit(|keys| keys.u32(&format!("tokenizer.ggml.{key}"), value));
        }
    }

    /// Adds the matrices of queries, keys, values and the attention's output.
    pub fn attention(&mut self, il: u64, ty: T) {
        let Dims { n_embd, .. } = self.dims;
        let (q, kv) = (self.dims.q(), self.dims.kv());
        self.block(il, "attn_q.weight", ty, &[n_embd, q]);
        self.block(il, "attn_k.weight", ty, &[n_embd, kv]);
        self.block(il, "attn_v.weight", ty, &[n_embd, kv]);
        self.block(il, "attn_output.weight", ty, &[q, n_embd]);
    }

    /// Adds the norms of queries and keys, one for each head.
    pub fn qk_norms(&mut self, il: u64) {
        self.vector(il, "attn_q_norm.weight", self.dims.head_dim);
        self.vector(il, "attn_k_norm.weight", self.dims.head_dim);
    }

    /// Adds a gated feed-forward step.
    pub fn feed_forward(&mut self, il: u64, ty: T, down: T) {
        let Dims { n_embd, n_ff, .. } = self.dims;
        self.block(il, "ffn_gate.weight", ty, &[n_embd, n_ff]);
        self.block(il, "ffn_up.weight", ty, &[n_embd, n_ff]);
        self.block(il, "ffn_down.weight", down, &[n_ff, n_embd]);
    }

    /// Marks these weights as already multiplied by signs and by Hadamard matrices of this size. llama.cpp then makes
    /// such matrices for the inputs of these weights. `widths` are the widths of the weights' rows.
    pub fn folded(&mut self, size: u32, widths: &[i32], weights: &[String]) {
        let n_signs = widths.iter().sum::<i32>();
        let signs: Vec<i32> = (0..n_signs).map(|n| if n % 3 == 0 { -1 } else { 1 }).collect();
        self.edit(|keys| {
            keys.u32("prism.hadamard.version", 1)
                .u32("prism.hadamard.block_size", size)
                .str("prism.hadamard.transform", "normalized-sylvester-walsh-hadamard")
                .str("prism.hadamard.axis", "input-last-dimension")
                .str("prism.hadamard.sign_mode", "explicit")
                .array_str("prism.hadamard.weight_names", weights)
                .array_i32("prism.hadamard.sign_widths", widths)
                .array_i32("prism.hadamard.sign_values", &signs)
        });
    }

    /// The model's header as a single file.
    pub fn builder(&self) -> Builder {
        self.shard(self.keys.clone(), 0, 1)
    }

    /// Writes the model's files. Returns the path of the first.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let stem = self.title().replace(' ', "-");
        if self.shards == 1 {
            let path = folder.join(format!("{stem}.gguf"));
            self.builder().write_sparse(&path).unwrap();
            return path;
        }
        let path = |no| folder.join(format!("{stem}-{:05}-of-{:05}.gguf", no + 1, self.shards));
        for no in 0..self.shards {
            let keys = if no == 0 { self.keys.clone() } else { Builder::empty() };
            let n = i32::try_from(self.tensors.len()).unwrap();
            let keys = keys
                .u16("split.no", u16::try_from(no).unwrap())
                .u16("split.count", u16::try_from(self.shards).unwrap())
                .i32("split.tensors.count", n);
            self.shard(keys, no, self.shards).write_sparse(path(no)).unwrap();
        }
        path(0)
    }

    /// The model's name for people and in file names.
    pub fn title(&self) -> String {
        format!("{} {}", self.arch, self.name)
    }

    /// Shard `no` of `count`: every `count`-th tensor, beginning with tensor number `no`.
    fn shard(&self, keys: Builder, no: usize, count: usize) -> Builder {
        let tensors = self.tensors.iter().skip(no).step_by(count);
        tensors.fold(keys, |builder, (name, ty, shape)| builder.tensor(name, *ty, shape))
    }
}
