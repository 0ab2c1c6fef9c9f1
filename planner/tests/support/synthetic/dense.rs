//! Dense transformers whose blocks keep every token.

use autoplace_planner::gguf::TensorType as T;

use super::block::{Block, Feed, QKV, QkNorms};
use super::{Dims, SMALL, Sketch};

pub(super) fn all() -> Vec<Sketch> {
    vec![
        llama("gqa q4_k", SMALL, T::Q4_K, Some(T::Q6_K), 1),
        llama("split q8_0", SMALL, T::Q8_0, Some(T::Q8_0), 3),
        llama("tied f16", SMALL, T::F16, None, 1),
        llama("tied q4_0", ODD, T::Q4_0, None, 1),
        llama("odd q4_0", ODD, T::Q4_0, Some(T::Q4_0), 1),
        llama("iq4_xs", WIDE, T::IQ4_XS, Some(T::Q6_K), 1),
        qwen2(),
        qwen3(),
        phi3(),
        openelm(),
        deci(),
        glm4moe(),
    ]
}

/// Rows of 960: no multiple of 512.
const ODD: Dims = Dims {
    n_layer: 5,
    n_embd: 960,
    n_ff: 2560,
    n_head: 15,
    n_head_kv: 5,
    head_dim: 64,
    n_vocab: 49152,
};

/// Rows of 2304, and heads that do not share the width evenly.
const WIDE: Dims = Dims {
    n_embd: 2304,
    n_ff: 9216,
    n_head: 8,
    head_dim: 256,
    ..SMALL
};

fn llama(name: &'static str, dims: Dims, ty: T, output: Option<T>, shards: usize) -> Sketch {
    let mut sketch = Sketch::new("llama", name, dims);
    sketch.shards = shards;
    sketch.ends(ty, output);
    sketch.tensor("rope_freqs.weight", T::F32, &[dims.head_dim / 2]);
    sketch.stack(&Block::new(ty, ty));
    sketch
}

fn qwen2() -> Sketch {
    let mut sketch = Sketch::new("qwen2", "biases", SMALL);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        biases: QKV,
        ..Block::new(T::Q4_K, T::Q6_K)
    });
    sketch
}

fn qwen3() -> Sketch {
    let dims = Dims {
        n_embd: 1024,
        n_ff: 3072,
        n_head_kv: 8,
        n_vocab: 151_936,
        ..SMALL
    };
    let mut sketch = Sketch::new("qwen3", "qk norms", dims);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&Block {
        qk_norms: QkNorms::PerHead,
        ..Block::new(T::Q4_K, T::Q6_K)
    });
    sketch
}

fn phi3() -> Sketch {
    let dims = Dims {
        n_embd: 3072,
        n_ff: 8192,
        n_head: 32,
        n_head_kv: 32,
        head_dim: 96,
        n_vocab: 32064,
        ..SMALL
    };
    let mut sketch = Sketch::new("phi3", "fused qkv", dims);
    // Read, and then ignored (models/phi3.cpp, `load_arch_hparams`).
    sketch.u32("attention.sliding_window", 2047);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        sketch.tensor(name, T::F32, &[dims.head_dim / 2]);
    }
    let n_embd = dims.n_embd;
    for il in 0..dims.n_layer {
        sketch.norms(il);
        let qkv = dims.q() + 2 * dims.kv();
        sketch.block(il, "attn_qkv.weight", T::Q5_K, &[n_embd, qkv]);
        sketch.block(il, "attn_output.weight", T::Q4_K, &[dims.q(), n_embd]);
        sketch.block(il, "ffn_up.weight", T::Q4_K, &[n_embd, 2 * dims.n_ff]);
        sketch.block(il, "ffn_down.weight", T::Q6_K, &[dims.n_ff, n_embd]);
    }
    sketch
}

/// Heads and widths that grow from block to block.
fn openelm() -> Sketch {
    let (heads, kv, ff) = ([12, 12, 16, 20], [3, 3, 4, 5], [768, 1024, 1536, 5120]);
    let dims = Dims {
        n_embd: 1280,
        head_dim: 64,
        ..SMALL
    };
    let mut sketch = Sketch::new("openelm", "growing heads", dims);
    sketch.u32s("attention.head_count", &heads);
    sketch.u32s("attention.head_count_kv", &kv);
    sketch.u32s("feed_forward_length", &ff);
    sketch.ends(T::Q8_0, None);
    for (il, ((&heads, &kv), &ff)) in (0..).zip(heads.iter().zip(&kv).zip(&ff)) {
        let (heads, kv, ff) = (u64::from(heads), u64::from(kv), u64::from(ff));
        sketch.norms(il);
        sketch.qk_norms(il);
        sketch.block(
            il,
            "attn_qkv.weight",
            T::Q8_0,
            &[1280, (heads + 2 * kv) * 64],
        );
        sketch.block(il, "attn_output.weight", T::Q8_0, &[heads * 64, 1280]);
        sketch.block(il, "ffn_gate.weight", T::Q8_0, &[1280, ff]);
        sketch.block(il, "ffn_up.weight", T::Q8_0, &[1280, ff]);
        sketch.block(il, "ffn_down.weight", T::Q8_0, &[ff, 1280]);
    }
    sketch
}

/// A block without attention, one with a single matrix in its place, and different widths.
fn deci() -> Sketch {
    let (heads, kv, ff) = (
        [16, 0, 16, 0, 16],
        [4, 0, 8, 0, 2],
        [2816, 5632, 2816, 1024, 8192],
    );
    let dims = Dims {
        n_layer: 5,
        ..SMALL
    };
    let mut sketch = Sketch::new("deci", "missing heads", dims);
    sketch.u32s("attention.head_count", &heads);
    sketch.u32s("attention.head_count_kv", &kv);
    sketch.u32s("feed_forward_length", &ff);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.tensor("rope_freqs.weight", T::F32, &[64]);
    for (il, (&kv, &ff)) in (0..).zip(kv.iter().zip(&ff)) {
        sketch.dims.n_head_kv = kv.into();
        sketch.dims.n_ff = ff.into();
        if kv > 0 {
            sketch.vector(il, "attn_norm.weight", 2048);
            sketch.attention(il, T::Q4_K);
        }
        sketch.vector(il, "ffn_norm.weight", 2048);
        sketch.feed_forward(il, T::Q4_K, T::Q4_K);
    }
    sketch
}

/// A dense block, one with experts, and one that predicts a further token.
fn glm4moe() -> Sketch {
    let dims = Dims {
        n_layer: 4,
        ..SMALL
    };
    let mut sketch = Sketch::new("glm4moe", "prediction block", dims);
    sketch.u32("nextn_predict_layers", 1);
    sketch.u32("leading_dense_block_count", 1);
    sketch.u32("expert_shared_count", 1);
    sketch.mixture(8, 2, 768);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    let n_embd = dims.n_embd;
    let dense = Block {
        norms: &["attn_norm.weight", "post_attention_norm.weight"],
        ..Block::new(T::Q4_K, T::Q6_K)
    };
    let mixture = Block {
        feed: Feed::Shared {
            n: 8,
            ff: 768,
            ty: T::Q4_K,
            shared: (768, T::Q4_K),
        },
        ..dense
    };
    sketch.put(0, &dense);
    for il in 1..dims.n_layer {
        sketch.put(il, &mixture);
        sketch.vector(il, "exp_probs_b.bias", 8);
    }
    let last = dims.n_layer - 1;
    let eh = [2 * n_embd, n_embd];
    sketch.block(last, "nextn.eh_proj.weight", T::Q4_K, &eh);
    sketch.vector(last, "nextn.enorm.weight", n_embd);
    sketch.vector(last, "nextn.hnorm.weight", n_embd);
    sketch.vector(last, "nextn.shared_head_norm.weight", n_embd);
    sketch
}
