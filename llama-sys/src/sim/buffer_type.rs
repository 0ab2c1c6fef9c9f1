//! The kinds of memory that a card offers: its own, pinned host memory, and mapped files.

use std::ffi::c_char;
use std::ptr;

use super::buffer;
use super::callback::guarded;
use super::rules::Rules;
use super::slot::of_buffer_type;
use crate::raw;

/// The card's memory.
pub(super) const DEVICE: raw::ggml_backend_buffer_type_i = raw::ggml_backend_buffer_type_i {
    get_name: Some(name),
    alloc_buffer: Some(buffer::alloc),
    alloc_buffer_n: None,
    get_alignment: Some(alignment),
    get_max_size: Some(max_size),
    get_alloc_size: Some(alloc_size),
    get_alloc_size_n: None,
    // If this memory counted as a host buffer, llama.cpp would let the CPU compute on it.
    is_host: None,
};

/// Files that are mapped into the card's memory. ggml asks this buffer type for alignments and sizes too
/// (ggml-metal.cpp, `ggml_backend_metal_buffer_type_mapped`).
pub(super) const MAPPED: raw::ggml_backend_buffer_type_i =
    raw::ggml_backend_buffer_type_i { get_name: Some(mapped_name), ..DEVICE };

/// Pinned host memory. Its buffers are the CPU's buffers under another name.
pub(super) const HOST: raw::ggml_backend_buffer_type_i = raw::ggml_backend_buffer_type_i {
    get_name: Some(host_name),
    alloc_buffer: Some(alloc_host),
    alloc_buffer_n: None,
    get_alignment: Some(host_alignment),
    get_max_size: Some(max_size),
    get_alloc_size: None,
    get_alloc_size_n: None,
    is_host: Some(is_host),
};

/// # Safety
///
/// `buft` must be the buffer type of a slot.
unsafe fn rules(buft: raw::ggml_backend_buffer_type_t) -> Rules {
    // SAFETY: the caller's promise.
    let card = unsafe { of_buffer_type(buft) }.card();
    card.map_or(Rules::Plain, |card| card.settings.rules)
}

unsafe extern "C" fn name(buft: raw::ggml_backend_buffer_type_t) -> *const c_char {
    // SAFETY: one of our buffer types.
    guarded(c"SIM".as_ptr(), || unsafe { of_buffer_type(buft) }.name.as_ptr())
}

unsafe extern "C" fn host_name(buft: raw::ggml_backend_buffer_type_t) -> *const c_char {
    // SAFETY: one of our buffer types.
    guarded(c"SIM_Host".as_ptr(), || unsafe { of_buffer_type(buft) }.host_name.as_ptr())
}

unsafe extern "C" fn mapped_name(buft: raw::ggml_backend_buffer_type_t) -> *const c_char {
    // SAFETY: one of our buffer types.
    guarded(c"SIM_Mapped".as_ptr(), || unsafe { of_buffer_type(buft) }.mapped_name.as_ptr())
}

unsafe extern "C" fn alignment(buft: raw::ggml_backend_buffer_type_t) -> usize {
    // SAFETY: one of our buffer types.
    guarded(32, || unsafe { rules(buft) }.alignment())
}

unsafe extern "C" fn max_size(buft: raw::ggml_backend_buffer_type_t) -> usize {
    // SAFETY: one of our buffer types.
    guarded(usize::MAX, || unsafe { rules(buft) }.buffer_limit())
}

unsafe extern "C" fn alloc_size(buft: raw::ggml_backend_buffer_type_t, tensor: *const raw::ggml_tensor) -> usize {
    // SAFETY: a tensor that lives during the call.
    let bytes = unsafe { raw::ggml_nbytes(tensor) };
    guarded(bytes, || {
        // SAFETY: one of our buffer types and a tensor of ggml's that lives during the call, with its sources.
        unsafe { rules(buft).alloc_size(&*tensor) }
    })
}

/// Allocates a CPU buffer and then sets the buffer's type to this one, like
/// `ggml_backend_cuda_host_buffer_type_alloc_buffer` and `ggml_backend_vk_host_buffer_type_alloc_buffer`.
unsafe extern "C" fn alloc_host(buft: raw::ggml_backend_buffer_type_t, size: usize) -> raw::ggml_backend_buffer_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: our buffer type. The CPU's buffer type is a constant. A buffer is freed by its own vtable, whatever
        // its type (ggml-backend.cpp, ggml_backend_buffer_free).
        unsafe {
            let size = size.saturating_add(rules(buft).host_extra());
            let buffer = raw::ggml_backend_buft_alloc_buffer(raw::ggml_backend_cpu_buffer_type(), size);
            if !buffer.is_null() {
                (*buffer).buft = buft;
            }
            buffer
        }
    })
}

unsafe extern "C" fn host_alignment(_: raw::ggml_backend_buffer_type_t) -> usize {
    // SAFETY: the CPU's buffer type is a constant.
    unsafe { raw::ggml_backend_buft_get_alignment(raw::ggml_backend_cpu_buffer_type()) }
}

unsafe extern "C" fn is_host(_: raw::ggml_backend_buffer_type_t) -> bool {
    true
}
