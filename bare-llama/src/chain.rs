//! llama.cpp's sampler chain with the samplers that this library uses by default.

use llama_sys::raw;

/// Makes the chain for the library's default sampling parameters.
///
/// # Safety
///
/// The caller must free the chain exactly once (`llama_sampler_free`).
pub(super) unsafe fn chain(seed: u32) -> *mut raw::llama_sampler {
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
