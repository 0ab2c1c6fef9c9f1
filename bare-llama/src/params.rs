//! Converts a plan's context parameters to llama.cpp's.

use autoplace_planner::memory::{ContextParams, FlashAttention};
use llama_sys::raw;

/// The context parameters for llama.cpp. Parameters that a plan does not set keep llama.cpp's defaults.
pub fn native_context(params: &ContextParams, threads: u32) -> raw::llama_context_params {
    // SAFETY: returns a plain struct.
    let mut native = unsafe { raw::llama_context_default_params() };
    native.n_ctx = params.n_ctx;
    native.n_batch = params.n_batch;
    native.n_ubatch = params.n_ubatch;
    native.n_seq_max = params.n_seq_max;
    native.n_outputs_max = params.n_outputs_max;
    native.n_threads = i32::try_from(threads).unwrap_or(i32::MAX);
    native.n_threads_batch = native.n_threads;
    native.flash_attn_type = match params.flash_attn {
        FlashAttention::On => raw::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => raw::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        _ => raw::LLAMA_FLASH_ATTN_TYPE_AUTO,
    };
    native.type_k = params.type_k.tensor_type().id() as raw::ggml_type;
    native.type_v = params.type_v.tensor_type().id() as raw::ggml_type;
    native.offload_kqv = params.offload_kqv;
    native.op_offload = params.op_offload;
    native.swa_full = params.swa_full;
    native.kv_unified = params.kv_unified;
    native
}
