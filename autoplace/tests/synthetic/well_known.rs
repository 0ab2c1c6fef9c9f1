//! Models that people run, at their full depth and width.

use autoplace::gguf::TensorType as T;

use super::block::{Better, Block, Feed, QKV, QkNorms};
use super::experts::{Deep, deepseek2};
use super::windowed::{GEMMA3, gpt_oss_of};
use super::{Dims, Sketch};

pub(super) fn all() -> Vec<Sketch> {
    vec![
        llama_8b(),
        llama_70b(),
        mixtral_8x7b(),
        qwen_coder_14b(),
        qwen3_30b_a3b(),
        mistral_small_24b(),
        gemma3_27b(),
        gpt_oss_120b(),
        deepseek_v3(),
    ]
}

const LLAMA_8B: Dims = Dims {
    n_layer: 32,
    n_embd: 4096,
    n_ff: 14336,
    n_head: 32,
    n_head_kv: 8,
    head_dim: 128,
    n_vocab: 128_256,
};

/// As `llama-quantize` makes it of most models.
const Q4_K_M: Block = Block {
    better: Better::Half,
    ..Block::new(T::Q4_K, T::Q6_K)
};

fn dense(arch: &'static str, name: &'static str, dims: Dims, block: &Block) -> Sketch {
    let mut sketch = Sketch::new(arch, name, dims);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(block);
    sketch
}

fn llama_8b() -> Sketch {
    let mut sketch = dense("llama", "3.1 8B", LLAMA_8B, &Q4_K_M);
    sketch.tensor("rope_freqs.weight", T::F32, &[64]);
    sketch
}

/// In two files.
fn llama_70b() -> Sketch {
    let dims = Dims {
        n_layer: 80,
        n_embd: 8192,
        n_ff: 28672,
        n_head: 64,
        ..LLAMA_8B
    };
    let mut sketch = dense("llama", "3.3 70B", dims, &Q4_K_M);
    sketch.tensor("rope_freqs.weight", T::F32, &[64]);
    sketch.shards = 2;
    sketch
}

fn mixtral_8x7b() -> Sketch {
    let dims = Dims {
        n_vocab: 32000,
        ..LLAMA_8B
    };
    let block = Block {
        feed: Feed::Experts {
            n: 8,
            ff: dims.n_ff,
            ty: T::Q4_K,
        },
        ..Q4_K_M
    };
    let mut sketch = dense("llama", "mixtral 8x7B", dims, &block);
    sketch.u32("expert_count", 8);
    sketch.u32("expert_used_count", 2);
    sketch
}

fn qwen_coder_14b() -> Sketch {
    let dims = Dims {
        n_layer: 48,
        n_embd: 5120,
        n_ff: 13824,
        n_head: 40,
        n_vocab: 152_064,
        ..LLAMA_8B
    };
    let block = Block {
        biases: QKV,
        ..Q4_K_M
    };
    dense("qwen2", "2.5 coder 14B", dims, &block)
}

fn qwen3_30b_a3b() -> Sketch {
    let dims = Dims {
        n_layer: 48,
        n_embd: 2048,
        n_ff: 6144,
        n_head_kv: 4,
        n_vocab: 151_936,
        ..LLAMA_8B
    };
    let block = Block {
        qk_norms: QkNorms::PerHead,
        feed: Feed::Experts {
            n: 128,
            ff: 768,
            ty: T::Q4_K,
        },
        ..Q4_K_M
    };
    let mut sketch = dense("qwen3moe", "30B A3B", dims, &block);
    sketch.mixture(128, 8, 768);
    sketch
}

fn mistral_small_24b() -> Sketch {
    let dims = Dims {
        n_layer: 40,
        n_embd: 5120,
        n_ff: 32768,
        n_vocab: 131_072,
        ..LLAMA_8B
    };
    dense("mistral3", "small 24B", dims, &Q4_K_M)
}

fn gemma3_27b() -> Sketch {
    let dims = Dims {
        n_layer: 62,
        n_embd: 5376,
        n_ff: 21504,
        n_head_kv: 16,
        n_vocab: 262_208,
        ..LLAMA_8B
    };
    let mut sketch = Sketch::new("gemma3", "27B", dims);
    sketch.u32("attention.sliding_window", 1024);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&GEMMA3);
    sketch
}

fn gpt_oss_120b() -> Sketch {
    let dims = Dims {
        n_layer: 36,
        n_embd: 2880,
        n_ff: 2880,
        n_head: 64,
        n_head_kv: 8,
        head_dim: 64,
        n_vocab: 201_088,
    };
    gpt_oss_of("120B", dims, 128)
}

/// 671 billion parameters, of which only one key per token is kept.
fn deepseek_v3() -> Sketch {
    let deep = Deep {
        dims: Dims {
            n_layer: 61,
            n_embd: 7168,
            n_ff: 18432,
            n_head: 128,
            n_head_kv: 1,
            n_vocab: 129_280,
            ..LLAMA_8B
        },
        mla: true,
        q_rank: 1536,
        leading: 3,
        experts: (256, 8, 1, 2048),
    };
    deepseek2("v3", &deep)
}
