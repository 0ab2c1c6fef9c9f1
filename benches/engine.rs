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
use bare_llama::{Bare, chain};
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
        let Paired { rounds, first, second, speed_ratio, .. } = paired(&mut bare, |_| ours(&model, &engine), generate);
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

/// A text of the loop over the C API.
struct Text {
    seq: raw::llama_seq_id,
    chain: *mut raw::llama_sampler,
    position: i32,
    generated: usize,
    /// The index of the text's last token in the batch.
    output: i32,
}

/// Generates all texts in one loop.
fn generate(bare: &mut Bare) -> Run {
    let most = tokens();
    // SAFETY: model and context live; every buffer is as long as the length passed with it; the batch has room for the
    // prompts of all sequences, and no more is put into it; the chains end in a sampler that selects.
    unsafe {
        let started = Instant::now();
        let (vocab, context, tokens) = (bare.vocab(), bare.cleared(), bare.tokenize(PROMPT));
        let count = tokens.len() as i32;
        let mut batch = raw::llama_batch_init(count * SEQUENCES as i32, 0, 1);
        let mut texts: Vec<Text> = (0..SEQUENCES)
            .map(|sequence| {
                let seq = sequence as raw::llama_seq_id;
                for (position, token) in (0..).zip(&tokens) {
                    add(&mut batch, *token, position, seq, position + 1 == count);
                }
                Text { seq, chain: chain(SEED + sequence), position: count, generated: 0, output: batch.n_tokens - 1 }
            })
            .collect();
        let mut buffer = [0u8; 256];
        let mut bytes = Vec::new();
        let mut generated = 0;
        while !texts.is_empty() {
            assert_eq!(raw::llama_decode(context, batch), 0);
            batch.n_tokens = 0;
            texts.retain_mut(|text| {
                let token = raw::llama_sampler_sample(text.chain, context, text.output);
                let mut goes_on = !raw::llama_vocab_is_eog(vocab, token);
                if goes_on {
                    let into = buffer.as_mut_ptr().cast();
                    let length = raw::llama_token_to_piece(vocab, token, into, 256, 0, false) as usize;
                    bytes.extend_from_slice(&buffer[..length]);
                    text.generated += 1;
                    generated += 1;
                    goes_on = text.generated < most;
                }
                if goes_on {
                    text.output = batch.n_tokens;
                    add(&mut batch, token, text.position, text.seq, true);
                    text.position += 1;
                } else {
                    raw::llama_sampler_free(text.chain);
                }
                goes_on
            });
        }
        raw::llama_batch_free(batch);
        std::hint::black_box(bytes);
        (started.elapsed(), generated)
    }
}

/// Adds a token to a batch, as `common_batch_add` does.
///
/// # Safety
///
/// The batch has memory for another token, and for one sequence per token.
unsafe fn add(
    batch: &mut raw::llama_batch,
    token: raw::llama_token,
    position: i32,
    seq: raw::llama_seq_id,
    output: bool,
) {
    let at = batch.n_tokens as usize;
    // SAFETY: as above.
    unsafe {
        *batch.token.add(at) = token;
        *batch.pos.add(at) = position;
        *batch.n_seq_id.add(at) = 1;
        **batch.seq_id.add(at) = seq;
        *batch.logits.add(at) = output.into();
    }
    batch.n_tokens += 1;
}
