//! The registry entry and the device: they answer ggml's queries about a GPU.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::callback::guarded;
use super::slot::{self, of_device};
use super::{backend, buffer};
use crate::raw;

pub(super) const REG: raw::ggml_backend_reg_i = raw::ggml_backend_reg_i {
    get_name: Some(reg_name),
    get_device_count: Some(device_count),
    get_device: Some(get_device),
    get_proc_address: Some(proc_address),
};

pub(super) const DEVICE: raw::ggml_backend_device_i = raw::ggml_backend_device_i {
    get_name: Some(name),
    get_description: Some(description),
    get_memory: Some(memory),
    get_type: Some(device_type),
    get_props: Some(props),
    init_backend: Some(backend::init),
    get_buffer_type: Some(buffer_type),
    get_host_buffer_type: Some(host_buffer_type),
    buffer_from_host_ptr: Some(buffer::from_host_pointer),
    supports_op: Some(supports_op),
    supports_buft: Some(supports_buft),
    offload_op: Some(offload_op),
    event_new: Some(backend::event_new),
    event_free: Some(backend::event_free),
    event_synchronize: Some(backend::event_synchronize),
};

unsafe extern "C" fn reg_name(reg: raw::ggml_backend_reg_t) -> *const c_char {
    guarded(c"SIM".as_ptr(), || {
        // SAFETY: ggml calls an entry's functions with that entry (ggml-backend.cpp, `ggml_backend_reg_*`); slots
        // are never freed.
        let slot = slot::from_context(unsafe { (*reg).context });
        slot.card().map_or(c"SIM", |card| card.settings.backend).as_ptr()
    })
}

unsafe extern "C" fn device_count(_: raw::ggml_backend_reg_t) -> usize {
    1
}

unsafe extern "C" fn get_device(reg: raw::ggml_backend_reg_t, index: usize) -> raw::ggml_backend_dev_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: as in `reg_name`.
        let slot = slot::from_context(unsafe { (*reg).context });
        if index == 0 { slot.device } else { ptr::null_mut() }
    })
}

/// Looks up functions of a backend that are not part of ggml's interface. llama.cpp asks for several such functions.
/// The only one that makes sense here sets the number of threads (llama-context.cpp, the constructor).
unsafe extern "C" fn proc_address(_: raw::ggml_backend_reg_t, name: *const c_char) -> *mut c_void {
    guarded(ptr::null_mut(), || {
        // SAFETY: every caller in llama.cpp passes a NUL-terminated name.
        if unsafe { CStr::from_ptr(name) } == c"ggml_backend_set_n_threads" {
            backend::set_n_threads as *mut c_void
        } else {
            ptr::null_mut()
        }
    })
}

unsafe extern "C" fn name(device: raw::ggml_backend_dev_t) -> *const c_char {
    // SAFETY: one of our devices.
    guarded(c"SIM".as_ptr(), || unsafe { of_device(device) }.name.as_ptr())
}

unsafe extern "C" fn description(device: raw::ggml_backend_dev_t) -> *const c_char {
    guarded(c"".as_ptr(), || {
        // SAFETY: one of our devices.
        let card = unsafe { of_device(device) }.card();
        card.map_or(c"", |card| card.settings.description).as_ptr()
    })
}

unsafe extern "C" fn memory(device: raw::ggml_backend_dev_t, free: *mut usize, total: *mut usize) {
    let (free_now, all) = guarded((0, 0), || {
        // SAFETY: one of our devices.
        let card = unsafe { of_device(device) }.card();
        card.map_or((0, 0), |card| (card.free(), card.settings.total))
    });
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: every caller passes two valid pointers (ggml-backend.cpp, `ggml_backend_dev_memory`).
    unsafe {
        *free = size(free_now);
        *total = size(all);
    }
}

unsafe extern "C" fn device_type(_: raw::ggml_backend_dev_t) -> raw::ggml_backend_dev_type {
    raw::GGML_BACKEND_DEVICE_TYPE_GPU
}

unsafe extern "C" fn props(device: raw::ggml_backend_dev_t, props: *mut raw::ggml_backend_dev_props) {
    guarded((), || {
        // SAFETY: one of our devices, and a struct that ggml has zeroed (ggml-backend.cpp,
        // `ggml_backend_dev_get_props`).
        let (slot, props) = unsafe { (of_device(device), &mut *props) };
        props.name = slot.name.as_ptr();
        props.type_ = raw::GGML_BACKEND_DEVICE_TYPE_GPU;
        props.description = c"".as_ptr();
        props.caps.mmap_support = true;
        let Some(card) = slot.card() else { return };
        let settings = &card.settings;
        props.description = settings.description.as_ptr();
        props.device_id = settings.pci_id.map_or(ptr::null(), CStr::as_ptr);
        props.caps.async_ = settings.asynchronous;
        props.caps.events = settings.asynchronous;
        props.caps.host_buffer = settings.rules.pins_host_memory();
        props.caps.buffer_from_host_ptr = settings.rules.maps_host_memory();
        // SAFETY: one of our devices and two fields of the struct.
        unsafe {
            memory(device, &raw mut props.memory_free, &raw mut props.memory_total);
        }
    });
}

unsafe extern "C" fn buffer_type(device: raw::ggml_backend_dev_t) -> raw::ggml_backend_buffer_type_t {
    // SAFETY: one of our devices.
    guarded(ptr::null_mut(), || unsafe { of_device(device) }.buft)
}

unsafe extern "C" fn host_buffer_type(device: raw::ggml_backend_dev_t) -> raw::ggml_backend_buffer_type_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: one of our devices.
        let slot = unsafe { of_device(device) };
        match slot.card() {
            Some(card) if card.settings.rules.pins_host_memory() => slot.host_buft,
            _ => ptr::null_mut(),
        }
    })
}

/// Whether the card can run an operation. It can if the CPU can, if no operand lies on another card, and if no rule
/// forbids the operation.
unsafe extern "C" fn supports_op(device: raw::ggml_backend_dev_t, op: *const raw::ggml_tensor) -> bool {
    guarded(false, || {
        // SAFETY: one of our devices and a tensor that lives during the call.
        let (slot, op) = unsafe { (of_device(device), &*op) };
        let Some(card) = slot.card() else {
            return false;
        };
        if op.op == raw::GGML_OP_FLASH_ATTN_EXT && !card.settings.flash_attention {
            return false;
        }
        let largest = card.settings.rules.largest_buffer();
        // SAFETY: NULL, or tensors that live as long as the result (ggml.h, ggml_tensor::src).
        let mut sources = op.src.iter().filter_map(|source| unsafe { source.as_ref() });
        let reachable = sources.all(|source| {
            let elsewhere = !source.buffer.is_null()
                // SAFETY: a tensor's buffer lives as long as its data.
                && slot::owner(unsafe { (*source.buffer).buft })
                    .is_some_and(|owner| !ptr::eq(owner, slot));
            // SAFETY: ggml_nbytes reads a tensor's type and shape.
            !elsewhere && unsafe { raw::ggml_nbytes(source) } as u64 <= largest
        });
        // SAFETY: as above; the CPU's device is registered until the process ends.
        reachable
            && unsafe {
                raw::ggml_nbytes(op) as u64 <= largest && raw::ggml_backend_dev_supports_op(backend::cpu_device(), op)
            }
    })
}

unsafe extern "C" fn supports_buft(device: raw::ggml_backend_dev_t, buft: raw::ggml_backend_buffer_type_t) -> bool {
    // SAFETY: one of our devices.
    guarded(false, || unsafe { of_device(device) }.owns(buft))
}

/// Whether the card computes an operation although the weight lies on the host. It does if there are at least 32
/// tokens, as in `ggml_backend_cuda_device_offload_op` and `ggml_backend_vk_device_offload_op`.
/// `ggml_backend_metal_device_offload_op` does the same, but only for products.
unsafe extern "C" fn offload_op(device: raw::ggml_backend_dev_t, op: *const raw::ggml_tensor) -> bool {
    guarded(false, || {
        // SAFETY: one of our devices and a tensor that lives during the call.
        let (slot, op) = unsafe { (of_device(device), &*op) };
        let Some(card) = slot.card() else {
            return false;
        };
        let product = matches!(op.op, raw::GGML_OP_MUL_MAT | raw::GGML_OP_MUL_MAT_ID);
        if card.settings.rules.maps_host_memory() && !product {
            return false;
        }
        tokens(op) >= card.settings.offload_from
    })
}

/// As in ggml-cuda.cu, `get_op_batch_size`.
fn tokens(op: &raw::ggml_tensor) -> i64 {
    match op.op {
        raw::GGML_OP_GET_ROWS => 0,
        raw::GGML_OP_MUL_MAT => op.ne[1],
        raw::GGML_OP_MUL_MAT_ID | raw::GGML_OP_ROPE | raw::GGML_OP_ROPE_BACK => op.ne[2],
        _ => op.ne[1] * op.ne[2] * op.ne[3],
    }
}
