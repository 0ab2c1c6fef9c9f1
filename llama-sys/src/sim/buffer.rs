//! A buffer on a simulated card. Its bytes lie in host memory, but count as memory of the card.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::callback::{guarded, log_error};
use super::card::Card;
use super::memory::Memory;
use super::slot::{self, Slot};
use crate::raw;

/// The memory of a buffer: zeroed pages of our own, or memory that the caller has mapped.
enum Bytes {
    Own(Memory),
    Mapped(*mut u8),
}

/// The context of our ggml buffers. When it is dropped, its bytes are free again on the card.
struct Buffer {
    card: Arc<Card>,
    bytes: Bytes,
    size: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.card.give_back(self.size as u64);
    }
}

impl Buffer {
    fn base(&self) -> *mut u8 {
        match &self.bytes {
            Bytes::Own(memory) => memory.base(),
            Bytes::Mapped(pointer) => *pointer,
        }
    }
}

const BUFFER: raw::ggml_backend_buffer_i = raw::ggml_backend_buffer_i {
    free_buffer: Some(free),
    get_base: Some(base),
    init_tensor: None,
    memset_tensor: Some(memset_tensor),
    set_tensor: Some(set_tensor),
    get_tensor: Some(get_tensor),
    // Without these functions, ggml calls the functions above row by row (ggml-backend.cpp,
    // `ggml_backend_tensor_set_2d`, `ggml_backend_tensor_get_2d`).
    set_tensor_2d: None,
    get_tensor_2d: None,
    cpy_tensor: Some(copy_tensor),
    clear: Some(clear),
    reset: None,
    // Without these functions, ggml calls the functions above tensor by tensor (ggml-backend.cpp,
    // `ggml_backend_tensor_set_n`, `ggml_backend_tensor_get_n`, `ggml_backend_tensor_copy_n`).
    set_tensor_n: None,
    get_tensor_n: None,
    cpy_tensor_n: None,
};

/// Takes `size` bytes from the slot's card. If this fails, logs the reason.
fn take(slot: &Slot, size: usize, bytes: impl FnOnce() -> Option<Bytes>) -> Option<Buffer> {
    let card = slot.card()?;
    if !card.take(size as u64) {
        log_error(&format!(
            "ggml_backend_sim: refusing {size} bytes: {} of {} free, {} used, {} taken by others",
            card.free(),
            card.settings.total,
            card.used.get(),
            card.taken.get(),
        ));
        return None;
    }
    let Some(bytes) = bytes() else {
        card.give_back(size as u64);
        return None;
    };
    Some(Buffer { card, bytes, size })
}

/// Hands a buffer over to ggml.
fn into_raw(buffer: Buffer, buft: raw::ggml_backend_buffer_type_t) -> raw::ggml_backend_buffer_t {
    let size = buffer.size;
    let context: *mut c_void = Box::into_raw(Box::new(buffer)).cast();
    // SAFETY: our buffer type, with the vtable that knows the context; ggml frees it through `free`, once
    // (ggml-backend.cpp, ggml_backend_buffer_free).
    unsafe { raw::ggml_backend_buffer_init(buft, BUFFER, context, size) }
}

/// Allocates a buffer. Returns NULL if it does not fit on the card, as ggml's own backends do (ggml-backend.cpp,
/// `ggml_backend_buft_alloc_buffer_n_default`).
pub(super) unsafe extern "C" fn alloc(
    buft: raw::ggml_backend_buffer_type_t,
    size: usize,
) -> raw::ggml_backend_buffer_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: one of our buffer types.
        let slot = unsafe { slot::of_buffer_type(buft) };
        let own = || match Memory::reserve(size) {
            Ok(memory) => Some(Bytes::Own(memory)),
            Err(error) => {
                log_error(&format!("ggml_backend_sim: the host has no {size} bytes to simulate with: {error}"));
                None
            }
        };
        take(slot, size, own).map_or(ptr::null_mut(), |buffer| into_raw(buffer, buft))
    })
}

/// Makes a buffer of a mapped file (Metal). The card counts its bytes, but nothing is copied. Called only for cards
/// that support it (device.rs, `props`).
pub(super) unsafe extern "C" fn from_host_pointer(
    device: raw::ggml_backend_dev_t,
    pointer: *mut c_void,
    size: usize,
    _max_tensor_size: usize,
) -> raw::ggml_backend_buffer_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: one of our devices.
        let slot = unsafe { slot::of_device(device) };
        take(slot, size, || Some(Bytes::Mapped(pointer.cast())))
            .map_or(ptr::null_mut(), |buffer| into_raw(buffer, slot.mapped_buft))
    })
}

/// # Safety
///
/// `buffer` must be one of our buffers, and not freed yet.
unsafe fn inner<'a>(buffer: raw::ggml_backend_buffer_t) -> &'a Buffer {
    // SAFETY: `into_raw` made the context; ggml calls a buffer's functions with that buffer.
    unsafe { &*(*buffer).context.cast::<Buffer>() }
}

unsafe extern "C" fn free(buffer: raw::ggml_backend_buffer_t) {
    guarded((), || {
        // SAFETY: as in `inner`; ggml frees a buffer once and deletes its own struct itself (ggml-backend.cpp,
        // ggml_backend_buffer_free).
        drop(unsafe { Box::from_raw((*buffer).context.cast::<Buffer>()) });
    });
}

unsafe extern "C" fn base(buffer: raw::ggml_backend_buffer_t) -> *mut c_void {
    // SAFETY: one of our buffers.
    unsafe { inner(buffer) }.base().cast()
}

unsafe extern "C" fn memset_tensor(
    _: raw::ggml_backend_buffer_t,
    tensor: *mut raw::ggml_tensor,
    value: u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: ggml checked that the range lies in the tensor, whose data lies in one of our buffers (ggml-backend.cpp,
    // `ggml_backend_tensor_memset`).
    unsafe {
        (*tensor).data.cast::<u8>().add(offset).write_bytes(value, size);
    }
}

unsafe extern "C" fn set_tensor(
    _: raw::ggml_backend_buffer_t,
    tensor: *mut raw::ggml_tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: as in `memset_tensor` (ggml-backend.cpp, `ggml_backend_tensor_set`); `data` has `size` bytes. Source and
    // target may overlap, if both lie in the same buffer.
    unsafe {
        ptr::copy(data.cast::<u8>(), (*tensor).data.cast::<u8>().add(offset), size);
    }
}

unsafe extern "C" fn get_tensor(
    _: raw::ggml_backend_buffer_t,
    tensor: *const raw::ggml_tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: as in `set_tensor` (ggml-backend.cpp, `ggml_backend_tensor_get`).
    unsafe {
        ptr::copy((*tensor).data.cast::<u8>().add(offset), data.cast::<u8>(), size);
    }
}

/// Copies a tensor from card to card. ggml makes all other copies through the host (ggml-backend.cpp,
/// `ggml_backend_tensor_copy`).
unsafe extern "C" fn copy_tensor(
    _: raw::ggml_backend_buffer_t,
    source: *const raw::ggml_tensor,
    target: *mut raw::ggml_tensor,
) -> bool {
    guarded(false, || {
        // SAFETY: two tensors with data and the same layout (ggml-backend.cpp, `ggml_backend_tensor_copy`); the
        // source's buffer lives.
        unsafe {
            let buffer = (*source).buffer;
            if buffer.is_null() || slot::owner((*buffer).buft).is_none() {
                return false;
            }
            ptr::copy((*source).data.cast::<u8>(), (*target).data.cast::<u8>(), raw::ggml_nbytes(source));
        }
        true
    })
}

unsafe extern "C" fn clear(buffer: raw::ggml_backend_buffer_t, value: u8) {
    // SAFETY: the buffer is ours, and nothing computes on it while it is cleared. llama.cpp never clears a mapped
    // buffer; that would clear the mapped memory itself.
    unsafe {
        let buffer = inner(buffer);
        match &buffer.bytes {
            Bytes::Own(memory) if value == 0 => memory.zero(),
            _ => buffer.base().write_bytes(value, buffer.size),
        }
    }
}
