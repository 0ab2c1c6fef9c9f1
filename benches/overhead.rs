//! Measures what the library costs in addition to llama.cpp. `model.generate(..)` and the same loop over the C API take
//! turns in one process, with the same model, sampler chain, threads and context. Prints the ratio and the difference
//! of the medians of the paired rounds. The models are the demo model and the smallest model that llama.cpp loads, with
//! which even a microsecond is visible.
//!
//!     cargo bench -p autoplace-benches --bench overhead

mod paired;

use std::path::Path;
use std::time::Instant;

use autoplace::Model;
use bare_llama::Bare;
use paired::{PROMPT, Paired, Run, SEED, model_path, paired, tokens};
use test_support::tiny::tiny_llama;

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let smallest = folder.path().join("smallest.gguf");
    let written = tiny_llama().write_sparse(&smallest);
    written.expect("the folder takes a file");
    let smallest = smallest.to_str().expect("a plain path");
    for (name, path, threads) in [("demo", &*model_path(), 1), ("demo", &*model_path(), 2), ("smallest", smallest, 1)] {
        let model = Model::builder(path).n_threads(threads).load().expect("the model loads");
        let placement = model.placement();
        let bare = Bare::load(Path::new(path), placement.n_gpu_layers, threads, |params| {
            params.n_ctx = placement.context.n_ctx;
            params.n_outputs_max = 1;
        });
        let mut bare = bare.expect("llama.cpp loads the model");
        let tokens = tokens();
        let Paired { rounds, first, second, difference, speed_ratio, quickest_difference, .. } =
            paired(&mut bare, |_| ours(&model), |bare| bare.text(PROMPT, SEED, tokens));
        println!(
            "{name} model, {threads} thread(s), {rounds} rounds of up to {tokens} tokens: ours {first:.2} us/token, bare \
             llama.cpp {second:.2} us/token; {difference:+.2} us, speed ratio {speed_ratio:.4} (medians of pairs); quickest rounds \
             {quickest_difference:+.2} us"
        );
    }
}

fn ours(model: &Model) -> Run {
    let mut stream = model.generate(PROMPT).seed(SEED).max_tokens(tokens()).stream().expect("the prompt fits");
    let mut bytes = stream.next().expect("a first token").expect("it is computed").len();
    let already = stream.statistics().generated_tokens;
    let started = Instant::now();
    for piece in &mut stream {
        bytes += piece.expect("the model generates").len();
    }
    let elapsed = started.elapsed();
    std::hint::black_box(bytes);
    (elapsed, stream.statistics().generated_tokens - already)
}
