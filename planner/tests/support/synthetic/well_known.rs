//! Models that people run, at their full depth and width.

use autoplace_planner::gguf::TensorType as T;

use super::block::{ALL_NORMS, Better, Block, Feed, QKV, QkNorms};
use super::dims::{self, Experts, Mixture};
use super::experts::{Deep, deepseek2};
use super::windowed::{GEMMA3, gpt_oss_of};
use super::{Dims, Sketch};

pub(crate) fn all() -> Vec<Sketch> {
    vec![
        llama("3.1 8B", dims::LLAMA_8B),
        llama("3.3 70B", dims::LLAMA_70B).in_shards(2),
        mixtral_8x7b(),
        qwen_coder_14b(),
        qwen3_30b_a3b(),
        dense("mistral3", "small 24B", dims::MISTRAL_24B, &Q4_K_M),
        gemma3_27b(),
        gpt_oss_120b(),
        deepseek_v3(),
    ]
}

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

fn llama(name: &'static str, dims: Dims) -> Sketch {
    let mut sketch = dense("llama", name, dims, &Q4_K_M);
    sketch.tensor("rope_freqs.weight", T::F32, &[dims.head_dim / 2]);
    sketch
}

/// Everything but the router in 4 bits and 6.
fn mixture(experts: Experts) -> Block {
    Block {
        feed: Feed::Experts {
            n: experts.n,
            ff: experts.ff,
            ty: T::Q4_K,
        },
        ..Q4_K_M
    }
}

fn mixtral_8x7b() -> Sketch {
    let Mixture { dims, experts } = dims::MIXTRAL_8X7B;
    let mut sketch = dense("llama", "mixtral 8x7B", dims, &mixture(experts));
    sketch.u32("expert_count", experts.n);
    sketch.u32("expert_used_count", experts.used);
    sketch
}

fn qwen_coder_14b() -> Sketch {
    let block = Block {
        biases: QKV,
        ..Q4_K_M
    };
    dense("qwen2", "2.5 coder 14B", dims::QWEN_14B, &block)
}

fn qwen3_30b_a3b() -> Sketch {
    let Mixture { dims, experts } = dims::QWEN3_30B_A3B;
    let block = Block {
        qk_norms: QkNorms::PerHead,
        ..mixture(experts)
    };
    let mut sketch = dense("qwen3moe", "30B A3B", dims, &block);
    sketch.mixture(experts.n, experts.used, experts.ff);
    sketch
}

fn gemma3_27b() -> Sketch {
    let mut sketch = Sketch::new("gemma3", "27B", dims::GEMMA3_27B);
    sketch.u32("attention.sliding_window", 1024);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&GEMMA3);
    sketch
}

fn gpt_oss_120b() -> Sketch {
    let Mixture { dims, experts } = dims::GPT_OSS_120B;
    gpt_oss_of("120B", dims, experts)
}

fn deepseek_v3() -> Sketch {
    let Mixture { dims, experts } = dims::DEEPSEEK_V3;
    let deep = Deep {
        dims,
        mla: true,
        q_rank: 1536,
        leading: 3,
        experts: (experts.n, experts.used, 1, experts.ff),
    };
    deepseek2("v3", &deep)
}

/// With windows, as `llama-quantize` makes it Q4_K_M.
fn gemma(
    arch: &'static str,
    name: &'static str,
    dims: Dims,
    window: u64,
    qk_norms: QkNorms,
) -> Sketch {
    let mut sketch = Sketch::new(arch, name, dims);
    sketch.u32("attention.sliding_window", window);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&Block {
        norms: ALL_NORMS,
        qk_norms,
        ..Q4_K_M
    });
    sketch
}

pub(crate) fn gemma3_27b_q4_k_m() -> Sketch {
    gemma(
        "gemma3",
        "27B Q4_K_M",
        dims::GEMMA3_27B,
        1024,
        QkNorms::PerHead,
    )
}

pub(crate) fn gemma2_9b_q4_k_m() -> Sketch {
    let dims = Dims {
        n_layer: 42,
        n_embd: 3584,
        n_ff: 14336,
        n_head: 16,
        n_head_kv: 8,
        head_dim: 256,
        n_vocab: 256_000,
    };
    gemma("gemma2", "9B Q4_K_M", dims, 4096, QkNorms::None)
}

pub(crate) fn gpt_oss_20b() -> Sketch {
    let Mixture { dims, experts } = dims::GPT_OSS_20B;
    gpt_oss_of("20B", dims, experts)
}
