//! Models that keep a state of fixed size, alone or beside attention.

use autoplace_planner::gguf::TensorType as T;

use super::{Dims, SMALL, Sketch};

pub(super) fn all() -> Vec<Sketch> {
    vec![mamba(), mamba2(), jamba(), falcon_h1(), rwkv6(), lfm2()]
}

const NARROW: Dims = Dims {
    n_embd: 1024,
    head_dim: 64,
    ..SMALL
};

/// A state-space mixer of the first kind, twice as wide as the stream.
fn mixer(sketch: &mut Sketch, il: u64) {
    let (n_embd, inner, state, rank) = (1024, 2048, 16, 64);
    sketch.block(il, "ssm_in.weight", T::Q8_0, &[n_embd, 2 * inner]);
    sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, inner]);
    sketch.vector(il, "ssm_conv1d.bias", inner);
    sketch.block(il, "ssm_x.weight", T::Q8_0, &[inner, rank + 2 * state]);
    sketch.block(il, "ssm_dt.weight", T::F32, &[rank, inner]);
    sketch.vector(il, "ssm_dt.bias", inner);
    sketch.block(il, "ssm_a", T::F32, &[state, inner]);
    sketch.vector(il, "ssm_d", inner);
    sketch.block(il, "ssm_out.weight", T::Q8_0, &[inner, n_embd]);
}

fn mixer_keys(sketch: &mut Sketch) {
    sketch.u32("ssm.conv_kernel", 4);
    sketch.u32("ssm.inner_size", 2048);
    sketch.u32("ssm.state_size", 16);
    sketch.u32("ssm.time_step_rank", 64);
}

fn mamba() -> Sketch {
    let mut sketch = Sketch::bare("mamba", "1", NARROW);
    mixer_keys(&mut sketch);
    sketch.ends(T::Q8_0, None);
    for il in 0..NARROW.n_layer {
        sketch.vector(il, "attn_norm.weight", 1024);
        mixer(&mut sketch, il);
    }
    sketch
}

/// A state-space mixer of the second kind: heads instead of steps.
fn mixer2(sketch: &mut Sketch, il: u64) {
    let (n_embd, inner, state, groups, heads) = (1024, 2048, 128, 2, 32);
    let conv = inner + 2 * groups * state;
    sketch.block(
        il,
        "ssm_in.weight",
        T::Q8_0,
        &[n_embd, inner + conv + heads],
    );
    sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, conv]);
    sketch.vector(il, "ssm_conv1d.bias", conv);
    sketch.vector(il, "ssm_dt.bias", heads);
    sketch.block(il, "ssm_a", T::F32, &[1, heads]);
    sketch.block(il, "ssm_d", T::F32, &[1, heads]);
    let norm = [inner / groups, groups];
    sketch.block(il, "ssm_norm.weight", T::F32, &norm);
    sketch.block(il, "ssm_out.weight", T::Q8_0, &[inner, n_embd]);
}

fn mixer2_keys(sketch: &mut Sketch) {
    sketch.u32("ssm.conv_kernel", 4);
    sketch.u32("ssm.inner_size", 2048);
    sketch.u32("ssm.state_size", 128);
    sketch.u32("ssm.time_step_rank", 32);
    sketch.u32("ssm.group_count", 2);
}

fn mamba2() -> Sketch {
    let mut sketch = Sketch::bare("mamba2", "2 groups", NARROW);
    mixer2_keys(&mut sketch);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..NARROW.n_layer {
        sketch.vector(il, "attn_norm.weight", 1024);
        mixer2(&mut sketch, il);
    }
    sketch
}

/// Every third block attends, the others mix.
fn jamba() -> Sketch {
    let dims = Dims {
        n_layer: 6,
        ..NARROW
    };
    let mut sketch = Sketch::new("jamba", "1 of 3 attends", dims);
    sketch.u32s("attention.head_count_kv", &[0, 4, 0, 0, 4, 0]);
    mixer_keys(&mut sketch);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..dims.n_layer {
        sketch.norms(il);
        if il % 3 == 1 {
            sketch.attention(il, T::Q8_0);
        } else {
            mixer(&mut sketch, il);
            sketch.vector(il, "ssm_dt_norm.weight", 64);
            sketch.vector(il, "ssm_b_norm.weight", 16);
            sketch.vector(il, "ssm_c_norm.weight", 16);
        }
        sketch.feed_forward(il, T::Q8_0, T::Q8_0);
    }
    sketch
}

/// Every block attends and mixes.
fn falcon_h1() -> Sketch {
    let mut sketch = Sketch::new("falcon-h1", "both", NARROW);
    mixer2_keys(&mut sketch);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..NARROW.n_layer {
        sketch.vector(il, "attn_norm.weight", 1024);
        // Without `.weight` (models/falcon-h1.cpp).
        sketch.vector(il, "ffn_norm", 1024);
        sketch.attention(il, T::Q8_0);
        mixer2(&mut sketch, il);
        sketch.feed_forward(il, T::Q8_0, T::Q8_0);
    }
    sketch
}

fn rwkv6() -> Sketch {
    let dims = Dims {
        n_ff: 3584,
        ..NARROW
    };
    let (n, mix, decay) = (dims.n_embd, 32, 64);
    let mut sketch = Sketch::bare("rwkv6", "64", dims);
    sketch.f32("attention.layer_norm_epsilon", 1e-5);
    sketch.u32("wkv.head_size", 64);
    sketch.u32("time_mix_extra_dim", mix);
    sketch.u32("time_decay_extra_dim", decay);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for name in [
        "output_norm.bias",
        "token_embd_norm.weight",
        "token_embd_norm.bias",
    ] {
        sketch.tensor(name, T::F32, &[n]);
    }
    for il in 0..dims.n_layer {
        for name in ["attn_norm", "attn_norm_2", "time_mix_ln"] {
            sketch.vector(il, &format!("{name}.weight"), n);
            sketch.vector(il, &format!("{name}.bias"), n);
        }
        sketch.block(il, "time_mix_w1.weight", T::F32, &[n, mix * 5]);
        sketch.block(il, "time_mix_w2.weight", T::F32, &[mix, n, 5]);
        sketch.block(il, "time_mix_lerp_x.weight", T::F32, &[n, 1, 1]);
        sketch.block(il, "time_mix_lerp_fused.weight", T::F32, &[n, 1, 1, 5]);
        sketch.block(il, "time_mix_first.weight", T::F32, &[64, n / 64]);
        sketch.vector(il, "time_mix_decay.weight", n);
        sketch.block(il, "time_mix_decay_w1.weight", T::F32, &[n, decay]);
        sketch.block(il, "time_mix_decay_w2.weight", T::F32, &[decay, n]);
        for name in ["key", "value", "receptance", "gate", "output"] {
            let name = format!("time_mix_{name}.weight");
            sketch.block(il, &name, T::Q8_0, &[n, n]);
        }
        sketch.block(il, "channel_mix_lerp_k.weight", T::F32, &[n, 1, 1]);
        sketch.block(il, "channel_mix_lerp_r.weight", T::F32, &[n, 1, 1]);
        sketch.block(il, "channel_mix_key.weight", T::Q8_0, &[n, dims.n_ff]);
        sketch.block(il, "channel_mix_value.weight", T::Q8_0, &[dims.n_ff, n]);
        sketch.block(il, "channel_mix_receptance.weight", T::Q8_0, &[n, n]);
    }
    sketch
}

/// Short convolutions beside attention.
fn lfm2() -> Sketch {
    let mut sketch = Sketch::new("lfm2", "short convolutions", NARROW);
    sketch.u32s("attention.head_count_kv", &[0, 4, 0, 4]);
    sketch.u32("shortconv.l_cache", 3);
    let (n, vocabulary) = (NARROW.n_embd, NARROW.n_vocab);
    sketch.tensor("token_embd.weight", T::Q8_0, &[n, vocabulary]);
    sketch.tensor("token_embd_norm.weight", T::F32, &[n]);
    for il in 0..NARROW.n_layer {
        sketch.norms(il);
        sketch.feed_forward(il, T::Q8_0, T::Q8_0);
        if il % 2 == 1 {
            sketch.attention(il, T::Q8_0);
            sketch.qk_norms(il);
        } else {
            sketch.block(il, "shortconv.conv.weight", T::F32, &[3, n]);
            sketch.block(il, "shortconv.in_proj.weight", T::Q8_0, &[n, 3 * n]);
            sketch.block(il, "shortconv.out_proj.weight", T::Q8_0, &[n, n]);
        }
    }
    sketch
}
