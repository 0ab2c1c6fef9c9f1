//! The models: of each kind of memory one, with rows that CUDA pads, in types that the CPU repacks and in some
//! that it does not.

use autoplace::gguf::TensorType as T;

use crate::synthetic::block::{ALL_NORMS, Block, Feed, QkNorms};
use crate::synthetic::{Dims, Sketch};

/// Small enough to be computed with in milliseconds.
pub(crate) const DIMS: Dims =
    Dims { n_layer: 4, n_embd: 256, n_ff: 768, n_head: 4, n_head_kv: 2, head_dim: 64, n_vocab: 512 };

pub(crate) fn all() -> Vec<Sketch> {
    vec![
        llama("gqa q4_k", DIMS, T::Q4_K, Some(T::Q6_K)),
        llama("tied f16", DIMS, T::F16, None),
        llama("tied q4_k", DIMS, T::Q4_K, None),
        llama("split q8_0", DIMS, T::Q8_0, Some(T::Q8_0)).in_shards(3),
        phi3(),
        gemma3(),
        qwen3moe("8 experts", DIMS, 8),
        gpt_oss(),
        deepseek2(),
        mamba2(),
        jamba(),
        falcon_h1(),
    ]
}

/// More blocks, of other widths, so that there is more to share out.
pub(crate) fn deep() -> Vec<Sketch> {
    let narrow = Dims { n_layer: 11, n_ff: 512, n_head: 8, n_head_kv: 8, head_dim: 32, ..DIMS };
    let wide = Dims { n_layer: 2, n_embd: 512, n_ff: 1536, n_head: 8, n_vocab: 2000, ..DIMS };
    let long = Dims { n_layer: 9, ..DIMS };
    vec![
        llama("11 blocks", narrow, T::Q5_0, Some(T::Q6_K)),
        llama("2 wide blocks", wide, T::Q4_K, Some(T::Q6_K)),
        qwen3moe("9 blocks of 6 experts", long, 6),
    ]
}

fn llama(name: &'static str, dims: Dims, ty: T, output: Option<T>) -> Sketch {
    let mut sketch = Sketch::new("llama", name, dims);
    sketch.ends(ty, output);
    sketch.tensor("rope_freqs.weight", T::F32, &[dims.head_dim / 2]);
    sketch.stack(&Block::new(ty, ty));
    sketch
}

/// The last block only feeds forward.
pub(crate) fn without_attention() -> Sketch {
    let mut sketch = Sketch::new("deci", "last block", DIMS);
    sketch.u32s("attention.head_count", &[4, 4, 4, 0]);
    sketch.u32s("attention.head_count_kv", &[2, 2, 2, 0]);
    sketch.u32s("feed_forward_length", &[768; 4]);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.tensor("rope_freqs.weight", T::F32, &[DIMS.head_dim / 2]);
    for il in 0..DIMS.n_layer {
        if il < 3 {
            sketch.vector(il, "attn_norm.weight", DIMS.n_embd);
            sketch.attention(il, T::Q4_K);
        }
        sketch.vector(il, "ffn_norm.weight", DIMS.n_embd);
        sketch.feed_forward(il, T::Q4_K, T::Q4_K);
    }
    sketch
}

fn phi3() -> Sketch {
    let mut sketch = Sketch::new("phi3", "fused qkv", DIMS);
    sketch.u32("attention.sliding_window", 128);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        sketch.tensor(name, T::F32, &[DIMS.head_dim / 2]);
    }
    let n_embd = DIMS.n_embd;
    for il in 0..DIMS.n_layer {
        sketch.norms(il);
        let qkv = DIMS.q() + 2 * DIMS.kv();
        sketch.block(il, "attn_qkv.weight", T::Q5_K, &[n_embd, qkv]);
        sketch.block(il, "attn_output.weight", T::Q4_K, &[DIMS.q(), n_embd]);
        sketch.block(il, "ffn_up.weight", T::Q4_K, &[n_embd, 2 * DIMS.n_ff]);
        sketch.block(il, "ffn_down.weight", T::Q6_K, &[DIMS.n_ff, n_embd]);
    }
    sketch
}

/// Five blocks of six look back a window only.
fn gemma3() -> Sketch {
    let dims = Dims { n_layer: 7, ..DIMS };
    let mut sketch = Sketch::new("gemma3", "window 64", dims);
    sketch.u32("attention.sliding_window", 64);
    sketch.ends(T::Q8_0, None);
    sketch.stack(&Block { norms: ALL_NORMS, qk_norms: QkNorms::PerHead, ..Block::new(T::Q4_0, T::Q4_0) });
    sketch
}

fn qwen3moe(name: &'static str, dims: Dims, n: u64) -> Sketch {
    let (ff, ty) = (256, T::Q4_K);
    let mut sketch = Sketch::new("qwen3moe", name, dims);
    sketch.mixture(n, 2, ff);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block { qk_norms: QkNorms::PerHead, feed: Feed::Experts { n, ff, ty }, ..Block::new(ty, ty) });
    sketch
}

/// Sinks, biases everywhere, a window in every second block, and experts in MXFP4.
fn gpt_oss() -> Sketch {
    let mut sketch = Sketch::new("gpt-oss", "window 128", DIMS);
    let n_embd = DIMS.n_embd;
    sketch.u32("attention.sliding_window", 128);
    sketch.mixture(4, 2, n_embd);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..DIMS.n_layer {
        sketch.vector(il, "attn_norm.weight", n_embd);
        sketch.vector(il, "post_attention_norm.weight", n_embd);
        sketch.attention(il, T::Q8_0);
        sketch.vector(il, "attn_q.bias", DIMS.q());
        sketch.vector(il, "attn_k.bias", DIMS.kv());
        sketch.vector(il, "attn_v.bias", DIMS.kv());
        sketch.vector(il, "attn_output.bias", n_embd);
        sketch.vector(il, "attn_sinks.weight", DIMS.n_head);
        sketch.experts(il, T::MXFP4, 4, n_embd);
        sketch.vector(il, "ffn_gate_inp.bias", 4);
        for name in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            sketch.block(il, &format!("{name}.bias"), T::F32, &[n_embd, 4]);
        }
    }
    sketch
}

/// The heads share one compressed key.
fn deepseek2() -> Sketch {
    let (q_rank, rank, rope, nope, v) = (256, 256, 64, 64, 64);
    let dims = Dims { n_head_kv: 1, ..DIMS };
    let mut sketch = Sketch::new("deepseek2", "mla", dims);
    sketch.u32("attention.key_length", rank + rope);
    sketch.u32("attention.value_length", rank);
    sketch.u32("attention.key_length_mla", nope + rope);
    sketch.u32("attention.value_length_mla", v);
    sketch.u32("rope.dimension_count", rope);
    sketch.u32("attention.q_lora_rank", q_rank);
    sketch.u32("attention.kv_lora_rank", rank);
    sketch.u32("leading_dense_block_count", 1);
    sketch.u32("expert_shared_count", 1);
    sketch.mixture(4, 2, 256);
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
        sketch.block(il, "attn_k_b.weight", T::Q8_0, &[nope, rank, heads]);
        sketch.block(il, "attn_v_b.weight", T::Q8_0, &[rank, v, heads]);
        sketch.block(il, "attn_output.weight", T::Q4_K, &[heads * v, n_embd]);
        if il == 0 {
            sketch.feed_forward(il, T::Q4_K, T::Q4_K);
        } else {
            sketch.experts(il, T::Q4_K, 4, 256);
            sketch.vector(il, "exp_probs_b.bias", 4);
            sketch.shared_expert(il, T::Q4_K, 256);
        }
    }
    sketch
}

const INNER: u64 = 512;

/// A state-space mixer of the first kind, twice as wide as the stream.
fn mixer(sketch: &mut Sketch, il: u64) {
    let (n_embd, state, rank) = (sketch.dims.n_embd, 16, 32);
    sketch.block(il, "ssm_in.weight", T::Q8_0, &[n_embd, 2 * INNER]);
    sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, INNER]);
    sketch.vector(il, "ssm_conv1d.bias", INNER);
    sketch.block(il, "ssm_x.weight", T::Q8_0, &[INNER, rank + 2 * state]);
    sketch.block(il, "ssm_dt.weight", T::F32, &[rank, INNER]);
    sketch.vector(il, "ssm_dt.bias", INNER);
    sketch.block(il, "ssm_a", T::F32, &[state, INNER]);
    sketch.vector(il, "ssm_d", INNER);
    sketch.block(il, "ssm_out.weight", T::Q8_0, &[INNER, n_embd]);
}

/// A state-space mixer of the second kind: heads instead of steps.
fn mixer2(sketch: &mut Sketch, il: u64) {
    let (n_embd, state, groups, heads) = (sketch.dims.n_embd, 64, 2, 8);
    let conv = INNER + 2 * groups * state;
    let projected = INNER + conv + heads;
    sketch.block(il, "ssm_in.weight", T::Q8_0, &[n_embd, projected]);
    sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, conv]);
    sketch.vector(il, "ssm_conv1d.bias", conv);
    sketch.vector(il, "ssm_dt.bias", heads);
    sketch.block(il, "ssm_a", T::F32, &[1, heads]);
    sketch.block(il, "ssm_d", T::F32, &[1, heads]);
    sketch.block(il, "ssm_norm.weight", T::F32, &[INNER / groups, groups]);
    sketch.block(il, "ssm_out.weight", T::Q8_0, &[INNER, n_embd]);
}

fn mixer2_keys(sketch: &mut Sketch) {
    sketch.u32("ssm.conv_kernel", 4);
    sketch.u32("ssm.inner_size", INNER);
    sketch.u32("ssm.state_size", 64);
    sketch.u32("ssm.group_count", 2);
    sketch.u32("ssm.time_step_rank", 8);
}

fn mamba2() -> Sketch {
    let mut sketch = Sketch::bare("mamba2", "2 groups", DIMS);
    mixer2_keys(&mut sketch);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..DIMS.n_layer {
        sketch.vector(il, "attn_norm.weight", DIMS.n_embd);
        mixer2(&mut sketch, il);
    }
    sketch
}

/// Every second block attends, the others mix.
fn jamba() -> Sketch {
    let mut sketch = Sketch::new("jamba", "1 of 2 attends", DIMS);
    sketch.u32s("attention.head_count_kv", &[0, 2, 0, 2]);
    sketch.u32("ssm.conv_kernel", 4);
    sketch.u32("ssm.inner_size", INNER);
    sketch.u32("ssm.state_size", 16);
    sketch.u32("ssm.time_step_rank", 32);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..DIMS.n_layer {
        sketch.norms(il);
        if il % 2 == 1 {
            sketch.attention(il, T::Q8_0);
        } else {
            mixer(&mut sketch, il);
            sketch.vector(il, "ssm_dt_norm.weight", 32);
            sketch.vector(il, "ssm_b_norm.weight", 16);
            sketch.vector(il, "ssm_c_norm.weight", 16);
        }
        sketch.feed_forward(il, T::Q8_0, T::Q8_0);
    }
    sketch
}

/// Every block attends and mixes.
fn falcon_h1() -> Sketch {
    let mut sketch = Sketch::new("falcon-h1", "both", DIMS);
    mixer2_keys(&mut sketch);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..DIMS.n_layer {
        sketch.vector(il, "attn_norm.weight", DIMS.n_embd);
        // Without `.weight` (models/falcon-h1.cpp).
        sketch.vector(il, "ffn_norm", DIMS.n_embd);
        sketch.attention(il, T::Q8_0);
        mixer2(&mut sketch, il);
        sketch.feed_forward(il, T::Q8_0, T::Q8_0);
    }
    sketch
}
