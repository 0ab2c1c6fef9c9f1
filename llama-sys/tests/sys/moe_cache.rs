//! A cache of experts on a card changes no result, takes exactly the counted bytes, and is refused if llama.cpp could
//! not use it.

use std::path::{Path, PathBuf};

use crate::support::refused;
use crate::support::sim::{MIB, are_empty, card, context_params, params};
use llama_sys::sim::SimGpu;
use llama_sys::{
    Backend, Batch, Context, ContextParams, Device, DeviceKind, Error, LoadMode, Model, ModelParams, MoeCacheShape,
    TensorOverride,
};
use test_support::random_weights;

/// A small model with experts.
fn file(folder: &Path) -> PathBuf {
    let mut all = random_weights::all().into_iter();
    random_weights::write(&all.find(|sketch| sketch.arch == "qwen3moe").unwrap(), folder)
}

/// Parameters with all layers on the card, but all experts on the host.
fn experts_on_the_host(gpu: &SimGpu) -> ModelParams {
    let mut devices = Backend::init().unwrap().devices().into_iter();
    let cpu: Device = devices.find(|device| device.kind() == DeviceKind::Cpu).unwrap();
    let overrides = vec![TensorOverride { pattern: "_exps".to_owned(), device: cpu }];
    ModelParams { overrides, ..params(&[gpu.device()], -1) }
}

fn cached(moe_cache_size: u64) -> ContextParams {
    ContextParams { moe_cache_size, ..context_params() }
}

/// The logits after a prompt, and after each of the tokens that follow it.
fn logits(context: &mut Context) -> Vec<f32> {
    let mut all = Vec::new();
    let mut batch = Batch::default();
    for (start, length) in [(0, 5), (5, 1), (6, 1), (7, 1), (8, 40), (48, 1)] {
        batch.clear();
        for position in start..start + length {
            batch.add(3 + position * 7, position, 0, position + 1 == start + length);
        }
        context.decode(&batch).unwrap();
        all.extend_from_slice(context.logits(-1).unwrap());
    }
    all
}

/// The bytes of the cache on the card, and of the cache's slots on the host.
fn experts(context: &Context, gpu: &SimGpu) -> (u64, u64) {
    let breakdown = context.memory_breakdown().unwrap();
    let on_card = breakdown.on(&gpu.device()).map(|row| row.experts).sum();
    (on_card, breakdown.on_host().map(|row| row.experts).sum())
}

#[test]
fn a_cache_changes_no_logits_and_takes_at_most_its_size() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    let gpu = card(256 * MIB);
    let model = Model::load(&path, experts_on_the_host(&gpu)).unwrap();
    let MoeCacheShape { n_layer, n_gpu, least_bytes, most_bytes, .. } = model.moe_cache_shape().unwrap();
    assert_eq!((n_layer, n_gpu), (model.shape().n_layer, 1));
    assert!(0 < least_bytes && least_bytes < most_bytes, "{least_bytes} of {most_bytes}");
    let without = {
        let mut context = Context::new(&model, cached(0)).unwrap();
        assert_eq!(experts(&context, &gpu), (0, 0));
        logits(&mut context)
    };
    for size in [most_bytes / 2, most_bytes, most_bytes * 4] {
        let mut context = Context::new(&model, cached(size)).unwrap();
        let (on_card, on_host) = experts(&context, &gpu);
        assert!(0 < on_card && on_card <= size.min(most_bytes) && on_host > 0, "{on_card} and {on_host} of {size}");
        assert!(logits(&mut context) == without, "with {size} bytes");
    }
    drop(model);
    are_empty([&gpu]);
}

#[test]
fn an_expert_is_loaded_once_if_all_have_room() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = card(256 * MIB);
    let model = Model::load(file(folder.path()), experts_on_the_host(&gpu)).unwrap();
    let shape = model.moe_cache_shape().unwrap();
    let mut context = Context::new(&model, cached(shape.most_bytes)).unwrap();
    assert_eq!(context.moe_cache_uses().unwrap().hit_rate(), None);
    logits(&mut context);
    let first = context.moe_cache_uses().unwrap();
    // Each token uses two of the eight experts. Only batches of at most 32 tokens count. In the last layer all batches
    // count, even the one with 40 tokens, because only one output of each batch is computed there (models/qwen3moe.cpp,
    // `inp_out_ids`).
    let (n_used, n_expert, n_before) = (2, 8, u64::from(shape.n_layer) - 1);
    let (tokens, outputs) = (5 + 1 + 1 + 1 + 1, 6);
    assert_eq!(first.hits + first.misses, n_used * (tokens * n_before + outputs));
    assert!(first.misses <= n_expert * u64::from(shape.n_layer), "{first:?}");
    context.kv_clear().unwrap();
    logits(&mut context);
    let second = context.moe_cache_uses().unwrap();
    assert_eq!((second.misses, second.hits), (first.misses, 2 * first.hits + first.misses));
    assert_eq!(Context::new(&model, cached(0)).unwrap().moe_cache_uses(), None);
}

#[test]
fn a_model_without_data_reports_the_same_bytes() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    let gpu = card(256 * MIB);
    let model = Model::load(&path, experts_on_the_host(&gpu)).unwrap();
    let params = ModelParams { no_alloc: true, load_mode: LoadMode::None, ..experts_on_the_host(&gpu) };
    let without_data = Model::load(&path, params).unwrap();
    let shape = model.moe_cache_shape().unwrap();
    assert_eq!(without_data.moe_cache_shape().unwrap(), shape);
    for size in [shape.most_bytes / 2, shape.most_bytes] {
        let told = experts(&Context::new(&without_data, cached(size)).unwrap(), &gpu);
        assert_eq!(told, experts(&Context::new(&model, cached(size)).unwrap(), &gpu), "{size} bytes");
    }
}

#[test]
fn an_impossible_cache_is_refused() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    let gpu = card(256 * MIB);
    let model = Model::load(&path, experts_on_the_host(&gpu)).unwrap();
    let shape = model.moe_cache_shape().unwrap();
    assert_eq!(refused(Context::new(&model, cached(shape.least_bytes - 1))), "moe_cache_size");
    let on_host = Model::load(&path, params(&[], 0)).unwrap();
    assert_eq!(refused(Context::new(&on_host, cached(shape.most_bytes))), "moe_cache_size");
    // If there are no experts on the host, llama.cpp logs a warning and makes no cache.
    let on_card = Model::load(&path, params(&[gpu.device()], -1)).unwrap();
    assert_eq!(on_card.moe_cache_shape().unwrap().n_layer, 0);
    let context = Context::new(&on_card, cached(shape.most_bytes)).unwrap();
    assert_eq!(experts(&context, &gpu), (0, 0));
    drop((context, on_card));

    // This cache is larger than the card's free memory.
    let weights = gpu.used();
    let taken = {
        let _context = Context::new(&model, cached(0)).unwrap();
        gpu.used()
    };
    assert!(taken > weights);
    let small = card(taken + shape.most_bytes / 2);
    let model = Model::load(&path, experts_on_the_host(&small)).unwrap();
    let error = Context::new(&model, cached(shape.most_bytes)).unwrap_err();
    assert_matches!(error, Error::ContextInit { .. });
    assert!(error.out_of_memory().is_some(), "{error:?}");
    assert_eq!(small.used(), weights);
}

#[test]
fn the_compute_buffers_are_those_of_the_breakdown_and_grow_only_with_a_reallocation() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let gpu = card(256 * MIB);
    let model = Model::load(file(folder.path()), experts_on_the_host(&gpu)).unwrap();
    let mut context = Context::new(&model, cached(0)).unwrap();
    let counted = |context: &Context| -> u64 {
        let breakdown = context.memory_breakdown().unwrap();
        breakdown.rows.iter().map(|row| row.compute).sum()
    };
    let before = context.compute_buffers();
    assert!(before.bytes > 0);
    assert_eq!(before.bytes, counted(&context));
    assert_eq!((before.reallocations_same_size, before.reallocations_other_size), (0, 0));
    logits(&mut context);
    let after = context.compute_buffers();
    assert_eq!(after.bytes, counted(&context));
    assert!(after.bytes >= before.bytes);
    // When the same is computed again, no more memory is needed.
    context.kv_clear().unwrap();
    logits(&mut context);
    assert_eq!(context.compute_buffers().bytes, after.bytes);
}
