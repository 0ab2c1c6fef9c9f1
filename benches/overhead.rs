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
use autoplace::llama_sys::raw;
use bare_llama::{Bare, chain};
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
            paired(&mut bare, |_| ours(&model), generate);
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

/// Generates with the loop of llama.cpp's `examples/simple`.
fn generate(bare: &mut Bare) -> Run {
    let most = tokens();
    // SAFETY: model and context live; every buffer is as long as the length passed with it; the batch holds at most
    // n_batch tokens; the chain ends in a sampler that selects.
    unsafe {
        let (vocab, context, mut tokens) = (bare.vocab(), bare.cleared(), bare.tokenize(PROMPT));
        let count = tokens.len() as i32;
        let chain = chain(SEED);
        let mut buffer = [0u8; 256];
        let mut bytes = 0;
        let mut generated = 0;
        let mut started = Instant::now();
        let mut token;
        let mut batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), count);
        loop {
            assert_eq!(raw::llama_decode(context, batch), 0);
            token = raw::llama_sampler_sample(chain, context, -1);
            if raw::llama_vocab_is_eog(vocab, token) {
                break;
            }
            bytes += raw::llama_token_to_piece(vocab, token, buffer.as_mut_ptr().cast(), 256, 0, false);
            if generated == 0 {
                started = Instant::now();
            }
            generated += 1;
            if generated == most {
                break;
            }
            batch = raw::llama_batch_get_one(&raw mut token, 1);
        }
        let elapsed = started.elapsed();
        std::hint::black_box(bytes);
        raw::llama_sampler_free(chain);
        (elapsed, generated - 1)
    }
}
