//! The checked door: runs a shim function with its error slot and the log capture, and makes a [`Failure`] of
//! what went wrong.

use std::ffi::CStr;

use crate::error::{Cause, Failure};
use crate::log::{self, Captured};
use crate::raw;

/// Runs `call`. `Err` when the shim reported an exception or an assertion; the value is not looked at.
pub(crate) fn checked<T>(call: impl FnOnce(*mut raw::shim_error) -> T) -> Result<T, Failure> {
    accepted(call, |_| true)
}

/// Runs `call` and also treats a value for which `ok` is false as a failure, with what llama.cpp logged as the reason.
pub(crate) fn accepted<T>(
    call: impl FnOnce(*mut raw::shim_error) -> T,
    ok: impl FnOnce(&T) -> bool,
) -> Result<T, Failure> {
    let mut error = raw::shim_error { status: raw::SHIM_STATUS_OK, message: [0; 2048] };
    let (value, said) = log::capture(|| call(&raw mut error));
    if error.status == raw::SHIM_STATUS_OK && ok(&value) {
        return Ok(value);
    }
    // SAFETY: it was empty, and the shim ends what it writes with a NUL (snprintf).
    Err(unsafe { failed(&raw const error, said) })
}

/// The hot path: no log capture, and a failure is put together only when there is one.
pub(crate) fn quick<T>(call: impl FnOnce(*mut raw::shim_error) -> T) -> Result<T, Failure> {
    // Only the status is initialised: the shim writes the message before it sets a status other than OK.
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

/// What went wrong: the call itself, or, with a status of OK, its value was none to accept.
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
        raw::SHIM_STATUS_OK => Cause::Refused,
        raw::SHIM_STATUS_OUT_OF_MEMORY => Cause::HostMemory,
        raw::SHIM_STATUS_ASSERTION => Cause::Assertion,
        _ => Cause::Exception,
    };
    Failure::new(cause, text.to_string_lossy().into_owned(), said)
}

/// All entries of one of llama.cpp's lists. `write` puts as many of them there as it is given room for, and returns how
/// many the list has; where the room was too little it is called again.
///
/// # Safety
///
/// As many entries as `write` returns, or as it had room for if that is less, must be initialised.
pub(crate) unsafe fn list<T>(mut write: impl FnMut(*mut T, i32) -> i32) -> Vec<T> {
    // Enough for the buffer types of a context, which take a reservation each time they are asked for.
    let mut list = Vec::with_capacity(64);
    loop {
        let room = i32::try_from(list.capacity()).unwrap_or(i32::MAX);
        let count = write(list.as_mut_ptr(), room);
        let len = usize::try_from(count).unwrap_or(0);
        if count <= room {
            // SAFETY: `room` is at most the capacity, and `write` has initialised so many, as the caller promises.
            unsafe { list.set_len(len) };
            return list;
        }
        list.reserve(len);
    }
}
