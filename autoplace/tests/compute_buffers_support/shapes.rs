//! Models of true shape, in true numbers of blocks.

use autoplace::gguf::TensorType as T;

use crate::synthetic::{Dims, Sketch};

pub(crate) fn all() -> Vec<Sketch> {
    vec![
        llama_8b(),
        llama_70b(),
        qwen3_30b_a3b(),
        gemma3_27b(),
        gpt_oss_20b(),
    ]
}

/// Which blocks `Q4_K_M` gives more bits (llama-quant.cpp, `use_more_bits`).
fn more_bits(il: u64, n: u64) -> T {
    let more = il < n / 8 || il >= 7 * n / 8 || (il - n / 8) % 3 == 2;
    if more { T::Q6_K } else { T::Q4_K }
}

fn mixed_attention(sketch: &mut Sketch, il: u64) {
    let dims = sketch.dims;
    let (q, kv) = (dims.q(), dims.kv());
    sketch.block(il, "attn_q.weight", T::Q4_K, &[dims.n_embd, q]);
    sketch.block(il, "attn_k.weight", T::Q4_K, &[dims.n_embd, kv]);
    let ty = more_bits(il, dims.n_layer);
    sketch.block(il, "attn_v.weight", ty, &[dims.n_embd, kv]);
    sketch.block(il, "attn_output.weight", T::Q4_K, &[q, dims.n_embd]);
}

fn llama(name: &'static str, dims: Dims) -> Sketch {
    let mut sketch = Sketch::new("llama", name, dims);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.tensor("rope_freqs.weight", T::F32, &[dims.head_dim / 2]);
    for il in 0..dims.n_layer {
        sketch.norms(il);
        mixed_attention(&mut sketch, il);
        sketch.feed_forward(il, T::Q4_K, more_bits(il, dims.n_layer));
    }
    sketch
}

/// Llama 3.1 8B.
fn llama_8b() -> Sketch {
    llama(
        "8b",
        Dims {
            n_layer: 32,
            n_embd: 4096,
            n_ff: 14336,
            n_head: 32,
            n_head_kv: 8,
            head_dim: 128,
            n_vocab: 128_256,
        },
    )
}

/// Llama 3.3 70B.
fn llama_70b() -> Sketch {
    llama(
        "70b",
        Dims {
            n_layer: 80,
            n_embd: 8192,
            n_ff: 28672,
            n_head: 64,
            n_head_kv: 8,
            head_dim: 128,
            n_vocab: 128_256,
        },
    )
}

/// Qwen3 30B-A3B.
fn qwen3_30b_a3b() -> Sketch {
    let dims = Dims {
        n_layer: 48,
        n_embd: 2048,
        n_ff: 6144,
        n_head: 32,
        n_head_kv: 4,
        head_dim: 128,
        n_vocab: 151_936,
    };
    let mut sketch = Sketch::new("qwen3moe", "30b-a3b", dims);
    sketch.u32("expert_count", 128);
    sketch.u32("expert_used_count", 8);
    sketch.u32("expert_feed_forward_length", 768);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.norms(il);
        mixed_attention(&mut sketch, il);
        sketch.qk_norms(il);
        sketch.block(il, "ffn_gate_inp.weight", T::F32, &[2048, 128]);
        sketch.block(il, "ffn_gate_exps.weight", T::Q4_K, &[2048, 768, 128]);
        sketch.block(il, "ffn_up_exps.weight", T::Q4_K, &[2048, 768, 128]);
        let ty = more_bits(il, dims.n_layer);
        sketch.block(il, "ffn_down_exps.weight", ty, &[768, 2048, 128]);
    }
    sketch
}

/// Gemma 3 27B: of six blocks one looks further than 1024 tokens.
fn gemma3_27b() -> Sketch {
    let dims = Dims {
        n_layer: 62,
        n_embd: 5376,
        n_ff: 21504,
        n_head: 32,
        n_head_kv: 16,
        head_dim: 128,
        n_vocab: 262_208,
    };
    let mut sketch = Sketch::new("gemma3", "27b", dims);
    sketch.u32("attention.sliding_window", 1024);
    sketch.ends(T::Q6_K, None);
    for il in 0..dims.n_layer {
        sketch.norms(il);
        sketch.vector(il, "post_attention_norm.weight", dims.n_embd);
        sketch.vector(il, "post_ffw_norm.weight", dims.n_embd);
        mixed_attention(&mut sketch, il);
        sketch.qk_norms(il);
        sketch.feed_forward(il, T::Q4_K, more_bits(il, dims.n_layer));
    }
    sketch
}

/// gpt-oss 20B.
fn gpt_oss_20b() -> Sketch {
    let dims = Dims {
        n_layer: 24,
        n_embd: 2880,
        n_ff: 2880,
        n_head: 64,
        n_head_kv: 8,
        head_dim: 64,
        n_vocab: 201_088,
    };
    let mut sketch = Sketch::new("gpt-oss", "20b", dims);
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
        sketch.block(il, "ffn_gate_inp.weight", T::F32, &[2880, 32]);
        sketch.vector(il, "ffn_gate_inp.bias", 32);
        for part in ["gate", "up", "down"] {
            let name = format!("ffn_{part}_exps");
            sketch.block(il, &format!("{name}.weight"), T::MXFP4, &[2880, 2880, 32]);
            sketch.block(il, &format!("{name}.bias"), T::F32, &[2880, 32]);
        }
    }
    sketch
}
