//! Mixtures of experts whose blocks keep every token, and the compressed keys of DeepSeek.

use autoplace_planner::gguf::TensorType as T;

use super::block::{Block, Feed, QKV, QkNorms};
use super::{Dims, SMALL, Sketch};

pub(super) fn all() -> Vec<Sketch> {
    vec![
        mixtral(),
        qwen2moe(),
        qwen3moe(),
        small_deepseek2("mla", true),
        small_deepseek2("without mla", false),
    ]
}

fn mixtral() -> Sketch {
    let mut sketch = Sketch::new("llama", "mixtral", SMALL);
    sketch.u32("expert_count", 8);
    sketch.u32("expert_used_count", 2);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        feed: Feed::Experts {
            n: 8,
            ff: SMALL.n_ff,
            ty: T::Q4_K,
        },
        ..Block::new(T::Q4_K, T::Q4_K)
    });
    sketch
}

fn qwen2moe() -> Sketch {
    let dims = Dims {
        n_head_kv: 16,
        ..SMALL
    };
    let mut sketch = Sketch::new("qwen2moe", "shared experts", dims);
    sketch.mixture(60, 4, 1536);
    sketch.u32("expert_shared_feed_forward_length", 5632);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        biases: QKV,
        feed: Feed::Shared {
            n: 60,
            ff: 1536,
            ty: T::Q4_K,
            shared: (5632, T::Q8_0),
        },
        ..Block::new(T::Q4_K, T::Q4_K)
    });
    for il in 0..dims.n_layer {
        sketch.vector(il, "ffn_gate_inp_shexp.weight", dims.n_embd);
    }
    sketch
}

fn qwen3moe() -> Sketch {
    let dims = Dims {
        n_head: 32,
        n_vocab: 151_936,
        ..SMALL
    };
    let mut sketch = Sketch::new("qwen3moe", "128 experts", dims);
    sketch.mixture(128, 8, 768);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        qk_norms: QkNorms::PerHead,
        feed: Feed::Experts {
            n: 128,
            ff: 768,
            ty: T::Q4_K,
        },
        ..Block::new(T::Q4_K, T::Q4_K)
    });
    sketch
}

/// The sizes of a DeepSeek.
pub(super) struct Deep {
    pub(super) dims: Dims,
    /// Whether the heads share one key, which is all that is kept; files from before hold the keys of all heads.
    pub(super) mla: bool,
    pub(super) q_rank: u64,
    pub(super) leading: u64,
    /// Experts, how many a token uses, how many all tokens use, and their width.
    pub(super) experts: (u64, u64, u64, u64),
}

fn small_deepseek2(name: &'static str, mla: bool) -> Sketch {
    let deep = Deep {
        dims: Dims {
            n_head_kv: if mla { 1 } else { SMALL.n_head },
            ..SMALL
        },
        mla,
        q_rank: 768,
        leading: 1,
        experts: (16, 4, 2, 768),
    };
    deepseek2(name, &deep)
}

pub(super) fn deepseek2(name: &'static str, deep: &Deep) -> Sketch {
    let (rank, rope, nope, v) = (512, 64, 128, 128);
    let (dims, mla, q_rank) = (deep.dims, deep.mla, deep.q_rank);
    let (n, used, shared, ff) = deep.experts;
    let mut sketch = Sketch::new("deepseek2", name, dims);
    let (k_kept, v_kept) = if mla {
        (rank + rope, rank)
    } else {
        (nope + rope, v)
    };
    sketch.u32("attention.key_length", k_kept);
    sketch.u32("attention.value_length", v_kept);
    if mla {
        sketch.u32("attention.key_length_mla", nope + rope);
        sketch.u32("attention.value_length_mla", v);
    }
    sketch.u32("rope.dimension_count", rope);
    sketch.u32("attention.q_lora_rank", q_rank);
    sketch.u32("attention.kv_lora_rank", rank);
    sketch.u32("leading_dense_block_count", deep.leading);
    sketch.u32("expert_shared_count", shared);
    sketch.mixture(n, used, ff);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    let (n_embd, heads) = (dims.n_embd, dims.n_head);
    for il in 0..dims.n_layer {
        sketch.norms(il);
        sketch.vector(il, "attn_q_a_norm.weight", q_rank);
        sketch.vector(il, "attn_kv_a_norm.weight", rank);
        sketch.block(il, "attn_q_a.weight", T::Q4_K, &[n_embd, q_rank]);
        let q = heads * (nope + rope);
        sketch.block(il, "attn_q_b.weight", T::Q4_K, &[q_rank, q]);
        sketch.block(il, "attn_kv_a_mqa.weight", T::Q8_0, &[n_embd, rank + rope]);
        if mla {
            sketch.block(il, "attn_k_b.weight", T::Q8_0, &[nope, rank, heads]);
            sketch.block(il, "attn_v_b.weight", T::Q8_0, &[rank, v, heads]);
        } else {
            let kv = heads * (nope + v);
            sketch.block(il, "attn_kv_b.weight", T::Q8_0, &[rank, kv]);
        }
        sketch.block(il, "attn_output.weight", T::Q4_K, &[heads * v, n_embd]);
        if il < deep.leading {
            sketch.feed_forward(il, T::Q4_K, T::Q4_K);
        } else {
            sketch.experts(il, T::Q4_K, n, ff);
            sketch.vector(il, "exp_probs_b.bias", n);
            sketch.shared_expert(il, T::Q4_K, shared * ff);
        }
    }
    sketch
}
