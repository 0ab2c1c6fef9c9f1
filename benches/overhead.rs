//! What the library costs on top of llama.cpp: `model.generate(..)` against the same loop over the C API, on the same model,
//! sampler chain, threads and context, turn by turn in one process. Prints the ratio and the difference of the paired rounds' medians:
//! of the demo model, and of the smallest model that llama.cpp loads, where a microsecond shows.
//!
//!     cargo bench -p autoplace-benches --bench overhead

#[path = "../autoplace/tests/native_support/mod.rs"]
mod native_support;
mod paired;

use std::ffi::CString;
use std::time::Instant;

use autoplace::Model;
use autoplace::llama_sys::raw;
use paired::{PROMPT, Paired, Run, SEED, TOKENS, model_path, paired};

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let smallest = folder.path().join("smallest.gguf");
    let written = native_support::tiny_llama().write_sparse(&smallest);
    written.expect("the folder takes a file");
    let smallest = smallest.to_str().expect("a plain path");
    for (name, path, threads) in [
        ("demo", &*model_path(), 1),
        ("demo", &*model_path(), 2),
        ("smallest", smallest, 1),
    ] {
        let model = Model::builder(path)
            .threads(threads)
            .load()
            .expect("the model loads");
        let mut plain = Plain::load(
            path,
            model.placement().n_gpu_layers,
            model.placement().context.n_ctx,
            threads,
        );
        let Paired {
            rounds,
            first,
            second,
            difference,
            speed_ratio,
        } = paired(&mut plain, |_| ours(&model), Plain::generate);
        println!(
            "{name} model, {threads} thread(s), {rounds} rounds of up to {TOKENS} tokens: ours {first:.2} us/token, plain \
             llama.cpp {second:.2} us/token; {difference:+.2} us, speed ratio {speed_ratio:.4} (medians of pairs)"
        );
    }
}

fn ours(model: &Model) -> Run {
    let mut stream = model
        .generate(PROMPT)
        .seed(SEED)
        .max_tokens(TOKENS)
        .stream()
        .expect("the prompt fits");
    let mut bytes = stream
        .next()
        .expect("a first token")
        .expect("it is computed")
        .len();
    let already = stream.statistics().generated_tokens;
    let started = Instant::now();
    for piece in &mut stream {
        bytes += piece.expect("the model generates").len();
    }
    let elapsed = started.elapsed();
    std::hint::black_box(bytes);
    (elapsed, stream.statistics().generated_tokens - already)
}

/// llama.cpp's own API and nothing else, as its `examples/simple` uses it.
struct Plain {
    model: *mut raw::llama_model,
    context: *mut raw::llama_context,
}

impl Plain {
    fn load(path: &str, n_gpu_layers: u32, n_ctx: u32, threads: u32) -> Self {
        let path = CString::new(path).expect("no NUL");
        // SAFETY: the backend is initialised (a model was loaded before); the path is NUL-terminated; the parameters are
        // llama.cpp's defaults with plain numbers changed.
        unsafe {
            let mut params = raw::llama_model_default_params();
            params.n_gpu_layers = n_gpu_layers as i32;
            let model = raw::llama_model_load_from_file(path.as_ptr(), params);
            assert!(!model.is_null());
            let mut params = raw::llama_context_default_params();
            params.n_ctx = n_ctx;
            params.n_outputs_max = 1;
            params.n_threads = threads as i32;
            params.n_threads_batch = threads as i32;
            let context = raw::llama_init_from_model(model, params);
            assert!(!context.is_null());
            Self { model, context }
        }
    }

    fn generate(&mut self) -> Run {
        // SAFETY: model and context live; every buffer is as long as the length passed with it; the batch holds at most n_batch
        // tokens; the chain ends in a sampler that selects.
        unsafe {
            let vocab = raw::llama_model_get_vocab(self.model);
            // A byte each, at worst, and three for a space.
            let mut tokens = vec![0; 3 * PROMPT.len() + 8];
            let count = raw::llama_tokenize(
                vocab,
                PROMPT.as_ptr().cast(),
                PROMPT.len() as i32,
                tokens.as_mut_ptr(),
                tokens.len() as i32,
                true,
                false,
            );
            let chain = raw::llama_sampler_chain_init(raw::llama_sampler_chain_default_params());
            raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_top_k(40));
            raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_top_p(0.95, 1));
            raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_min_p(0.05, 1));
            raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_temp(0.8));
            raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_dist(SEED));
            raw::llama_memory_clear(raw::llama_get_memory(self.context), true);

            let mut buffer = [0u8; 256];
            let mut bytes = 0;
            let mut generated = 0;
            let mut started = Instant::now();
            let mut token;
            let mut batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), count);
            loop {
                assert_eq!(raw::llama_decode(self.context, batch), 0);
                token = raw::llama_sampler_sample(chain, self.context, -1);
                if raw::llama_vocab_is_eog(vocab, token) {
                    break;
                }
                bytes += raw::llama_token_to_piece(
                    vocab,
                    token,
                    buffer.as_mut_ptr().cast(),
                    256,
                    0,
                    false,
                );
                if generated == 0 {
                    started = Instant::now();
                }
                generated += 1;
                if generated == TOKENS {
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
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: both were created by `load` and are freed once, the context first.
        unsafe {
            raw::llama_free(self.context);
            raw::llama_model_free(self.model);
        }
    }
}
