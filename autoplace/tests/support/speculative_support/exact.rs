//! Small models that compute with 32 bits throughout, so that it makes no difference to any choice how many tokens are
//! computed together: where activations are rounded to 8 bits, the last bit of a sum can turn up in a choice.

use std::path::{Path, PathBuf};

use autoplace::gguf::TensorType as T;

use crate::random_weights;
use crate::synthetic::{Dims, Sketch};

const DIMS: Dims = Dims { n_layer: 2, n_embd: 64, n_ff: 128, n_head: 2, n_head_kv: 1, head_dim: 32, n_vocab: 512 };

/// Attention to everything.
pub(crate) fn llama(folder: &Path) -> PathBuf {
    let mut sketch = Sketch::new("llama", "32 bits", DIMS);
    sketch.ends(T::F32, Some(T::F32));
    for il in 0..DIMS.n_layer {
        sketch.norms(il);
        sketch.attention(il, T::F32);
        sketch.feed_forward(il, T::F32, T::F32);
    }
    write(sketch, folder)
}

/// Three blocks of four look back a window only.
pub(crate) fn olmo2(folder: &Path) -> PathBuf {
    let dims = Dims { n_layer: 4, n_head_kv: 2, ..DIMS };
    let mut sketch = Sketch::new("olmo2", "32 bits, window 64", dims);
    sketch.u32("attention.sliding_window", 64);
    sketch.ends(T::F32, Some(T::F32));
    for il in 0..dims.n_layer {
        sketch.attention(il, T::F32);
        sketch.vector(il, "attn_q_norm.weight", dims.q());
        sketch.vector(il, "attn_k_norm.weight", dims.kv());
        sketch.vector(il, "post_attention_norm.weight", dims.n_embd);
        sketch.vector(il, "post_ffw_norm.weight", dims.n_embd);
        sketch.feed_forward(il, T::F32, T::F32);
    }
    write(sketch, folder)
}

fn write(mut sketch: Sketch, folder: &Path) -> PathBuf {
    sketch.vocabulary();
    sketch.u32("context_length", 2048);
    random_weights::write(&sketch, folder)
}
