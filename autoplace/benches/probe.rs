//! Measures the time of a probe of a 70B model with a vocabulary of 128k tokens (limit 25 ms), and of its stages.
//!
//! The last line has the time without a skeleton: `no_alloc` with the model's own header.
#![allow(missing_docs)] // criterion's macros make public functions.

use std::hint::black_box;
use std::path::Path;

use autoplace::gguf::{Builder, Header};
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Context, LoadMode, Model, ModelParams};
use autoplace::load::NativeProbe;
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{ContextParams, Split};
use criterion::{Criterion, criterion_group, criterion_main};

/// A 70B header with a full vocabulary, as in a real file.
fn model() -> Builder {
    const TOKENS: usize = 128_256;
    let tokens = (0..TOKENS).map(|token| format!("token{token}"));
    let merges = (0..TOKENS).map(|token| format!("to ken{token}"));
    test_support::shapes::LLAMA_70B
        .builder()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "llama-bpe")
        .array_str("tokenizer.ggml.tokens", tokens)
        .array_str("tokenizer.ggml.merges", merges)
        .array_i32("tokenizer.ggml.token_type", &[1; TOKENS])
}

/// A card, and its description for the planner.
fn card() -> (SimGpu, Gpu) {
    let sim = SimGpu::builder("SIM").total(gib(80)).rules(Rules::Cuda);
    let sim = sim.register().unwrap();
    let gpu = Gpu::new("SIM").device(sim.device().name());
    let gpu = gpu.total(gib(80)).backend("CUDA");
    (sim, gpu)
}

fn probing(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model().write_sparse(&path).unwrap();
    let header = Header::open(&path).unwrap();
    let probe = NativeProbe::new(&header).unwrap();
    let cards = [card(), card(), card()];
    let gpus = cards.each_ref().map(|(_, gpu)| gpu);
    let params = ContextParams::default();

    let mut group = criterion.benchmark_group("probing a 70B model");
    group.sample_size(20);
    group.bench_function("skeleton, once per model", |bencher| {
        bencher.iter(|| NativeProbe::new(black_box(&header)).unwrap());
    });
    for (name, gpus, n_gpu_layers) in [
        ("the host alone", &gpus[..0], 0),
        ("half of it on one GPU", &gpus[..1], 40),
        ("all of it on one GPU", &gpus[..1], 81),
        ("all of it on three GPUs", &gpus[..], 81),
    ] {
        let split = Split::layers(n_gpu_layers).tensor_split(vec![1.0; gpus.len()]);
        group.bench_function(name, |bencher| {
            bencher.iter(|| probe.breakdown(gpus, &params, &split).unwrap());
        });
    }
    group.bench_function("without a skeleton", |bencher| {
        bencher.iter(|| whole(&path, &cards[0].0));
    });
    group.finish();
}

/// llama.cpp's own way, without a skeleton.
fn whole(path: &Path, card: &SimGpu) {
    let model = Model::load(
        path,
        ModelParams {
            n_gpu_layers: 40,
            devices: Some(vec![card.device()]),
            load_mode: LoadMode::None,
            no_alloc: true,
            ..ModelParams::default()
        },
    );
    let params = llama_sys::ContextParams { n_ctx: 4096, n_outputs_max: 1, ..llama_sys::ContextParams::default() };
    let context = Context::new(&model.unwrap(), params).unwrap();
    black_box(context.memory_breakdown().unwrap());
}

criterion_group!(benches, probing);
criterion_main!(benches);
