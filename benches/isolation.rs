//! Measures the cost of a worker process. A model in this process and the same model in a worker take turns, with the
//! same prompt, seed, threads and context. Prints the ratio of the medians of the paired rounds.
//!
//!     cargo bench -p autoplace-benches --bench isolation

mod paired;

use std::time::Instant;

use autoplace::{Isolation, Model, WorkerProcess};
use paired::{PROMPT, Paired, Run, SEED, model_path, paired, tokens};

fn main() {
    autoplace::worker_main();

    for threads in [1, 2] {
        let load = |isolation| {
            let model = Model::builder(model_path()).n_threads(threads);
            let model = model.isolation(isolation).load();
            model.expect("the model loads")
        };
        let here = load(Isolation::None);
        let there = load(Isolation::Process(WorkerProcess::own_executable()));
        let tokens = tokens();
        let Paired { rounds, first, second, speed_ratio, .. } =
            paired(&mut (), |()| generate(&there), |()| generate(&here));
        println!(
            "{threads} thread(s), {rounds} rounds of up to {tokens} tokens: in a worker {first:.2} us/token, in this process \
             {second:.2} us/token; speed ratio {speed_ratio:.4} (median of pairs)"
        );
    }
}

/// The time from the request to the last piece, and the number of generated tokens.
fn generate(model: &Model) -> Run {
    let started = Instant::now();
    let mut stream = model.generate(PROMPT).seed(SEED).max_tokens(tokens()).stream().expect("the prompt fits");
    let mut bytes = 0;
    for piece in &mut stream {
        bytes += piece.expect("the model generates").len();
    }
    std::hint::black_box(bytes);
    (started.elapsed(), stream.statistics().generated_tokens)
}
