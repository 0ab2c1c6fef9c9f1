//! Headers of well-known models, built in memory from their shapes.

use std::fmt::Debug;

use autoplace_gguf::{Builder, Header, TensorType as T};

use super::Sketch;
use super::block::{Better, Block, Feed, QKV, QkNorms};
use crate::dims::{self, Dims, Experts};

/// The shape of a transformer of the llama family.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub n_layer: u32,
    pub n_embd: u64,
    pub n_ff: u64,
    pub n_head: u64,
    pub n_head_kv: u64,
    pub head_dim: u64,
    pub n_vocab: u64,
    pub n_ctx_train: u32,
    /// Whether the token embedding also computes the logits.
    pub tied: bool,
    /// Whether the file contains `rope_freqs`.
    pub rope_freqs: bool,
    pub experts: Option<Experts>,
    /// Whether queries and keys have norms.
    pub qk_norm: bool,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The types of three groups of matrices: most matrices, the matrices that keep more bits (`attn_v` and `ffn_down`
    /// in half of the blocks), and the output.
    pub types: (T, T, T),
}

pub const LLAMA_8B: Shape = Shape::new("Llama 3.1 8B Instruct", dims::LLAMA_8B);

pub const LLAMA_70B: Shape = Shape::new("Llama 3.3 70B Instruct", dims::LLAMA_70B);

pub const LLAMA_1B: Shape = Shape { tied: true, ..Shape::new("Llama 3.2 1B Instruct", dims::LLAMA_1B) };

pub const QWEN_14B: Shape = Shape {
    arch: "qwen2",
    n_ctx_train: 32_768,
    rope_freqs: false,
    qkv_bias: true,
    ..Shape::new("Qwen2.5 Coder 14B Instruct", dims::QWEN_14B)
};

pub const QWEN3_8B: Shape = Shape {
    arch: "qwen3",
    n_ctx_train: 40_960,
    rope_freqs: false,
    qk_norm: true,
    ..Shape::new("Qwen3 8B", dims::QWEN3_8B)
};

pub const QWEN3_30B_A3B: Shape = Shape {
    arch: "qwen3moe",
    n_ctx_train: 40_960,
    rope_freqs: false,
    qk_norm: true,
    experts: Some(dims::QWEN3_30B_A3B.experts),
    ..Shape::new("Qwen3 30B A3B", dims::QWEN3_30B_A3B.dims)
};

/// A model small enough to count by hand: two blocks in `F32`, with `Q8_0` rows that CUDA pads.
pub const TINY: Shape = Shape {
    name: "tiny",
    n_layer: 2,
    n_embd: 64,
    n_ff: 128,
    n_head: 4,
    n_head_kv: 2,
    head_dim: 16,
    n_vocab: 100,
    n_ctx_train: 1024,
    types: (T::F32, T::Q8_0, T::F32),
    ..LLAMA_8B
};

impl Shape {
    /// A shape with these sizes, and with the other properties of Llama 3.
    #[allow(clippy::cast_possible_truncation, reason = "models have few blocks")]
    const fn new(name: &'static str, dims: Dims) -> Self {
        Self {
            name,
            arch: "llama",
            n_layer: dims.n_layer as u32,
            n_embd: dims.n_embd,
            n_ff: dims.n_ff,
            n_head: dims.n_head,
            n_head_kv: dims.n_head_kv,
            head_dim: dims.head_dim,
            n_vocab: dims.n_vocab,
            n_ctx_train: 131_072,
            tied: false,
            rope_freqs: true,
            experts: None,
            qk_norm: false,
            qkv_bias: false,
            types: (T::Q4_K, T::Q6_K, T::Q6_K),
        }
    }

    /// The file of this shape, without data. The file does not contain the vocabulary, only the vocabulary's size.
    pub fn builder(&self) -> Builder {
        let dims = Dims {
            n_layer: self.n_layer.into(),
            n_embd: self.n_embd,
            n_ff: self.n_ff,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            head_dim: self.head_dim,
            n_vocab: self.n_vocab,
        };
        let mut sketch = Sketch::new(self.arch, self.name, dims);
        sketch.u32("context_length", self.n_ctx_train.into());
        sketch.f32("rope.freq_base", 500_000.0);
        sketch.text("general.name", self.name);
        let (most, better, output) = self.types;
        let mut block =
            Block { better: Better::Half, biases: if self.qkv_bias { QKV } else { &[] }, ..Block::new(most, better) };
        if self.qk_norm {
            block.qk_norms = QkNorms::PerHead;
        }
        if let Some(Experts { n, used, ff }) = self.experts {
            sketch.mixture(n, used, ff);
            block.feed = Feed::Experts { n, ff, ty: most };
        }
        match self.tied {
            true => sketch.ends(output, None),
            false => sketch.ends(most, Some(output)),
        }
        if self.rope_freqs {
            sketch.tensor("rope_freqs.weight", T::F32, &[self.head_dim / 2]);
        }
        sketch.stack(&block);
        sketch.builder().u32("general.file_type", 15)
    }

    pub fn header(&self) -> Header {
        self.builder().header().unwrap()
    }

    /// The planner's profile of this model: `ModelProfile`, or any other type that can be made from a header.
    pub fn profile<Profile: for<'a> TryFrom<&'a Header, Error: Debug>>(&self) -> Profile {
        Profile::try_from(&self.header()).unwrap()
    }
}
