//! Models that can really be loaded and computed with: small, and with random weights.
//!
//! Their files are those of [`Sketch`], whose data is a hole; [`fill`] writes numbers into it.
#![allow(dead_code, unused_imports, reason = "each test uses some of it")]

mod blocks;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use autoplace::gguf::{Header, TensorType as T};

use crate::synthetic::{Dims, Sketch, computed};
pub(crate) use crate::synthetic::{computed_deep as deep, without_attention};
pub(crate) use blocks::Random;

/// The sizes of most of them.
pub(crate) const DIMS: Dims = Dims::of([4, 256, 768, 4, 2, 64, 512]);

/// Of each kind of memory one.
pub(crate) fn all() -> Vec<Sketch> {
    let mut all = computed();
    all.insert(8, deepseek2());
    all
}

/// The heads share one compressed key, of half the ranks that the models of the list have.
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

/// Writes the model's files into `folder` and returns the first.
pub(crate) fn write(sketch: &Sketch, folder: &Path) -> PathBuf {
    let path = sketch.write(folder);
    fill(&path);
    path
}

/// Gives every tensor of a model's files random values that stay finite through its blocks.
fn fill(path: &Path) {
    let header = Header::open(path).unwrap();
    let mut random = Random::new(1);
    for (number, shard) in header.shards().iter().enumerate() {
        let mut file = OpenOptions::new().write(true).open(shard.path()).unwrap();
        for tensor in header.tensors().filter(|tensor| tensor.shard() == number) {
            let data = random.tensor(tensor.name(), tensor.ty(), tensor.elements());
            assert_eq!(data.len() as u64, tensor.bytes(), "{}", tensor.name());
            file.seek(SeekFrom::Start(tensor.offset())).unwrap();
            file.write_all(&data).unwrap();
        }
    }
}
