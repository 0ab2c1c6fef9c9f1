//! Measures the time of a plan, from the file to the result. A plan by arithmetic has a limit of 5 ms. A plan that
//! llama.cpp confirms has a limit of 150 ms on a simulated card of 24 GiB, and of 400 ms on four cards of 8 GiB. The
//! files are a 70B model with a vocabulary of 128k tokens, and three other models.
#![allow(missing_docs)] // criterion's macros make public functions.

mod files;

use std::hint::black_box;
use std::path::Path;

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::NativeProbe;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::{Planner, Request};
use autoplace::profile::ModelProfile;
use criterion::{Criterion, criterion_group, criterion_main};

fn request() -> Request {
    Request::new().n_ctx(8192)
}

fn card(size: u64) -> Gpu {
    Gpu::new("RTX 4090").total(gib(size)).backend("CUDA")
}

fn machine(gpus: impl IntoIterator<Item = Gpu>) -> Machine {
    gpus.into_iter().fold(Machine::new(Host::new(gib(64))), Machine::with_gpu)
}

fn profile(path: &Path) -> (Header, ModelProfile) {
    let header = Header::open(path).unwrap();
    let profile = ModelProfile::from_header(&header).unwrap();
    (header, profile)
}

/// The stages of a plan by arithmetic, for the 70B file.
fn parts(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let path = files::LLAMA_70B.write(folder.path());
    let (header, profile) = profile(&path);
    let machine = machine([card(24)]);
    let mut group = criterion.benchmark_group(files::LLAMA_70B.name);
    group.bench_function("header from a file", |bencher| {
        bencher.iter(|| Header::open(black_box(&path)).unwrap());
    });
    group.bench_function("profile from a header", |bencher| {
        bencher.iter(|| ModelProfile::from_header(black_box(&header)).unwrap());
    });
    group.bench_function("plan from a profile", |bencher| {
        bencher.iter(|| {
            let planner = Planner::new(black_box(&profile), &machine).request(request());
            planner.plan().unwrap()
        });
    });
    group.finish();
}

/// A whole plan, as in `autoplace plan --no-probe`.
fn arithmetic(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let machine = machine([card(24)]);
    let mut group = criterion.benchmark_group("plan by arithmetic");
    for model in files::ALL {
        let path = model.write(folder.path());
        group.bench_function(model.name, |bencher| {
            bencher.iter(|| {
                let (_, profile) = profile(black_box(&path));
                let planner = Planner::new(&profile, &machine).request(request());
                planner.plan().unwrap()
            });
        });
    }
    group.finish();
}

/// A whole plan confirmed by llama.cpp, as in `autoplace plan`.
fn probed(criterion: &mut Criterion) {
    on_cards(criterion, "plan with probe", 1, 24);
    on_cards(criterion, "plan with probe for four GPUs", 4, 8);
}

fn on_cards(criterion: &mut Criterion, group: &str, n: usize, size: u64) {
    let folder = tempfile::tempdir().unwrap();
    let simulated =
        || SimGpu::builder("RTX 4090").total(gib(size)).rules(Rules::Cuda).backend("CUDA").register().unwrap();
    let cards: Vec<SimGpu> = (0..n).map(|_| simulated()).collect();
    let machine = machine(cards.iter().map(|registered| card(size).device(registered.device().name())));
    let mut group = criterion.benchmark_group(group);
    group.sample_size(20);
    for model in files::ALL {
        let path = model.write(folder.path());
        group.bench_function(model.name, |bencher| {
            bencher.iter(|| {
                let (header, profile) = profile(black_box(&path));
                let probe = NativeProbe::new(&header).unwrap();
                let planner = Planner::new(&profile, &machine).request(request());
                planner.plan_probed(&probe).unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parts, arithmetic, probed);
criterion_main!(benches);
