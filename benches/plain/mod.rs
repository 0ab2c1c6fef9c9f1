//! llama.cpp's own API and nothing else: what a benchmark of the library is held against.

use std::ffi::CString;

use autoplace::llama_sys::{attach_threads, raw};

use crate::paired::PROMPT;

/// A model with its context.
pub(crate) struct Plain {
    model: *mut raw::llama_model,
    context: *mut raw::llama_context,
}

impl Plain {
    /// With llama.cpp's defaults, but for what `set` changes.
    pub(crate) fn load(
        path: &str,
        n_gpu_layers: u32,
        threads: u32,
        set: impl FnOnce(&mut raw::llama_context_params),
    ) -> Self {
        let path = CString::new(path).expect("no NUL");
        // SAFETY: the backend is initialised (a model was loaded before); the path is NUL-terminated; the parameters
        // are llama.cpp's defaults with plain numbers changed.
        unsafe {
            let mut params = raw::llama_model_default_params();
            params.n_gpu_layers = n_gpu_layers as i32;
            let model = raw::llama_model_load_from_file(path.as_ptr(), params);
            assert!(!model.is_null());
            let mut params = raw::llama_context_default_params();
            params.n_threads = threads as i32;
            params.n_threads_batch = threads as i32;
            set(&mut params);
            let context = raw::llama_init_from_model(model, params);
            assert!(!context.is_null());
            attach_threads(context, threads).expect("threads start");
            Self { model, context }
        }
    }

    /// The context, whose memory is empty, as long as this lives.
    pub(crate) fn cleared(&mut self) -> *mut raw::llama_context {
        // SAFETY: the context lives.
        unsafe { raw::llama_memory_clear(raw::llama_get_memory(self.context), true) };
        self.context
    }

    /// The vocabulary, as long as this lives.
    pub(crate) fn vocab(&self) -> *const raw::llama_vocab {
        // SAFETY: the model lives.
        unsafe { raw::llama_model_get_vocab(self.model) }
    }

    /// The tokens of the prompt.
    pub(crate) fn prompt(&self) -> Vec<raw::llama_token> {
        // A byte each, at worst, and three for a space.
        let mut tokens = vec![0; 3 * PROMPT.len() + 8];
        // SAFETY: the vocabulary lives; both buffers are as long as said.
        let count = unsafe {
            raw::llama_tokenize(
                self.vocab(),
                PROMPT.as_ptr().cast(),
                PROMPT.len() as i32,
                tokens.as_mut_ptr(),
                tokens.len() as i32,
                true,
                false,
            )
        };
        tokens.truncate(usize::try_from(count).expect("there is room for all"));
        tokens
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

/// The chain of `Sampling`'s defaults.
///
/// # Safety
///
/// The caller frees it.
pub(crate) unsafe fn chain(seed: u32) -> *mut raw::llama_sampler {
    // SAFETY: plain numbers; the chain takes what is added to it.
    unsafe {
        let chain = raw::llama_sampler_chain_init(raw::llama_sampler_chain_default_params());
        raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_top_k(40));
        raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_top_p(0.95, 1));
        raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_min_p(0.05, 1));
        raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_temp(0.8));
        raw::llama_sampler_chain_add(chain, raw::llama_sampler_init_dist(seed));
        chain
    }
}
