//! Models some of whose blocks attend to the last tokens only.

use autoplace_planner::gguf::TensorType as T;

use super::block::{ALL_NORMS, Block, Feed, POST_NORMS, QkNorms};
use super::dims::{Experts, GPT_OSS_20B, Mixture};
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
    sketch.stack(&Block {
        norms: ALL_NORMS,
        ..Block::new(T::Q4_K, T::Q6_K)
    });
    sketch
}

pub(super) const GEMMA3: Block = Block {
    norms: ALL_NORMS,
    qk_norms: QkNorms::PerHead,
    ..Block::new(T::Q4_0, T::Q4_0)
};

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
    sketch.stack(&GEMMA3);
    sketch
}

fn gpt_oss() -> Sketch {
    let Mixture { dims, experts } = GPT_OSS_20B;
    gpt_oss_of("window 128", Dims { n_layer: 4, ..dims }, experts)
}

/// Sinks, biases everywhere, and experts in MXFP4.
pub(super) fn gpt_oss_of(name: &'static str, dims: Dims, experts: Experts) -> Sketch {
    let width = dims.n_embd;
    let Experts { n, used, ff } = experts;
    let mut sketch = Sketch::new("gpt-oss", name, dims);
    sketch.u32("attention.sliding_window", 128);
    sketch.mixture(n, used, ff);
    sketch.ends(T::Q8_0, Some(T::Q8_0));
    sketch.stack(&Block {
        norms: &["attn_norm.weight", "post_attention_norm.weight"],
        biases: &["attn_q", "attn_k", "attn_v", "attn_output"],
        sinks: true,
        feed: Feed::Experts {
            n,
            ff,
            ty: T::MXFP4,
        },
        ..Block::new(T::Q8_0, T::Q8_0)
    });
    for il in 0..dims.n_layer {
        sketch.vector(il, "ffn_gate_inp.bias", n);
        for (name, wide) in [
            ("ffn_gate_exps.bias", ff),
            ("ffn_up_exps.bias", ff),
            ("ffn_down_exps.bias", width),
        ] {
            sketch.block(il, name, T::F32, &[wide, n]);
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
    sketch.stack(&Block {
        norms: &["attn_norm.weight"],
        ..Block::new(T::Q4_K, T::Q6_K)
    });
    sketch
}

fn olmo2() -> Sketch {
    let mut sketch = Sketch::new("olmo2", "window 1024", SMALL);
    sketch.u32("attention.sliding_window", 1024);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        norms: POST_NORMS,
        qk_norms: QkNorms::OverAll,
        ..Block::new(T::Q4_K, T::Q6_K)
    });
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
    sketch.stack(&Block {
        norms: POST_NORMS,
        qk_norms: QkNorms::PerHead,
        ..Block::new(T::Q4_K, T::Q4_K)
    });
    sketch
}
