//! Matrices and signs that llama.cpp makes for weights that are stored in folded form. For a model without data, the
//! same bytes are counted for them as in a real load.

use std::path::{Path, PathBuf};

use crate::support::sim::{MIB, are_empty, card, context, params};
use autoplace_planner::gguf::TensorType;
use llama_sys::{BufferUse, LoadMode, MemoryBreakdown, Model, ModelParams};
use test_support::random_weights::{self, DIMS};
use test_support::synthetic::Sketch;

/// The size of the matrices, and the widths of the folded weights.
const SIZE: u32 = 64;
const WIDTHS: [i32; 2] = [256, 768];

/// A model whose weights for queries and for the output of the feed-forward step are folded.
fn folded(widths: &[i32], folder: &Path) -> PathBuf {
    let mut sketch = Sketch::new("llama", "folded", DIMS);
    sketch.ends(TensorType::Q8_0, Some(TensorType::Q8_0));
    for il in 0..DIMS.n_layer {
        sketch.norms(il);
        sketch.attention(il, TensorType::Q8_0);
        sketch.feed_forward(il, TensorType::Q8_0, TensorType::Q8_0);
    }
    let weights = (0..DIMS.n_layer).flat_map(|il| ["attn_q", "ffn_down"].map(|name| format!("blk.{il}.{name}.weight")));
    sketch.folded(SIZE, widths, &weights.collect::<Vec<_>>());
    random_weights::write(&sketch, folder)
}

fn transforms<'a>(rows: impl Iterator<Item = &'a BufferUse>) -> u64 {
    rows.map(|row| row.transforms).sum()
}

#[test]
fn transforms_of_folded_weights_are_counted_without_data_as_with_it() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = folded(&WIDTHS, folder.path());
    let gpu = card(256 * MIB);
    // For each width, the bytes of a matrix and of a vector. They exist once in each memory that has such weights.
    let once = 4 * (64 * 64 + 256 + 768);
    for (n_gpu_layers, on_card, on_host) in [(0, 0, once), (2, once, once), (-1, once, 0)] {
        let read = || ModelParams { load_mode: LoadMode::None, ..params(&[gpu.device()], n_gpu_layers) };
        let breakdown = |params: ModelParams| -> MemoryBreakdown {
            let model = Model::load(&path, params).unwrap();
            let context = context(&model);
            let breakdown = context.memory_breakdown().unwrap();
            let counted: u64 = breakdown.on(&gpu.device()).map(BufferUse::total).sum();
            let taken = if context.model().is_no_alloc() { 0 } else { counted };
            assert_eq!(gpu.used(), taken, "{n_gpu_layers} layers");
            breakdown
        };
        let with_data = breakdown(read());
        assert_eq!(transforms(with_data.on(&gpu.device())), on_card, "{n_gpu_layers} layers");
        assert_eq!(transforms(with_data.on_host()), on_host, "{n_gpu_layers} layers");
        assert_eq!(breakdown(ModelParams { no_alloc: true, ..read() }), with_data, "{n_gpu_layers} layers");
        are_empty([&gpu]);
    }
}

#[test]
fn a_model_without_data_is_refused_for_the_reason_of_the_real_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folded(&WIDTHS[..1], folder.path());
    for no_alloc in [false, true] {
        let params = ModelParams { no_alloc, load_mode: LoadMode::None, ..params(&[], 0) };
        let error = Model::load(&path, params).unwrap_err().to_string();
        assert!(error.contains("has no sign vector for width 768"), "{error}");
    }
}
