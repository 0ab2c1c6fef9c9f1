//! llama.cpp's sampler chain, with the samplers that the library has by default.

use llama_sys::raw;

/// The chain of the library's default sampling parameters.
///
/// # Safety
///
/// The caller frees it, once (`llama_sampler_free`).
pub unsafe fn chain(seed: u32) -> *mut raw::llama_sampler {
    // SAFETY: plain numbers; the chain takes ownership of the samplers that are added to it.
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
