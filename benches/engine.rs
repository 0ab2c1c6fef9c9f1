//! Measures what an engine with eight texts costs in addition to llama.cpp's own batched decoding. One side calls
//! `engine.submit(..)` eight times. The other side is a loop over the C API whose batch has one token of each of eight
//! sequences, as in llama.cpp's `examples/batched`. Model, prompts, sampler chains, threads and context are the same,
//! and the sides take turns in one process. Prints the ratio of the medians of the paired rounds.
//!
//!     cargo bench -p autoplace-benches --bench engine

mod paired;

use std::path::Path;
use std::time::Instant;

use autoplace::Model;
use autoplace::generate::Engine;
use autoplace::llama_sys::raw;
use autoplace::memory::FlashAttention;
use autoplace::plan::Request;
use bare_llama::Bare;
use paired::{PROMPT, Paired, Run, SEED, model_path, paired, tokens};

const SEQUENCES: u32 = 8;

fn main() {
    let path = model_path();
    for threads in [1, 2] {
        let mut request = Request::new().n_seq_max(SEQUENCES).n_ctx(SEQUENCES * 512);
        // With these settings the text is the same for every size of batch, so both sides generate the same number of
        // tokens.
        request.params.flash_attn = FlashAttention::Off;
        let model = Model::builder(&path).request(request).n_threads(threads).load().expect("the model loads");
        let placement = model.placement();
        let engine = Engine::new(&model).expect("the context is free");
        let planned = &placement.context;
        let bare = Bare::load(Path::new(&path), placement.n_gpu_layers, threads, |params| {
            params.n_ctx = planned.n_ctx;
            params.n_batch = planned.n_batch;
            params.n_ubatch = planned.n_ubatch;
            params.n_seq_max = SEQUENCES;
            params.n_outputs_max = SEQUENCES;
            params.kv_unified = planned.kv_unified;
            params.flash_attn_type = raw::LLAMA_FLASH_ATTN_TYPE_DISABLED;
        });
        let mut bare = bare.expect("llama.cpp loads the model");
        let tokens = tokens();
        let Paired { rounds, first, second, speed_ratio, .. } =
            paired(&mut bare, |_| ours(&model, &engine), |bare| bare.texts(PROMPT, SEED, SEQUENCES, tokens));
        println!(
            "{SEQUENCES} texts, {threads} thread(s), {rounds} rounds of up to {tokens} tokens each: engine {first:.2} us/token, \
             bare llama.cpp {second:.2} us/token; throughput ratio {speed_ratio:.4} (median of pairs)"
        );
    }
}

fn ours(model: &Model, engine: &Engine) -> Run {
    let started = Instant::now();
    let answers: Vec<_> = (0..SEQUENCES)
        .map(|sequence| {
            let generate = model.generate(PROMPT).cache_prompt(false).seed(SEED + sequence).max_tokens(tokens());
            engine.submit(generate).expect("the prompt fits")
        })
        .collect();
    let mut generated = 0;
    for answer in answers {
        let (text, statistics) = answer.into_text().expect("the model generates");
        std::hint::black_box(text);
        generated += statistics.generated_tokens;
    }
    (started.elapsed(), generated)
}
