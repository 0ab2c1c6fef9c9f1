//! The other side of the comparison, with nothing but libllama's C API. It is for runs without llama.cpp's programs.

use std::ffi::CString;
use std::path::Path;

use autoplace::llama_sys::raw;

use crate::rows::Outcome;
use crate::setting::THREADS;

/// A model with its context.
pub(crate) struct Plain {
    model: *mut raw::llama_model,
    context: *mut raw::llama_context,
}

impl Plain {
    /// Loads on the host with llama.cpp's defaults. The backend is already initialised, because we have loaded a model
    /// before.
    pub(crate) fn load(path: &Path, n_ctx: u32) -> Outcome<Self> {
        let file = CString::new(path.to_str().ok_or("the path is not valid text")?)?;
        // SAFETY: the backend is initialised, and the path is NUL-terminated. The parameters are llama.cpp's defaults,
        // in which only plain numbers were changed.
        unsafe {
            let mut params = raw::llama_model_default_params();
            params.n_gpu_layers = 0;
            let model = raw::llama_model_load_from_file(file.as_ptr(), params);
            if model.is_null() {
                return Err(format!("llama.cpp does not load {}", path.display()).into());
            }
            let mut params = raw::llama_context_default_params();
            params.n_ctx = n_ctx;
            params.n_threads = THREADS as i32;
            params.n_threads_batch = THREADS as i32;
            let context = raw::llama_init_from_model(model, params);
            let plain = Self { model, context };
            if context.is_null() {
                return Err(format!("llama.cpp makes no context of {n_ctx} tokens").into());
            }
            Ok(plain)
        }
    }

    fn vocab(&self) -> *const raw::llama_vocab {
        // SAFETY: the model lives.
        unsafe { raw::llama_model_get_vocab(self.model) }
    }

    /// The tokens of a text.
    pub(crate) fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Outcome<Vec<i32>> {
        let mut tokens = vec![0; text.len() + 8];
        // SAFETY: the vocabulary lives, and both buffers have the lengths that are passed.
        let count = unsafe {
            raw::llama_tokenize(
                self.vocab(),
                text.as_ptr().cast(),
                text.len() as i32,
                tokens.as_mut_ptr(),
                tokens.len() as i32,
                add_special,
                parse_special,
            )
        };
        tokens.truncate(usize::try_from(count).map_err(|_| format!("llama_tokenize returns {count}"))?);
        Ok(tokens)
    }

    /// The tokens that follow a prompt if the likeliest is always chosen, up to the end of the text.
    pub(crate) fn greedy(&mut self, prompt: &[i32], n: usize) -> Outcome<Vec<i32>> {
        self.clear();
        let mut logits = self.decode(prompt)?;
        let mut tokens = Vec::new();
        while tokens.len() < n {
            let token = likeliest(&logits);
            // SAFETY: the vocabulary lives, and has the token.
            if unsafe { raw::llama_vocab_is_eog(self.vocab(), token) } {
                break;
            }
            tokens.push(token);
            logits = self.decode(&[token])?;
        }
        Ok(tokens)
    }

    /// Empties the context.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the context lives.
        unsafe { raw::llama_memory_clear(raw::llama_get_memory(self.context), true) };
    }

    /// Computes more tokens. Returns the logits that follow the last of them.
    pub(crate) fn decode(&mut self, tokens: &[i32]) -> Outcome<Vec<f32>> {
        let mut tokens = tokens.to_vec();
        // SAFETY: the context and its vocabulary live; the list lives as long as the batch. The batch requests the
        // logits of the last token. These are `n_vocab` numbers, and they live until the next call.
        unsafe {
            let batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
            let status = raw::llama_decode(self.context, batch);
            if status != 0 {
                return Err(format!("llama_decode returns {status}").into());
            }
            let n_vocab = usize::try_from(raw::llama_vocab_n_tokens(self.vocab()))?;
            Ok(std::slice::from_raw_parts(raw::llama_get_logits_ith(self.context, -1), n_vocab).to_vec())
        }
    }
}

/// If several tokens are the likeliest, the first of them, as in llama.cpp's greedy sampler.
fn likeliest(logits: &[f32]) -> i32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as i32
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: `load` created both, and they are freed once. The context is freed first, and may be null.
        unsafe {
            if !self.context.is_null() {
                raw::llama_free(self.context);
            }
            raw::llama_model_free(self.model);
        }
    }
}
