//! Mixtures of experts whose blocks keep every token, and the compressed keys of DeepSeek.

use autoplace::gguf::TensorType as T;

use super::{Dims, SMALL, Sketch};

pub(super) fn all() -> Vec<Sketch> {
    vec![
        mixtral(),
        qwen2moe(),
        qwen3moe(),
        deepseek2("mla", true),
        deepseek2("without mla", false),
    ]
}

/// The router and the experts, `n` of width `ff`.
pub(super) fn experts(sketch: &mut Sketch, il: u64, ty: T, n: u64, ff: u64) {
    let n_embd = sketch.dims.n_embd;
    sketch.block(il, "ffn_gate_inp.weight", T::F32, &[n_embd, n]);
    sketch.block(il, "ffn_gate_exps.weight", ty, &[n_embd, ff, n]);
    sketch.block(il, "ffn_up_exps.weight", ty, &[n_embd, ff, n]);
    sketch.block(il, "ffn_down_exps.weight", ty, &[ff, n_embd, n]);
}

/// The expert that every token uses, of width `ff`.
fn shared(sketch: &mut Sketch, il: u64, ty: T, ff: u64) {
    let n_embd = sketch.dims.n_embd;
    sketch.block(il, "ffn_gate_shexp.weight", ty, &[n_embd, ff]);
    sketch.block(il, "ffn_up_shexp.weight", ty, &[n_embd, ff]);
    sketch.block(il, "ffn_down_shexp.weight", ty, &[ff, n_embd]);
}

fn mixtral() -> Sketch {
    let mut sketch = Sketch::new("llama", "mixtral", SMALL);
    sketch.u32("expert_count", 8);
    sketch.u32("expert_used_count", 2);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..SMALL.n_layer {
        sketch.norms(il);
        sketch.attention(il, T::Q4_K);
        experts(&mut sketch, il, T::Q4_K, 8, SMALL.n_ff);
    }
    sketch
}

fn qwen2moe() -> Sketch {
    let dims = Dims {
        n_head_kv: 16,
        ..SMALL
    };
    let mut sketch = Sketch::new("qwen2moe", "shared experts", dims);
    sketch.u32("expert_count", 60);
    sketch.u32("expert_used_count", 4);
    sketch.u32("expert_feed_forward_length", 1536);
    sketch.u32("expert_shared_feed_forward_length", 5632);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.norms(il);
        sketch.attention(il, T::Q4_K);
        sketch.vector(il, "attn_q.bias", dims.q());
        sketch.vector(il, "attn_k.bias", dims.kv());
        sketch.vector(il, "attn_v.bias", dims.kv());
        experts(&mut sketch, il, T::Q4_K, 60, 1536);
        sketch.vector(il, "ffn_gate_inp_shexp.weight", dims.n_embd);
        shared(&mut sketch, il, T::Q8_0, 5632);
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
    sketch.u32("expert_count", 128);
    sketch.u32("expert_used_count", 8);
    sketch.u32("expert_feed_forward_length", 768);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.norms(il);
        sketch.attention(il, T::Q4_K);
        sketch.qk_norms(il);
        experts(&mut sketch, il, T::Q4_K, 128, 768);
    }
    sketch
}

/// With MLA the heads share one key, which is all that is kept; files from before it hold the keys of all heads.
fn deepseek2(name: &'static str, mla: bool) -> Sketch {
    let (rank, rope, nope, v) = (512, 64, 128, 128);
    let dims = Dims {
        n_head_kv: if mla { 1 } else { SMALL.n_head },
        ..SMALL
    };
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
    sketch.u32("attention.q_lora_rank", 768);
    sketch.u32("attention.kv_lora_rank", rank);
    sketch.u32("leading_dense_block_count", 1);
    sketch.u32("expert_count", 16);
    sketch.u32("expert_used_count", 4);
    sketch.u32("expert_shared_count", 2);
    sketch.u32("expert_feed_forward_length", 768);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    let (n_embd, heads) = (dims.n_embd, dims.n_head);
    for il in 0..dims.n_layer {
        sketch.norms(il);
        sketch.vector(il, "attn_q_a_norm.weight", 768);
        sketch.vector(il, "attn_kv_a_norm.weight", rank);
        sketch.block(il, "attn_q_a.weight", T::Q4_K, &[n_embd, 768]);
        let q = heads * (nope + rope);
        sketch.block(il, "attn_q_b.weight", T::Q4_K, &[768, q]);
        sketch.block(il, "attn_kv_a_mqa.weight", T::Q8_0, &[n_embd, rank + rope]);
        if mla {
            sketch.block(il, "attn_k_b.weight", T::Q8_0, &[nope, rank, heads]);
            sketch.block(il, "attn_v_b.weight", T::Q8_0, &[rank, v, heads]);
        } else {
            let kv = heads * (nope + v);
            sketch.block(il, "attn_kv_b.weight", T::Q8_0, &[rank, kv]);
        }
        sketch.block(il, "attn_output.weight", T::Q4_K, &[heads * v, n_embd]);
        if il == 0 {
            sketch.feed_forward(il, T::Q4_K, T::Q4_K);
        } else {
            experts(&mut sketch, il, T::Q4_K, 16, 768);
            sketch.vector(il, "exp_probs_b.bias", 16);
            shared(&mut sketch, il, T::Q4_K, 2 * 768);
        }
    }
    sketch
}
