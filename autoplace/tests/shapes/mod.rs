//! Headers of well-known models, built from their shapes: what the planner sees of a file, without the file.
#![allow(dead_code, unreachable_pub)] // Each test uses some of it, and none exports it.

pub mod any;

use autoplace::gguf::{Builder, Header, TensorType as T};
use autoplace::profile::ModelProfile;

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
    /// Experts per block and used per token; their width is `n_ff`.
    pub experts: Option<(u32, u32)>,
    /// Whether queries and keys are normed.
    pub qk_norm: bool,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The types of most matrices, of the better-kept ones (`attn_v`, `ffn_down` in half of the blocks) and of the output.
    pub types: (T, T, T),
}

pub const LLAMA_8B: Shape = Shape {
    name: "Llama 3.1 8B Instruct",
    arch: "llama",
    n_layer: 32,
    n_embd: 4096,
    n_ff: 14336,
    n_head: 32,
    n_head_kv: 8,
    head_dim: 128,
    n_vocab: 128_256,
    n_ctx_train: 131_072,
    tied: false,
    rope_freqs: true,
    experts: None,
    qk_norm: false,
    qkv_bias: false,
    types: (T::Q4_K, T::Q6_K, T::Q6_K),
};

pub const LLAMA_70B: Shape = Shape {
    name: "Llama 3.3 70B Instruct",
    n_layer: 80,
    n_embd: 8192,
    n_ff: 28672,
    n_head: 64,
    ..LLAMA_8B
};

pub const LLAMA_1B: Shape = Shape {
    name: "Llama 3.2 1B Instruct",
    n_layer: 16,
    n_embd: 2048,
    n_ff: 8192,
    n_head: 32,
    head_dim: 64,
    tied: true,
    ..LLAMA_8B
};

pub const QWEN_14B: Shape = Shape {
    name: "Qwen2.5 Coder 14B Instruct",
    arch: "qwen2",
    n_layer: 48,
    n_embd: 5120,
    n_ff: 13824,
    n_head: 40,
    n_vocab: 152_064,
    n_ctx_train: 32_768,
    rope_freqs: false,
    qkv_bias: true,
    ..LLAMA_8B
};

pub const QWEN3_8B: Shape = Shape {
    name: "Qwen3 8B",
    arch: "qwen3",
    n_layer: 36,
    n_ff: 12288,
    n_vocab: 151_936,
    n_ctx_train: 40_960,
    rope_freqs: false,
    qk_norm: true,
    ..LLAMA_8B
};

pub const QWEN3_30B_A3B: Shape = Shape {
    name: "Qwen3 30B A3B",
    arch: "qwen3moe",
    n_layer: 48,
    n_embd: 2048,
    n_ff: 768,
    n_head: 32,
    n_head_kv: 4,
    n_vocab: 151_936,
    n_ctx_train: 40_960,
    rope_freqs: false,
    qk_norm: true,
    experts: Some((128, 8)),
    ..LLAMA_8B
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
        if let Some((count, used)) = self.experts {
            builder = builder
                .u32(&key("expert_count"), count)
                .u32(&key("expert_used_count"), used)
                .u32(&key("expert_feed_forward_length"), n(self.n_ff));
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
            Some((count, _)) => {
                let count = u64::from(count);
                put("ffn_gate_inp.weight", T::F32, &[self.n_embd, count]);
                put(
                    "ffn_gate_exps.weight",
                    most,
                    &[self.n_embd, self.n_ff, count],
                );
                put(
                    "ffn_down_exps.weight",
                    kept,
                    &[self.n_ff, self.n_embd, count],
                );
                put("ffn_up_exps.weight", most, &[self.n_embd, self.n_ff, count]);
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
