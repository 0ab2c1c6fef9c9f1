//! Models some of whose blocks attend to the last tokens only.

use autoplace::gguf::TensorType as T;

use super::experts::experts;
use super::{Dims, SMALL, Sketch};

pub(super) fn all() -> Vec<Sketch> {
    vec![
        gemma2(),
        gemma3("window 1024", Some(1024), None),
        gemma3("every second", Some(512), Some(2)),
        gemma3("without window", None, None),
        gpt_oss(),
        cohere2("window 4096", None),
        cohere2("listed blocks", Some(&[true, false, false, true, true])),
        olmo2(),
        exaone4(),
    ]
}

/// The norms after attention and after the feed-forward step.
fn post_norms(sketch: &mut Sketch, il: u64) {
    let n_embd = sketch.dims.n_embd;
    sketch.vector(il, "post_attention_norm.weight", n_embd);
    sketch.vector(il, "post_ffw_norm.weight", n_embd);
}

fn gemma2() -> Sketch {
    let dims = Dims {
        n_layer: 6,
        n_embd: 2304,
        n_ff: 9216,
        n_head: 8,
        head_dim: 256,
        n_vocab: 256_000,
        ..SMALL
    };
    let mut sketch = Sketch::new("gemma2", "window 4096", dims);
    sketch.u32("attention.sliding_window", 4096);
    sketch.ends(T::Q6_K, None);
    for il in 0..dims.n_layer {
        sketch.norms(il);
        post_norms(&mut sketch, il);
        sketch.attention(il, T::Q4_K);
        sketch.feed_forward(il, T::Q4_K, T::Q6_K);
    }
    sketch
}

fn gemma3(name: &'static str, window: Option<u64>, pattern: Option<u64>) -> Sketch {
    let dims = Dims {
        n_layer: 7,
        n_embd: 1152,
        n_ff: 6912,
        n_head: 4,
        n_head_kv: 1,
        head_dim: 256,
        n_vocab: 262_144,
    };
    let mut sketch = Sketch::new("gemma3", name, dims);
    if let Some(window) = window {
        sketch.u32("attention.sliding_window", window);
    }
    if let Some(pattern) = pattern {
        sketch.u32("attention.sliding_window_pattern", pattern);
    }
    sketch.ends(T::Q8_0, None);
    for il in 0..dims.n_layer {
        sketch.norms(il);
        post_norms(&mut sketch, il);
        sketch.attention(il, T::Q4_0);
        sketch.qk_norms(il);
        sketch.feed_forward(il, T::Q4_0, T::Q4_0);
    }
    sketch
}

/// Sinks, biases everywhere, and experts in MXFP4.
fn gpt_oss() -> Sketch {
    let dims = Dims {
        n_layer: 4,
        n_embd: 2880,
        n_ff: 2880,
        n_head: 64,
        n_head_kv: 8,
        head_dim: 64,
        n_vocab: 201_088,
    };
    let mut sketch = Sketch::new("gpt-oss", "window 128", dims);
    sketch.u32("attention.sliding_window", 128);
    sketch.u32("expert_count", 32);
    sketch.u32("expert_used_count", 4);
    sketch.u32("expert_feed_forward_length", 2880);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", 2880);
        sketch.vector(il, "post_attention_norm.weight", 2880);
        sketch.attention(il, T::Q8_0);
        sketch.vector(il, "attn_q.bias", dims.q());
        sketch.vector(il, "attn_k.bias", dims.kv());
        sketch.vector(il, "attn_v.bias", dims.kv());
        sketch.vector(il, "attn_output.bias", 2880);
        sketch.vector(il, "attn_sinks.weight", dims.n_head);
        experts(&mut sketch, il, T::MXFP4, 32, 2880);
        sketch.vector(il, "ffn_gate_inp.bias", 32);
        for name in [
            "ffn_gate_exps.bias",
            "ffn_up_exps.bias",
            "ffn_down_exps.bias",
        ] {
            sketch.block(il, name, T::F32, &[2880, 32]);
        }
    }
    sketch
}

/// A list that is shorter than the model has blocks: llama.cpp takes the others for full ones, and we take no chances.
pub(super) fn unknown() -> Vec<Sketch> {
    vec![cohere2("short list", Some(&[true, false, true]))]
}

fn cohere2(name: &'static str, pattern: Option<&[bool]>) -> Sketch {
    let dims = Dims {
        n_layer: 5,
        n_vocab: 256_000,
        ..SMALL
    };
    let mut sketch = Sketch::new("cohere2", name, dims);
    sketch.u32("attention.sliding_window", 4096);
    if let Some(pattern) = pattern {
        sketch.bools("attention.sliding_window_pattern", pattern);
    }
    sketch.f32("attention.layer_norm_epsilon", 1e-5);
    sketch.f32("logit_scale", 0.0625);
    sketch.ends(T::Q6_K, None);
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", dims.n_embd);
        sketch.attention(il, T::Q4_K);
        sketch.feed_forward(il, T::Q4_K, T::Q6_K);
    }
    sketch
}

fn olmo2() -> Sketch {
    let mut sketch = Sketch::new("olmo2", "window 1024", SMALL);
    sketch.u32("attention.sliding_window", 1024);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..SMALL.n_layer {
        post_norms(&mut sketch, il);
        sketch.attention(il, T::Q4_K);
        sketch.vector(il, "attn_q_norm.weight", SMALL.n_embd);
        sketch.vector(il, "attn_k_norm.weight", SMALL.kv());
        sketch.feed_forward(il, T::Q4_K, T::Q6_K);
    }
    sketch
}

/// As many blocks as the one of its size that has a window.
fn exaone4() -> Sketch {
    let dims = Dims {
        n_layer: 64,
        n_embd: 512,
        n_ff: 1024,
        n_head: 8,
        n_head_kv: 2,
        head_dim: 64,
        ..SMALL
    };
    let mut sketch = Sketch::new("exaone4", "64 blocks", dims);
    sketch.u32("attention.sliding_window", 2048);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.tensor("rope_freqs.weight", T::F32, &[32]);
    for il in 0..dims.n_layer {
        post_norms(&mut sketch, il);
        sketch.attention(il, T::Q4_K);
        sketch.qk_norms(il);
        sketch.feed_forward(il, T::Q4_K, T::Q4_K);
    }
    sketch
}
