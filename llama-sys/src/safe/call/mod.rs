//! Calls of shim functions. Each call runs with an error slot, and its log is captured. If it fails, the result is a
//! [`Failure`].
//!
//! In: a function of the C++ shim (`native/`). Out: its value, or an [`Error`] that carries llama.cpp's log.

mod error;
pub(crate) mod log;
pub(crate) mod text;

use std::ffi::CStr;

use crate::raw;
use log::Captured;

pub use error::{Error, Failure, FailureCause, OutOfMemory};

/// Runs `call`. Returns `Err` if the shim reported an exception or an assertion, whatever value `call` returned.
pub(crate) fn checked<T>(call: impl FnOnce(*mut raw::shim_error) -> T) -> Result<T, Failure> {
    accepted(call, |_| true)
}

/// Runs `call`, and also treats a value for which `ok` is false as a failure. The reason of that failure comes from
/// llama.cpp's log.
pub(crate) fn accepted<T>(
    call: impl FnOnce(*mut raw::shim_error) -> T,
    ok: impl FnOnce(&T) -> bool,
) -> Result<T, Failure> {
    let mut error = raw::shim_error { status: raw::SHIM_STATUS_OK, message: [0; 2048] };
    let (value, said) = log::capture(|| call(&raw mut error));
    if error.status == raw::SHIM_STATUS_OK && ok(&value) {
        return Ok(value);
    }
    // SAFETY: the slot was empty, and the shim ends its message with a NUL (snprintf).
    Err(unsafe { failed(&raw const error, said) })
}

/// As [`checked`], for frequent calls. It captures no log, and builds a [`Failure`] only if the call fails.
pub(crate) fn quick<T>(call: impl FnOnce(*mut raw::shim_error) -> T) -> Result<T, Failure> {
    // Only the status is initialised. The shim writes the message before it sets another status than OK.
    let mut error = std::mem::MaybeUninit::<raw::shim_error>::uninit();
    let value = call(error.as_mut_ptr());
    // SAFETY: every shim function with an error slot sets `status` first and ends `message` with a NUL
    // (native/shim.cpp, `checked`).
    unsafe {
        if (*error.as_ptr()).status == raw::SHIM_STATUS_OK {
            return Ok(value);
        }
        Err(failed(error.as_ptr(), Captured::default()))
    }
}

/// The failure of a call. A status of OK means that the caller did not accept the returned value.
///
/// # Safety
///
/// `status` is initialised, and `message` up to a NUL.
#[cold]
#[inline(never)]
unsafe fn failed(error: *const raw::shim_error, said: Captured) -> Failure {
    // SAFETY: the caller's promise.
    let (status, text) = unsafe { ((*error).status, CStr::from_ptr((&raw const (*error).message).cast())) };
    let cause = match status {
        raw::SHIM_STATUS_OK => FailureCause::Refused,
        raw::SHIM_STATUS_OUT_OF_MEMORY => FailureCause::HostMemory,
        raw::SHIM_STATUS_ASSERTION => FailureCause::Assertion,
        _ => FailureCause::Exception,
    };
    Failure::new(cause, text.to_string_lossy().into_owned(), said)
}

/// All entries of one of llama.cpp's lists. `write` stores as many entries as there is room for, and returns the length
/// of the whole list. If there was too little room, `write` is called again.
///
/// # Safety
///
/// `write` must initialise the entries that it counts, up to the room that it was given.
pub(crate) unsafe fn list<T>(mut write: impl FnMut(*mut T, i32) -> i32) -> Vec<T> {
    // There is room for all buffer types of a context. A second query for them would reserve the graphs again.
    let mut list = Vec::with_capacity(64);
    loop {
        let room = i32::try_from(list.capacity()).unwrap_or(i32::MAX);
        let count = write(list.as_mut_ptr(), room);
        let len = usize::try_from(count).unwrap_or(0);
        if count <= room {
            // SAFETY: `len` is at most the capacity, and `write` has initialised `len` entries, as the caller promises.
            unsafe { list.set_len(len) };
            return list;
        }
        list.reserve(len);
    }
}
