//! Measures the generation speed of each layer split. There is one group per device, with one point per `n_gpu_layers`.
//!
//!     cargo bench -p autoplace-benches --bench layer_split
//!     AUTOPLACE_BENCH_MODEL=model.gguf cargo bench -p autoplace-benches --bench layer_split
//!
//! On a machine without a GPU there is only the group of the host, with one point.

#![allow(missing_docs, reason = "criterion's macros")]

use std::path::PathBuf;
use std::time::Duration;

use autoplace::generate::TokenStream;
use autoplace::machine::Machine;
use autoplace::plan::GpuLayers;
use autoplace::{Model, load};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const DEMO_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
/// Tokens of one generation. All points of the curve have the same depth.
const TOKENS: usize = 64;

fn layer_split(c: &mut Criterion) {
    let path = std::env::var_os("AUTOPLACE_BENCH_MODEL").map_or_else(|| DEMO_MODEL.into(), PathBuf::from);
    let machine = load::detect().expect("the native code runs here");

    let host_alone = Machine::new(machine.host.clone());
    let layers = measure(c, "host", &path, &host_alone, 0..=0);
    for gpu in &machine.gpus {
        let name = gpu.device.as_deref().unwrap_or(&gpu.name);
        measure(c, name, &path, &host_alone.clone().with_gpu(gpu.clone()), 1..=layers);
    }
}

/// Measures those of the `splits` that fit, and returns the number of the model's layers.
fn measure(
    c: &mut Criterion,
    device: &str,
    path: &PathBuf,
    machine: &Machine,
    splits: std::ops::RangeInclusive<u32>,
) -> u32 {
    let mut group = c.benchmark_group(format!("layer_split/{device}"));
    group.throughput(Throughput::Elements(1)).sample_size(10);
    let mut layers = 0;
    for n in splits {
        let loaded = Model::builder(path).machine(machine.clone()).n_gpu_layers(GpuLayers::Exactly(n)).load();
        let model = match loaded {
            Ok(model) => model,
            Err(error) => {
                eprintln!("{n} layers on {device}: skipped: {error}");
                continue;
            }
        };
        layers = model.placement().layers();
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter_custom(|tokens| generate(&model, tokens));
        });
    }
    layers
}

/// The time to generate `tokens` tokens, not including the prompts.
fn generate(model: &Model, tokens: u64) -> Duration {
    let (mut done, mut seed) = (0, 0);
    let mut time = Duration::ZERO;
    while done < tokens {
        // Later texts have other seeds, so that a text that ends early is not generated again.
        let generate = model.generate("And it came to pass").max_tokens(TOKENS).seed(seed);
        let (_, stats) = generate.stream().and_then(TokenStream::into_text).expect("the model generates");
        done += stats.generated_tokens.saturating_sub(1) as u64;
        time += stats.generation_time;
        seed += 1;
    }
    time.mul_f64(tokens as f64 / done as f64)
}

criterion_group!(benches, layer_split);
criterion_main!(benches);
