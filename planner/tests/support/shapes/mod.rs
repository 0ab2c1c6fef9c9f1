//! Headers of well-known models, built from their shapes: what the planner sees of a file, without the file.
#![allow(dead_code, unreachable_pub)] // Each test uses some of it, and none exports it.

pub mod any;
#[allow(
    clippy::duplicate_mod,
    reason = "shapes and sketches are used without each other, too"
)]
#[path = "../dims/mod.rs"]
pub mod dims;

use autoplace_planner::gguf::{Builder, Header, TensorType as T};
use autoplace_planner::profile::ModelProfile;

use dims::{Dims, Experts};

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
    /// Whether the logits are computed with the token embedding.
    pub tied: bool,
    /// Whether the file holds `rope_freqs`.
    pub rope_freqs: bool,
    pub experts: Option<Experts>,
    /// Whether queries and keys are normed.
    pub qk_norm: bool,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The types of most matrices, of the better-kept ones (`attn_v`, `ffn_down` in half of the blocks)
    /// and of the output.
    pub types: (T, T, T),
}

pub const LLAMA_8B: Shape = Shape::of("Llama 3.1 8B Instruct", dims::LLAMA_8B);

pub const LLAMA_70B: Shape = Shape::of("Llama 3.3 70B Instruct", dims::LLAMA_70B);

pub const LLAMA_1B: Shape = Shape {
    tied: true,
    ..Shape::of("Llama 3.2 1B Instruct", dims::LLAMA_1B)
};

pub const QWEN_14B: Shape = Shape {
    arch: "qwen2",
    n_ctx_train: 32_768,
    rope_freqs: false,
    qkv_bias: true,
    ..Shape::of("Qwen2.5 Coder 14B Instruct", dims::QWEN_14B)
};

pub const QWEN3_8B: Shape = Shape {
    arch: "qwen3",
    n_ctx_train: 40_960,
    rope_freqs: false,
    qk_norm: true,
    ..Shape::of("Qwen3 8B", dims::QWEN3_8B)
};

pub const QWEN3_30B_A3B: Shape = Shape {
    arch: "qwen3moe",
    n_ctx_train: 40_960,
    rope_freqs: false,
    qk_norm: true,
    experts: Some(dims::QWEN3_30B_A3B.experts),
    ..Shape::of("Qwen3 30B A3B", dims::QWEN3_30B_A3B.dims)
};

/// A model small enough to count by hand: two blocks, everything `F32`, with rows that CUDA pads where they are `Q8_0`.
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
    /// A file of these sizes, and for the rest as Llama 3 has it.
    #[allow(clippy::cast_possible_truncation, reason = "models have few blocks")]
    const fn of(name: &'static str, dims: Dims) -> Self {
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

    /// The file of this shape, without data and with a vocabulary that is only counted.
    pub fn builder(&self) -> Builder {
        let key = |suffix: &str| format!("{}.{suffix}", self.arch);
        let n = |value: u64| u32::try_from(value).unwrap();
        let mut builder = Builder::new(self.arch)
            .str("general.name", self.name)
            .u32("general.file_type", 15)
            .u32(&key("block_count"), self.n_layer)
            .u32(&key("context_length"), self.n_ctx_train)
            .u32(&key("embedding_length"), n(self.n_embd))
            .u32(&key("feed_forward_length"), n(self.n_ff))
            .u32(&key("attention.head_count"), n(self.n_head))
            .u32(&key("attention.head_count_kv"), n(self.n_head_kv))
            .u32(&key("attention.key_length"), n(self.head_dim))
            .u32(&key("attention.value_length"), n(self.head_dim))
            .u32(&key("rope.dimension_count"), n(self.head_dim))
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 500_000.0)
            .u32(&key("vocab_size"), n(self.n_vocab))
            .str("tokenizer.ggml.model", "no_vocab");
        if let Some(experts) = self.experts {
            builder = builder
                .u32(&key("expert_count"), n(experts.n))
                .u32(&key("expert_used_count"), n(experts.used))
                .u32(&key("expert_feed_forward_length"), n(experts.ff));
        }
        let (most, better, output) = self.types;
        let embedding = if self.tied { output } else { most };
        builder = builder.tensor("token_embd.weight", embedding, &[self.n_embd, self.n_vocab]);
        if self.rope_freqs {
            builder = builder.tensor("rope_freqs.weight", T::F32, &[self.head_dim / 2]);
        }
        for il in 0..self.n_layer {
            builder = self.block(builder, il, most, better);
        }
        builder = builder.tensor("output_norm.weight", T::F32, &[self.n_embd]);
        if !self.tied {
            builder = builder.tensor("output.weight", output, &[self.n_embd, self.n_vocab]);
        }
        builder
    }

    fn block(&self, mut builder: Builder, il: u32, most: T, better: T) -> Builder {
        let name = |tensor: &str| format!("blk.{il}.{tensor}");
        let (q, kv) = (self.n_head * self.head_dim, self.n_head_kv * self.head_dim);
        // llama-quant.cpp, use_more_bits: the first and last eighth, and every third block between.
        let eighth = self.n_layer / 8;
        let more = il < eighth || il >= 7 * eighth || (il - eighth) % 3 == 2;
        let kept = if more { better } else { most };
        let mut put = |tensor: &str, ty: T, shape: &[u64]| {
            builder =
                std::mem::replace(&mut builder, Builder::empty()).tensor(&name(tensor), ty, shape);
        };
        put("attn_norm.weight", T::F32, &[self.n_embd]);
        put("attn_q.weight", most, &[self.n_embd, q]);
        put("attn_k.weight", most, &[self.n_embd, kv]);
        put("attn_v.weight", kept, &[self.n_embd, kv]);
        if self.qkv_bias {
            put("attn_q.bias", T::F32, &[q]);
            put("attn_k.bias", T::F32, &[kv]);
            put("attn_v.bias", T::F32, &[kv]);
        }
        if self.qk_norm {
            put("attn_q_norm.weight", T::F32, &[self.head_dim]);
            put("attn_k_norm.weight", T::F32, &[self.head_dim]);
        }
        put("attn_output.weight", most, &[q, self.n_embd]);
        put("ffn_norm.weight", T::F32, &[self.n_embd]);
        match self.experts {
            None => {
                put("ffn_gate.weight", most, &[self.n_embd, self.n_ff]);
                put("ffn_down.weight", kept, &[self.n_ff, self.n_embd]);
                put("ffn_up.weight", most, &[self.n_embd, self.n_ff]);
            }
            Some(Experts { n, ff, .. }) => {
                put("ffn_gate_inp.weight", T::F32, &[self.n_embd, n]);
                put("ffn_gate_exps.weight", most, &[self.n_embd, ff, n]);
                put("ffn_down_exps.weight", kept, &[ff, self.n_embd, n]);
                put("ffn_up_exps.weight", most, &[self.n_embd, ff, n]);
            }
        }
        builder
    }

    pub fn header(&self) -> Header {
        self.builder().header().unwrap()
    }

    pub fn profile(&self) -> ModelProfile {
        ModelProfile::from_header(&self.header()).unwrap()
    }
}
