//! Calls of the operating system that the standard library lacks, and substitutes for systems without such a call.
//! rustix has these calls for Unix, but takes as long to compile as this crate.

#[cfg(windows)]
mod sparse;
mod stack;
#[cfg(windows)]
mod stdout;
#[cfg(windows)]
mod video_memory;

use std::fs::File;
use std::io;
use std::path::PathBuf;

#[cfg(windows)]
pub use sparse::make_sparse;
pub(crate) use stack::with_stack;
#[cfg(windows)]
pub use stdout::print_to_stderr;
#[cfg(windows)]
pub use video_memory::{VideoMemory, VideoMemoryUse};

/// The number of the user whose process this is; 0 on Windows, where users have no number.
pub fn user_id() -> u32 {
    #[cfg(unix)]
    // SAFETY: takes no arguments and cannot fail.
    return unsafe { libc::getuid() };
    #[cfg(not(unix))]
    0
}

/// The limit of one of this process's resources; `None` without a limit.
#[cfg(unix)]
macro_rules! limit_of {
    ($resource:expr) => {{
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for writes of its type.
        let is_known = unsafe { libc::getrlimit($resource, &raw mut limit) } == 0;
        #[allow(
            clippy::useless_conversion,
            clippy::unnecessary_fallible_conversions,
            reason = "of another type elsewhere"
        )]
        u64::try_from(limit.rlim_cur).ok().filter(|_| is_known && limit.rlim_cur != libc::RLIM_INFINITY)
    }};
}

/// The longest file that this process may write (`ulimit -f`, `RLIMIT_FSIZE`), in bytes; `None` without a limit.
pub fn longest_file() -> Option<u64> {
    #[cfg(unix)]
    return limit_of!(libc::RLIMIT_FSIZE);
    #[cfg(not(unix))]
    None
}

/// The number of files and sockets that this process may have open (`ulimit -n`, `RLIMIT_NOFILE`); `None` without a
/// limit.
pub fn most_open_files() -> Option<u64> {
    #[cfg(unix)]
    return limit_of!(libc::RLIMIT_NOFILE);
    #[cfg(not(unix))]
    None
}

/// Creates an empty file in memory (`memfd_create`). Returns the file, and a path with which this process can open it
/// again.
///
/// # Errors
///
/// The system's error, if no file descriptors are left or there is no `/proc`. On systems other than Linux, this is
/// always an error.
pub fn file_in_memory() -> io::Result<(PathBuf, File)> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the name ends with a zero.
        let descriptor = unsafe { libc::memfd_create(c"autoplace".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened just now, and nobody else has it.
        let file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) };
        let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
        path.metadata().map(|_| (path, file))
    }
    #[cfg(not(target_os = "linux"))]
    Err(io::ErrorKind::Unsupported.into())
}

/// Ends this process with this exit code, while other threads may compute. Destructors of libraries don't run: they
/// would free what those threads use (`std::process::exit` runs them, except on Windows).
pub fn exit_at_once(code: i32) -> ! {
    #[cfg(unix)]
    // SAFETY: ends the process, and touches no memory.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// Ends this process at once: no destructors run, and its memory is not dumped (`SIGKILL`). On Windows the process
/// aborts.
pub fn end_this_process() -> ! {
    #[cfg(unix)]
    // SAFETY: the calls touch no memory of ours.
    unsafe {
        libc::raise(libc::SIGKILL);
    }
    std::process::abort()
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn the_user_owns_the_files_that_it_creates() {
        use std::os::unix::fs::MetadataExt;

        let folder = tempfile::tempdir().unwrap();
        assert_eq!(std::fs::metadata(folder.path()).unwrap().uid(), super::user_id());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_in_memory_is_read_again() {
        use std::io::Write;

        let (path, mut file) = super::file_in_memory().unwrap();
        file.write_all(b"GGUF").unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"GGUF");
    }
}
