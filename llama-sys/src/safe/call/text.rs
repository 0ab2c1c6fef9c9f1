//! Conversion of texts and paths between Rust and C.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use super::Error;

/// The text of a C string; empty for NULL. Bytes that are not UTF-8 are replaced.
///
/// # Safety
///
/// `text` is NULL or a NUL-terminated string.
pub(crate) unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A path in the form that llama.cpp expects: bytes on Unix, and UTF-8 on Windows, which llama.cpp itself converts to
/// UTF-16.
pub(crate) fn path_to_c(path: &Path) -> Result<CString, Error> {
    #[cfg(unix)]
    let bytes = {
        use std::os::unix::ffi::OsStrExt;
        Some(path.as_os_str().as_bytes().to_vec())
    };
    #[cfg(not(unix))]
    let bytes = path.to_str().map(|text| text.as_bytes().to_vec());

    bytes.and_then(|bytes| CString::new(bytes).ok()).ok_or_else(|| Error::Unreadable {
        path: path.to_owned(),
        reason: "the path contains a NUL byte, or is not valid Unicode".into(),
    })
}
