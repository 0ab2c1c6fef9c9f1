//! Compares predicted speeds with the speeds of llama.cpp's own loop, in one run. First the rates of this machine's
//! processor are measured. From these rates the speeds of three models on the host are predicted. Then the speeds are
//! measured, for each model with two types of cache.
//!
//! The benchmark writes the model files itself. The models have real widths, few blocks and random weights. `cargo
//! bench -p autoplace-benches --bench prediction` prints the table of docs/speed-model.md. Without `--bench`, as in
//! `cargo test`, the same is done once with models of some megabytes. With `-- MODEL.gguf...`, it loads these files and
//! compares the predictions of the loads. The rates are those in the user's cache, or else those that the load
//! measures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use autoplace::Model;
use autoplace::gguf::{Header, TensorType as T};
use autoplace::llama_sys::Backend;
use autoplace::load::{RatesRequest, measure_rates};
use autoplace::machine::Machine;
use autoplace::memory::estimate::Assignment;
use autoplace::memory::{ContextParams, KvType};
use autoplace::plan::speed::{Rates, SpeedModel};
use autoplace::plan::{Request, Workload};
use autoplace::profile::ModelProfile;

use bare_llama::Bare;
use test_support::dims::{self, Dims, Mixture};
use test_support::synthetic::block::{Better, Block, Feed, QkNorms};
use test_support::synthetic::{SMALL, Sketch};

/// The sizes of phi-3-mini (3.8B), in which every head has its own keys.
const PHI3_MINI: Dims =
    Dims { n_layer: 32, n_embd: 3072, n_ff: 8192, n_head: 32, n_head_kv: 32, head_dim: 96, n_vocab: 32064 };

/// Blocks of each model. There are so few blocks that a deep context takes minutes instead of hours.
const BLOCKS: u64 = 4;
/// The number of tokens generated at each depth in each round. The median of their times is used.
const TOKENS: usize = 9;
/// The number of tokens at each depth if there is a limit on processor time. Generating this many takes several periods
/// of the quota.
const LIMITED_TOKENS: usize = 48;
/// The number of rounds. Each round measures its own rates, and the medians over the rounds count.
const ROUNDS: usize = 3;

/// The extent of the measurement.
struct Shape {
    caches: &'static [KvType],
    depths: &'static [u32],
    prompt: u32,
    rounds: usize,
    /// The time for the measurement of each rate, and the maximum number of bytes.
    each: Duration,
    working_set: Option<u64>,
}

fn main() {
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let shape = if is_measured {
        Shape {
            caches: &[KvType::F16, KvType::Q8_0],
            depths: &[64, 1024, 4096],
            prompt: 512,
            rounds: ROUNDS,
            each: Duration::from_millis(60),
            working_set: None,
        }
    } else {
        let (each, working_set) = (Duration::ZERO, Some(16 << 20));
        Shape { caches: &[KvType::F16], depths: &[16], prompt: 32, rounds: 1, each, working_set }
    };
    Backend::init().expect("llama.cpp starts");
    let files: Vec<PathBuf> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).map(PathBuf::from).collect();
    if files.iter().any(|file| file.is_file()) {
        println!("| model | | predicted | measured | of {ROUNDS} rounds | predicted / measured |");
        println!("|---|---|--:|--:|--:|--:|");
        files.iter().for_each(|file| compare_real(file));
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for the models");
    println!("| model | cache | | predicted | measured | predicted / measured |");
    println!("|---|---|---|--:|--:|--:|");
    for sketch in sketches(is_measured) {
        let path = sketch.write(folder.path());
        test_support::random_weights::fill_large(&path).expect("the model is written");
        for &kv in shape.caches {
            compare(sketch.name, &path, kv, &shape);
        }
        std::fs::remove_file(path).expect("the model is there");
    }
}

/// Three models: one with keys for each head, one with keys for four heads, and one with experts.
fn sketches(is_measured: bool) -> [Sketch; 3] {
    let width = |dims: Dims| match is_measured {
        true => Dims { n_layer: BLOCKS, ..dims },
        false => Dims { n_layer: 2, n_embd: 512, n_ff: 1024, n_vocab: 512, head_dim: 64, n_head: 8, ..SMALL },
    };
    let Mixture { dims, experts } = dims::QWEN3_30B_A3B;
    let mut mixture = Sketch::new("qwen3moe", "30B-A3B", width(dims));
    mixture.mixture(experts.n, experts.used, experts.ff);
    finish(&mut mixture, |block| Block {
        qk_norms: QkNorms::PerHead,
        feed: Feed::Experts { n: experts.n, ff: experts.ff, ty: T::Q4_K },
        ..block
    });
    let dense = |name, dims| {
        let mut sketch = Sketch::new("llama", name, width(dims));
        finish(&mut sketch, |block| block);
        sketch
    };
    [dense("3.8B, a key for each head", PHI3_MINI), dense("8B, a key for four heads", dims::LLAMA_8B), mixture]
}

/// Adds blocks with the types that `llama-quantize` chooses for `Q4_K_M`.
fn finish(sketch: &mut Sketch, change: impl FnOnce(Block) -> Block) {
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&change(Block { better: Better::Half, ..Block::new(T::Q4_K, T::Q6_K) }));
}

/// Prints a line for each depth, and one for a prompt.
fn compare(name: &str, path: &Path, kv: KvType, shape: &Shape) {
    let header = Header::open(path).expect("a header that was just written");
    let profile = ModelProfile::from_header(&header).expect("a model");
    let mut machine = Machine::detect();
    machine.gpus.clear();
    let threads = machine.host.compute_threads().unwrap_or(1);
    let n_ctx = shape.depths[shape.depths.len() - 1] + 256;
    let mut params = ContextParams::default();
    (params.n_ctx, params.type_k, params.type_v) = (n_ctx, kv, kv);
    let mut bare = load(path, &params, threads);
    let host = Assignment::by_counts(profile.n_layer(), &[]);
    let mut request = RatesRequest::for_model(&header, &profile, &[kv]);
    (request.each, request.working_set) = (shape.each, shape.working_set);
    let mut model = || {
        measure_rates(&mut machine, &request, Some(threads), |_| ()).expect("rates");
        SpeedModel::new(&profile, &params, Rates::for_devices(&[], &machine.host))
    };
    let mut rounds = |what: String, each: &mut dyn FnMut(&SpeedModel) -> (f64, f64)| {
        let pairs: Vec<(f64, f64)> = (0..shape.rounds).map(|_| each(&model())).collect();
        let of = |value: fn(&(f64, f64)) -> f64| median(pairs.iter().map(value).collect());
        let (predicted, measured) = (of(|pair| pair.0), of(|pair| pair.1));
        let ratio = of(|pair| pair.0 / pair.1);
        println!("| {name} | {kv} | {what} | {predicted:.2} | {measured:.2} | {ratio:.2} |");
    };
    let tokens = f64::from(shape.prompt);
    rounds(format!("prompt of {}", shape.prompt), &mut |model| {
        let seconds = model.prompt_seconds(&host, &Workload::new(shape.prompt, 0));
        (tokens / seconds, tokens / prompt(&mut bare, shape.prompt as usize))
    });
    for &depth in shape.depths {
        rounds(format!("after {depth}"), &mut |model| {
            let measured = 1.0 / token_after(&mut bare, depth);
            (model.tokens_per_second(&host, depth), measured)
        });
    }
}

/// Compares a load's plan of an existing file with llama.cpp's own loop.
fn compare_real(path: &Path) {
    const DEPTHS: [u32; 4] = [64, 512, 2048, 4096];
    let request = Request::new().n_ctx(8192).n_gpu_layers(0).n_ubatch(512).at(DEPTHS).workload(Workload::new(512, 64));
    let plan = Model::builder(path).request(request).plan().expect("a plan");
    let speed = plan.speed.expect("a prediction");
    let host = Machine::detect().host;
    let mut bare = load(path, &plan.context, host.compute_threads().unwrap_or(1));
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // The measurements take turns, because the speed of a shared machine changes within minutes.
    let mut prompts = Vec::new();
    let mut tokens = vec![Vec::new(); speed.generation.len()];
    for _ in 0..ROUNDS {
        prompts.push(prompt(&mut bare, 512));
        for (at, seconds) in speed.generation.iter().zip(&mut tokens) {
            // A quota stops some tokens but not others, so only the mean is the speed that a user observes.
            seconds.push(match host.cpu_limit {
                Some(_) => mean_after(&mut bare, at.depth),
                None => token_after(&mut bare, at.depth),
            });
        }
    }
    let line = |what: String, predicted: f64, measured: Vec<f64>| {
        let (slowest, fastest) =
            (measured.iter().copied().fold(f64::MAX, f64::min), measured.iter().copied().fold(0.0, f64::max));
        let measured = median(measured);
        println!(
            "| {name} | {what} | {predicted:.1} | {measured:.1} | {slowest:.1} to {fastest:.1} | {:.2} |",
            predicted / measured
        );
    };
    line(
        "prompt of 512".to_owned(),
        speed.prompt.tokens_per_second,
        prompts.iter().map(|seconds| 512.0 / seconds).collect(),
    );
    for (at, seconds) in speed.generation.iter().zip(&tokens) {
        let measured = seconds.iter().map(|seconds| 1.0 / seconds).collect();
        line(format!("after {}", at.depth), at.tokens_per_second, measured);
    }
    println!("(by {})", speed.basis);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The model on the host, in a context of this length and with this type of keys and values.
fn load(path: &Path, params: &ContextParams, threads: u32) -> Bare {
    let bare = Bare::load(path, 0, threads, |native| {
        native.n_ctx = params.n_ctx;
        let ty = params.type_k.tensor_type().id();
        (native.type_k, native.type_v) = (ty as _, ty as _);
    });
    bare.expect("llama.cpp loads the model")
}

/// Seconds of a prompt with this many tokens. Another prompt runs first and is not timed.
fn prompt(bare: &mut Bare, tokens: usize) -> f64 {
    let mut timed = || {
        bare.go_to(0).expect("the memory can be emptied");
        bare.step(tokens).expect("it computes").as_secs_f64()
    };
    timed();
    timed()
}

/// Seconds of a token after `depth` tokens: the median of some tokens.
fn token_after(bare: &mut Bare, depth: u32) -> f64 {
    bare.go_to(depth as usize).expect("the context has room");
    median((0..TOKENS).map(|_| bare.step(1).expect("it computes").as_secs_f64()).collect())
}

/// Seconds of a token after `depth` tokens: the mean of many tokens.
fn mean_after(bare: &mut Bare, depth: u32) -> f64 {
    bare.go_to(depth as usize).expect("the context has room");
    (0..LIMITED_TOKENS).map(|_| bare.step(1).expect("it computes").as_secs_f64()).sum::<f64>() / LIMITED_TOKENS as f64
}
