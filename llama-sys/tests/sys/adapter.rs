//! LoRA adapters and control vectors change only the computation. If one of them does not fit, that is an error.

use std::path::{Path, PathBuf};

use crate::support::sim::{MIB, card_by, context, demo_path, load, params, vulkan};
use crate::support::{batch_of, refused, tokens};
use autoplace_planner::gguf::{Header, TensorType};
use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{Context, Error, LoadMode, LoraAdapter, MemoryBreakdown, Model, ModelParams};
use tempfile::TempDir;
use test_support::lora::{Adapter, numbers};
use test_support::random_weights::DIMS;
use test_support::synthetic::Sketch;

/// The demo model on the host.
fn demo() -> Model {
    Model::load(demo_path(), params(&[], 0)).unwrap()
}

/// The demo model's width, and its blocks.
const WIDTH: u64 = 256;
const BLOCKS: usize = 6;

/// An adapter for the queries and values of the demo model.
fn of_attention(architecture: &str) -> Adapter {
    let takes = |name: &str| name.contains("attn_q") || name.contains("attn_v");
    Adapter::new(architecture).of_weights(&Header::open(demo_path()).unwrap(), 8, TensorType::F32, takes)
}

/// The file of an adapter whose numbers are large enough to have an effect.
fn file(adapter: &Adapter) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = adapter.write_random(folder.path(), "adapter", 1, 0.3);
    (folder, path)
}

/// The logits after a short prompt, in an empty cache.
fn logits(context: &mut Context) -> Vec<f32> {
    context.kv_clear().unwrap();
    let batch = batch_of(&tokens("In the beginning"), 0);
    context.decode(&batch).unwrap();
    context.logits(-1).unwrap().to_vec()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn an_adapter_changes_the_logits_by_its_scale_and_leaves_no_trace() {
    let model = demo();
    let mut context = context(&model);
    let plain = logits(&mut context);
    let (_folder, path) = file(&of_attention("llama"));
    let adapter = LoraAdapter::load(&model, &path).unwrap();
    // An adapter that is loaded but not set has no effect.
    assert_eq!(logits(&mut context), plain);
    let mut at = |scale| {
        context.set_lora(&[(adapter.clone(), scale)]).unwrap();
        furthest(&logits(&mut context), &plain)
    };
    let (half, whole) = (at(0.5), at(1.0));
    assert!(half > 0.0 && whole > half, "{half} {whole}");
    assert_eq!(at(0.0), 0.0);
    context.set_lora(&[(adapter.clone(), 1.0)]).unwrap();
    let changed = logits(&mut context);
    // The context keeps the adapter and the model loaded.
    drop((adapter, model));
    assert_eq!(logits(&mut context), changed);
    context.set_lora(&[]).unwrap();
    assert_eq!(logits(&mut context), plain);
}

#[test]
fn an_adapter_of_another_load_and_one_that_is_there_twice_are_refused() {
    let (_folder, path) = file(&of_attention("llama"));
    let (model, other) = (demo(), demo());
    let mut context = context(&model);
    let adapter = LoraAdapter::load(&model, &path).unwrap();
    let foreign = LoraAdapter::load(&other, &path).unwrap();
    assert_eq!(refused(context.set_lora(&[(foreign, 1.0)])), "adapters");
    let twice = [(adapter.clone(), 1.0), (adapter.clone(), 0.5)];
    assert_eq!(refused(context.set_lora(&twice)), "adapters");
    for scale in [f32::NAN, f32::INFINITY] {
        let scaled = [(adapter.clone(), scale)];
        assert_eq!(refused(context.set_lora(&scaled)), "scales");
    }
    assert!(context.is_usable() && context.lora().is_empty());
}

/// A model in NVFP4. In each feed-forward step, the first matrix has a scale.
fn scaled(folder: &Path) -> PathBuf {
    let mut sketch = Sketch::new("llama", "scaled", DIMS);
    sketch.ends(TensorType::Q8_0, None);
    for il in 0..DIMS.n_layer {
        sketch.norms(il);
        sketch.attention(il, TensorType::Q8_0);
        sketch.feed_forward(il, TensorType::NVFP4, TensorType::NVFP4);
        sketch.vector(il, "ffn_up.scale", 1);
    }
    sketch.write(folder)
}

/// llama.cpp would fail an assertion when it builds a graph with the adapter.
#[test]
fn an_adapter_for_a_weight_with_a_scale_is_an_error_that_names_the_weight() {
    let folder = tempfile::tempdir().unwrap();
    let path = scaled(folder.path());
    let header = Header::open(&path).unwrap();
    let params = ModelParams { no_alloc: true, load_mode: LoadMode::None, ..params(&[], 0) };
    let model = Model::load(&path, params).unwrap();
    let load = |weight: &str| {
        let adapter = Adapter::new("llama").of_weights(&header, 8, TensorType::F32, |name| name == weight);
        LoraAdapter::load(&model, adapter.write(folder.path(), "adapter"))
    };
    let error = load("blk.1.ffn_up.weight").unwrap_err();
    assert!(error.to_string().contains("blk.1.ffn_up.weight"), "{error}");
    load("blk.1.ffn_down.weight").unwrap();
    load("blk.1.attn_q.weight").unwrap();
}

#[test]
fn a_wrong_file_is_an_error_that_names_the_reason() {
    assert_matches!(LoraAdapter::load(&demo(), "/nonexistent/adapter.gguf"), Err(Error::Unreadable { .. }));
    let error = LoraAdapter::load(&demo(), demo_path()).unwrap_err();
    assert!(error.to_string().contains("general.type"), "{error}");
    let lora = || of_attention("llama");
    let of_a_square = |weight| lora().pair(weight, [WIDTH, WIDTH, 1, 1], 8, TensorType::F32);
    for (adapter, cut, expected) in [
        (of_attention("qwen2"), 0, "arch"),
        (lora().with(|file| file.str("adapter.type", "control")), 0, "adapter.type"),
        (lora().tensor("blk.0.attn_k.weight.lora_a", TensorType::F32, &[WIDTH, 8]), 0, "blk.0.attn_k.weight"),
        (of_a_square("blk.77.attn_q.weight"), 0, "blk.77"),
        (of_a_square("blk.1.attn_k.weight"), 0, "blk.1.attn_k.weight"),
        (lora(), 64, "file bounds"),
        // This key has a text as its value, and not a number. ggml would fail an assertion on it.
        (lora().with(|file| file.str("adapter.lora.alpha", "eight")), 0, ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = adapter.write(folder.path(), "adapter");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - cut).unwrap();
        let reason = match LoraAdapter::load(&demo(), &path) {
            Err(Error::AdapterLoad { failure, .. }) => failure.reason,
            other => panic!("expected a refused adapter, got {other:?}"),
        };
        assert!(reason.contains(expected) && !reason.is_empty(), "{expected}: {reason}");
    }
}

#[test]
fn an_adapter_without_a_possible_graph_is_an_error() {
    // ggml refuses to multiply a weight with two matrices of three dimensions.
    let lora = of_attention("llama").tensor("blk.0.ffn_up.weight.lora_a", TensorType::F32, &[WIDTH, 4, 3]);
    let lora = lora.tensor("blk.0.ffn_up.weight.lora_b", TensorType::F32, &[4, 512, 3]);
    let (_folder, path) = file(&lora);
    let model = demo();
    let adapter = LoraAdapter::load(&model, &path).unwrap();
    let mut context = context(&model);
    let error = context.set_lora(&[(adapter, 1.0)]).unwrap_err();
    assert_matches!(error, Error::Call { .. });
    assert!(!context.is_usable());
}

#[test]
fn a_control_vector_of_zeros_changes_nothing_and_another_one_does() {
    let model = demo();
    let mut context = context(&model);
    let plain = logits(&mut context);
    let width = WIDTH as usize;
    let length = width * (BLOCKS - 1);
    let zeros = vec![0.0; length];
    context.set_control_vector(&zeros, 1..=99).unwrap();
    assert_eq!(logits(&mut context), plain);
    let vector: Vec<f32> = std::iter::repeat_with(numbers(7, 0.5)).take(length).collect();
    context.set_control_vector(&vector, 1..=99).unwrap();
    let changed = logits(&mut context);
    assert!(furthest(&changed, &plain) > 0.0);
    // A smaller range of layers, or data for only the first layer, changes the logits in another way.
    context.set_control_vector(&vector, 2..=3).unwrap();
    let within = logits(&mut context);
    let short = &vector[..width];
    context.set_control_vector(short, 1..=99).unwrap();
    let first = logits(&mut context);
    assert!(furthest(&within, &changed) > 0.0 && furthest(&first, &changed) > 0.0);
    context.set_control_vector(&[], 1..=1).unwrap();
    assert_eq!(logits(&mut context), plain);
    let (long, nan) = (vec![0.0; width * BLOCKS], vec![f32::NAN; width]);
    for (data, layers, parameter) in [
        (&vector[1..], 1..=9, "len"),
        (&long[..], 1..=9, "len"),
        (&vector[..], 0..=9, "layers"),
        (&nan[..], 1..=9, "data"),
    ] {
        assert_eq!(refused(context.set_control_vector(data, layers)), parameter);
    }
    assert!(context.is_usable());
}

#[test]
fn cards_hold_what_the_breakdown_says_with_data_and_without() {
    own_process!();
    let (_folder, path) = file(&of_attention("llama").pair("output.weight", [WIDTH, 1024, 1, 1], 8, TensorType::F32));
    for rules in [Rules::Plain, Rules::Cuda, vulkan(256, MIB), Rules::Metal] {
        let gpus = [24, 8].map(|mib| card_by(rules, mib * MIB));
        for n_gpu_layers in [0, 1, 4, 7] {
            let with_all = |model: &Model| {
                let adapter = LoraAdapter::load(model, &path).unwrap();
                let mut context = context(model);
                context.set_lora(&[(adapter, 1.0)]).unwrap();
                context.set_control_vector(&[0.1; WIDTH as usize], 1..=5).unwrap();
                let breakdown = context.memory_breakdown().unwrap();
                (breakdown, context)
            };
            let model = load(&gpus.each_ref(), n_gpu_layers);
            let (loaded, mut context) = with_all(&model);
            for gpu in &gpus {
                let on_card: u64 = loaded.on(&gpu.device()).map(|row| row.total() + row.adapters).sum();
                assert_eq!(on_card, gpu.used(), "{rules:?} {n_gpu_layers}");
            }
            logits(&mut context);
            drop((context, model));
            assert!(gpus.iter().all(|gpu| gpu.used() == 0));

            let devices = gpus.each_ref().map(SimGpu::device);
            let mut without_data = params(&devices, n_gpu_layers);
            (without_data.no_alloc, without_data.load_mode) = (true, LoadMode::None);
            let (asked, _context) = with_all(&Model::load(demo_path(), without_data).unwrap());
            for device in &devices {
                // The sums of the bytes on each device. The host is left out, because its buffer type has another name
                // if the file is mapped.
                let of = |all: &MemoryBreakdown| {
                    let rows = all.on(device).map(|row| (row.adapters, row.compute));
                    rows.fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
                };
                assert_eq!(of(&asked), of(&loaded), "{rules:?} {n_gpu_layers}");
            }
        }
    }
}
