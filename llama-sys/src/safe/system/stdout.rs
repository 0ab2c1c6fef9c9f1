//! stdout on Windows. A worker sends its messages to stdout, and a line that a C library printed there would look like
//! a message.

use std::ffi::c_int;
use std::io;

// Functions of the C library (io.h).
unsafe extern "C" {
    fn _dup2(from: c_int, to: c_int) -> c_int;
}

/// From now on, sends to stderr whatever this process prints to stdout, including output of C libraries that use the
/// same C runtime. If a handle of stdout was copied before, the copy stays valid.
///
/// # Errors
///
/// An error if the C library has no stdout or no stderr. This is so in programs that were started without a console and
/// without redirection.
pub fn print_to_stderr() -> io::Result<()> {
    // SAFETY: the call touches no memory. It closes stdout's handle. Rust keeps no copy of the handle, but asks the
    // system for it each time.
    match unsafe { _dup2(2, 1) } {
        0 => Ok(()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::process::Command;

    // From stdio.h.
    unsafe extern "C" {
        fn puts(text: *const c_char) -> c_int;
        fn fflush(file: *mut c_void) -> c_int;
    }

    const TEST: &str = "safe::system::stdout::tests::output_of_c_goes_to_stderr";

    fn print(text: &CStr) {
        // SAFETY: the text ends with a zero byte; fflush of a null pointer flushes every stream.
        unsafe { (puts(text.as_ptr()), fflush(std::ptr::null_mut())) };
    }

    #[test]
    fn output_of_c_goes_to_stderr() {
        if std::env::var_os(TEST).is_some() {
            print(c"before");
            super::print_to_stderr().unwrap();
            return print(c"after");
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", TEST, "--nocapture"]).env(TEST, "1").output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(stdout.contains("before") && !stdout.contains("after"), "{stdout}");
        assert!(stderr.contains("after"), "{stderr}");
    }
}
