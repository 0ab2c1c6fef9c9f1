//! How long a plan takes by arithmetic (the bar is 5 ms), for a 70B header with a vocabulary of 128k tokens.
#![allow(missing_docs)] // criterion's macros make public functions.

#[path = "../tests/shapes/mod.rs"]
mod shapes;

use std::hint::black_box;

use autoplace::gguf::Header;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::{Planner, Request};
use autoplace::profile::ModelProfile;
use criterion::{Criterion, criterion_group, criterion_main};

/// A 70B header whose vocabulary is listed, as in a real file.
fn header() -> Header {
    let tokens = (0..128_256).map(|token| format!("token{token}"));
    let builder = shapes::LLAMA_70B
        .builder()
        .array_str("tokenizer.ggml.tokens", tokens);
    builder.header().unwrap()
}

fn planning(criterion: &mut Criterion) {
    let header = header();
    let card = Gpu::new("RTX 4090").total(gib(24)).free(gib(22));
    let machine = Machine::new(Host::new(gib(64))).with_gpu(card);
    let mut group = criterion.benchmark_group("planning a 70B model");
    group.bench_function("profile from a parsed header", |bencher| {
        bencher.iter(|| ModelProfile::from_header(black_box(&header)).unwrap());
    });
    let profile = ModelProfile::from_header(&header).unwrap();
    group.bench_function("plan from a profile", |bencher| {
        bencher.iter(|| {
            Planner::new(black_box(&profile), &machine)
                .request(Request::new())
                .plan()
                .unwrap()
        });
    });
    group.bench_function("plan from a parsed header", |bencher| {
        bencher.iter(|| {
            let profile = ModelProfile::from_header(black_box(&header)).unwrap();
            Planner::new(&profile, &machine).plan().unwrap()
        });
    });
    group.finish();
}

criterion_group!(benches, planning);
criterion_main!(benches);
