//! Calls from C into Rust, which never let a panic back into C.

use std::ffi::{CString, c_void};
use std::panic::{self, AssertUnwindSafe};

use crate::raw;

/// Runs `body`. If `body` panics, the panic hook reports the panic, and the result is `fallback`.
///
/// A panic leaves no state inconsistent: a card's state consists of atomics, and a slot's lock is used even if it is
/// poisoned.
pub(super) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// Logs an error as ggml's own backends do. So the line is captured together with the lines that llama.cpp logs next.
pub(super) fn log_error(line: &str) {
    let Ok(line) = CString::new(format!("{line}\n")) else {
        return;
    };
    let mut callback: raw::ggml_log_callback = None;
    let mut data: *mut c_void = std::ptr::null_mut();
    // SAFETY: both pointers are valid; the callback is the one that was passed to llama_log_set, which sets it for ggml
    // too (llama-impl.cpp, llama_log_set). The callback takes a NUL-terminated text from any thread.
    unsafe {
        raw::llama_log_get(&raw mut callback, &raw mut data);
        if let Some(callback) = callback {
            callback(raw::GGML_LOG_LEVEL_ERROR, line.as_ptr(), data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_fallback() {
        assert_eq!(guarded(7, || std::hint::black_box(None::<i32>).expect("on purpose")), 7);
    }
}
