//! A stream of computation on a simulated card. The CPU's backend computes, and the card's faults are added.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::callback::{guarded, log_error};
use super::card::Card;
use super::slot;
use crate::raw;
use crate::safe::device::{ThreadWait, Threadpools};

/// The context of our ggml backends.
struct Stream {
    card: Arc<Card>,
    name: *const c_char,
    cpu: raw::ggml_backend_t,
    set_n_threads: raw::ggml_backend_set_n_threads_t,
    /// The pools of threads of `cpu`. Nothing computes on a backend while its number of threads is being set.
    threadpools: Mutex<Threadpools>,
}

const BACKEND: raw::ggml_backend_i = raw::ggml_backend_i {
    get_name: Some(name),
    free: Some(free),
    // If these functions are missing, ggml waits and then uses the buffer's own functions (ggml-backend.cpp,
    // `ggml_backend_tensor_set_async`, `ggml_backend_tensor_get_async`, `ggml_backend_tensor_copy_async`). The CPU
    // computes at once, so there is nothing to wait for.
    set_tensor_async: None,
    get_tensor_async: None,
    set_tensor_2d_async: None,
    get_tensor_2d_async: None,
    cpy_tensor_async: None,
    synchronize: None,
    graph_plan_create: None,
    graph_plan_free: None,
    graph_plan_update: None,
    graph_plan_compute: None,
    graph_compute: Some(graph_compute),
    event_record: Some(event_record),
    event_wait: Some(event_wait),
    graph_optimize: None,
};

/// ggml recognises our kind of backend by this number.
static GUID: raw::ggml_guid = *b"autoplace-sim-01";

/// ggml's CPU device; NULL if no CPU backend is loaded.
pub(super) fn cpu_device() -> raw::ggml_backend_dev_t {
    static CPU: OnceLock<usize> = OnceLock::new();
    let address = *CPU.get_or_init(|| {
        // SAFETY: `registry::register` made the first lookup, under the registry's lock. The device is a static
        // variable in ggml.
        unsafe { raw::ggml_backend_dev_by_type(raw::GGML_BACKEND_DEVICE_TYPE_CPU) }.expose_provenance()
    });
    ptr::with_exposed_provenance_mut(address)
}

pub(super) unsafe extern "C" fn init(device: raw::ggml_backend_dev_t, _params: *const c_char) -> raw::ggml_backend_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: one of our devices.
        let slot = unsafe { slot::of_device(device) };
        let Some(card) = slot.card() else {
            return ptr::null_mut();
        };
        // SAFETY: the CPU's device is registered until the process ends. For a name, the device's registry entry
        // returns NULL, or a function of the type that ggml-backend.h declares for that name.
        let (cpu, set_n_threads) = unsafe {
            let cpu = raw::ggml_backend_dev_init(cpu_device(), ptr::null());
            let reg = raw::ggml_backend_dev_backend_reg(cpu_device());
            let set = raw::ggml_backend_reg_get_proc_address(reg, c"ggml_backend_set_n_threads".as_ptr());
            (cpu, std::mem::transmute::<*mut std::ffi::c_void, raw::ggml_backend_set_n_threads_t>(set))
        };
        if cpu.is_null() {
            return ptr::null_mut();
        }
        let stream = Stream { card, name: slot.name.as_ptr(), cpu, set_n_threads, threadpools: Mutex::default() };
        Box::into_raw(Box::new(raw::ggml_backend {
            guid: (&raw const GUID).cast_mut(),
            iface: BACKEND,
            device,
            context: Box::into_raw(Box::new(stream)).cast(),
        }))
    })
}

/// # Safety
///
/// [`init`] must have made `backend`.
unsafe fn stream<'a>(backend: raw::ggml_backend_t) -> &'a Stream {
    // SAFETY: ggml calls a backend's functions with that backend, until it is freed.
    unsafe { &*(*backend).context.cast::<Stream>() }
}

unsafe extern "C" fn name(backend: raw::ggml_backend_t) -> *const c_char {
    // SAFETY: one of our backends.
    unsafe { stream(backend) }.name
}

unsafe extern "C" fn free(backend: raw::ggml_backend_t) {
    guarded((), || {
        // SAFETY: one of our backends, freed once; ggml leaves the struct to its backend (ggml-backend.cpp,
        // `ggml_backend_free`).
        unsafe {
            let stream = Box::from_raw((*backend).context.cast::<Stream>());
            raw::ggml_backend_free(stream.cpu);
            drop(Box::from_raw(backend));
        }
    });
}

unsafe extern "C" fn graph_compute(backend: raw::ggml_backend_t, graph: *mut raw::ggml_cgraph) -> raw::ggml_status {
    // SAFETY: one of our backends.
    let stream = unsafe { stream(backend) };
    let fails = guarded(true, || {
        let fails = stream.card.graph_fails();
        if fails {
            log_error("ggml_backend_sim: this computation was set to fail");
        }
        fails
    });
    if fails {
        return raw::GGML_STATUS_FAILED;
    }
    // SAFETY: the CPU's backend computes on the memory that the tensors point to (ggml-cpu.cpp), and ours is the
    // host's.
    unsafe { raw::ggml_backend_graph_compute_async(stream.cpu, graph) }
}

/// llama.cpp sets the number of threads before each graph (llama-context.cpp, `graph_compute`).
pub(super) unsafe extern "C" fn set_n_threads(backend: raw::ggml_backend_t, n_threads: c_int) {
    // SAFETY: this function is reached through the registry entry of our backends (device.rs, `proc_address`).
    let stream = unsafe { stream(backend) };
    if let Some(set_n_threads) = stream.set_n_threads {
        // SAFETY: the function is the CPU backend's own, and so is the backend.
        unsafe { set_n_threads(stream.cpu, n_threads) };
    }
    guarded((), || {
        let mut threadpools = stream.threadpools.lock().unwrap_or_else(PoisonError::into_inner);
        match threadpools.get(n_threads.unsigned_abs(), ThreadWait::Spin) {
            // SAFETY: the old and the new pool live: the stream frees its CPU backend before its pools.
            Ok(pool) if !pool.is_null() => unsafe { raw::shim_threadpool_use(stream.cpu, pool) },
            Ok(_) => {}
            // Without a pool, ggml starts new threads for each graph.
            Err(failure) => log_error(&format!("ggml_backend_sim: no pool of {n_threads} threads: {failure}")),
        }
    });
}

/// Makes an event. Nothing is computed in the background here, so an event has happened as soon as it is recorded.
/// Returns NULL on a card that is not asynchronous. ggml then works without events (ggml-backend.cpp,
/// `ggml_backend_sched_compute_splits`, `ggml_backend_sched_new`).
pub(super) unsafe extern "C" fn event_new(device: raw::ggml_backend_dev_t) -> raw::ggml_backend_event_t {
    guarded(ptr::null_mut(), || {
        // SAFETY: one of our devices.
        match unsafe { slot::of_device(device) }.card() {
            Some(card) if card.settings.asynchronous => {
                Box::into_raw(Box::new(raw::ggml_backend_event { device, context: ptr::null_mut() }))
            }
            _ => ptr::null_mut(),
        }
    })
}

pub(super) unsafe extern "C" fn event_free(_: raw::ggml_backend_dev_t, event: raw::ggml_backend_event_t) {
    // SAFETY: made by `event_new`, freed once (ggml-backend.cpp, `ggml_backend_event_free`).
    guarded((), || drop(unsafe { Box::from_raw(event) }));
}

pub(super) unsafe extern "C" fn event_synchronize(_: raw::ggml_backend_dev_t, _: raw::ggml_backend_event_t) {}

unsafe extern "C" fn event_record(_: raw::ggml_backend_t, _: raw::ggml_backend_event_t) {}

unsafe extern "C" fn event_wait(_: raw::ggml_backend_t, _: raw::ggml_backend_event_t) {}
