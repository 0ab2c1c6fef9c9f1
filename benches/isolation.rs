//! What a process of its own costs: a model in this process against the same model in a worker, same prompt, seed, threads and context,
//! turn by turn. Prints the ratio of the medians of the paired rounds.
//!
//!     cargo bench -p autoplace-benches --bench isolation

use std::time::{Duration, Instant};

use autoplace::{Isolation, Model, WorkerProcess};

const DEMO_MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/model/autoplace-demo-q8_0.gguf"
);
const PROMPT: &str = "And it came to pass";
const TOKENS: usize = 200;
const SEED: u32 = 42;

fn main() {
    autoplace::worker_main();

    // `cargo test` runs benches too, without this argument: one round shows that it works.
    let rounds = if std::env::args().any(|arg| arg == "--bench") {
        60
    } else {
        1
    };
    let path = std::env::var("AUTOPLACE_BENCH_MODEL").unwrap_or_else(|_| DEMO_MODEL.into());
    for threads in [1, 2] {
        let load = |isolation| {
            let model = Model::builder(&path).threads(threads).isolation(isolation);
            model.load().expect("the model loads")
        };
        let here = load(Isolation::None);
        let there = load(Isolation::Process(WorkerProcess::own_executable()));
        // Both caches and both code paths warm.
        assert_eq!(
            generate(&here).1,
            generate(&there).1,
            "both generate the same number of tokens"
        );
        let mut pairs = Vec::new();
        for round in 0..rounds {
            // Who goes first alternates, so that a drifting clock speed favours nobody.
            let (a, b) = if round % 2 == 0 {
                let a = generate(&here);
                (a, generate(&there))
            } else {
                let b = generate(&there);
                (generate(&here), b)
            };
            pairs.push((per_token(a), per_token(b)));
        }
        let here = median(pairs.iter().map(|pair| pair.0));
        let there = median(pairs.iter().map(|pair| pair.1));
        let ratio = median(pairs.iter().map(|pair| pair.0 / pair.1));
        println!(
            "{threads} thread(s), {rounds} rounds of up to {TOKENS} tokens: in this process {here:.2} us/token, in a worker \
             {there:.2} us/token; speed ratio {ratio:.4} (median of pairs)"
        );
    }
}

/// From the question to the last piece, the prompt included, and the tokens generated.
fn generate(model: &Model) -> (Duration, usize) {
    let started = Instant::now();
    let mut stream = model
        .generate(PROMPT)
        .seed(SEED)
        .max_tokens(TOKENS)
        .stream()
        .expect("the prompt fits");
    let mut bytes = 0;
    for piece in &mut stream {
        bytes += piece.expect("the model generates").len();
    }
    std::hint::black_box(bytes);
    (started.elapsed(), stream.statistics().generated_tokens)
}

/// Microseconds per token.
fn per_token((time, tokens): (Duration, usize)) -> f64 {
    time.as_secs_f64() * 1e6 / tokens as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
