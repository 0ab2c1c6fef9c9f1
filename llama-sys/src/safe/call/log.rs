//! llama.cpp's log: passed on to `tracing`, and captured for errors.
//!
//! Nothing is printed unless the application installs a subscriber. The target is the ggml module that logs
//! (`ggml::cuda`, `ggml::vulkan`, ...); all other lines have the target `llama`. llama.cpp logs more at INFO than an
//! application wants to see, so INFO becomes DEBUG.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::panic;

use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::raw;

/// Maximum number of lines that are kept for each captured call. One failure logs a chain of "failed to ..." lines, and
/// even the longest chain is shorter.
const CAPTURED_LINES: usize = 32;

#[derive(Default)]
struct ThreadLog {
    /// The number of [`quietly`] calls in progress. While it is above 0, nothing goes to `tracing`.
    quiet: usize,
    /// A line whose end was not logged yet, with its level.
    partial: Option<(Level, String)>,
    /// The logs of the captures in progress; the innermost capture is the last.
    captures: Vec<Captured>,
}

/// llama.cpp's log during a call.
#[derive(Default)]
pub(crate) struct Captured {
    /// Warnings and errors, oldest first.
    pub(crate) lines: Vec<String>,
    /// The first line with the level of an error. Later error lines only report that the calling functions failed too.
    pub(crate) first_error: Option<String>,
}

thread_local! {
    static LOG: RefCell<ThreadLog> = RefCell::default();
}

/// Makes llama.cpp and ggml log to this module.
pub(crate) fn install() {
    // SAFETY: llama_log_set also sets ggml's logger (llama.cpp `llama_log_set`); `on_log` is a plain function that
    // never unwinds. Called once, from `Backend::init`, before any other function of llama.cpp runs.
    unsafe {
        raw::llama_log_set(Some(on_log), std::ptr::null_mut());
        raw::shim_media_log(Some(on_log), std::ptr::null_mut());
    }
}

/// Runs `f`. Returns its result, with the warnings and errors that llama.cpp logged on this thread meanwhile.
pub(crate) fn capture<T>(f: impl FnOnce() -> T) -> (T, Captured) {
    begin();
    let value = f();
    (value, end())
}

// This is a separate function, so that the compiler does not copy its code for each type of `f`.
#[inline(never)]
fn begin() {
    LOG.with_borrow_mut(|log| log.captures.push(Captured::default()));
}

#[inline(never)]
fn end() -> Captured {
    LOG.with_borrow_mut(|log| log.captures.pop().unwrap_or_default())
}

/// Runs `f`. Meanwhile, lines that llama.cpp logs on this thread do not go to `tracing`, but errors still carry them.
///
/// This is for frequent queries whose log is of no use. For example, a load without data logs about a thousand lines.
pub fn quietly<T>(f: impl FnOnce() -> T) -> T {
    /// Ends the silence when it is dropped, even if `f` panics.
    struct Silence;
    impl Drop for Silence {
        fn drop(&mut self) {
            LOG.with_borrow_mut(|log| log.quiet -= 1);
        }
    }
    LOG.with_borrow_mut(|log| log.quiet += 1);
    let _silence = Silence;
    f()
}

unsafe extern "C" fn on_log(level: raw::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // A panic in a subscriber must not unwind into C.
    let _ = panic::catch_unwind(|| {
        // SAFETY: llama.cpp passes a NUL-terminated string that lives during the call (llama-impl.cpp,
        // llama_log_internal_v).
        let text = unsafe { CStr::from_ptr(text) };
        let level = match level {
            raw::GGML_LOG_LEVEL_ERROR => Some(Level::ERROR),
            raw::GGML_LOG_LEVEL_WARN => Some(Level::WARN),
            raw::GGML_LOG_LEVEL_INFO => Some(Level::DEBUG),
            raw::GGML_LOG_LEVEL_CONT => None,
            _ => Some(Level::TRACE),
        };
        if unheard(level, text) {
            return;
        }
        let text = text.to_string_lossy();
        // While a thread is being destroyed, its slot may no longer exist. The line is lost then.
        let finished = LOG.try_with(|log| {
            let Ok(mut log) = log.try_borrow_mut() else {
                return Vec::new();
            };
            let finished = log.append(level, &text);
            if log.quiet > 0 { Vec::new() } else { finished }
        });
        for (level, line) in finished.unwrap_or_default() {
            emit(level, &line);
        }
    });
}

/// Whether a piece of text is a complete line that is used neither for errors nor by a subscriber. This is true for
/// most lines, so it is tested first.
fn unheard(level: Option<Level>, text: &CStr) -> bool {
    // More verbose levels compare as greater than less verbose ones.
    let Some(level) = level.filter(|level| *level > Level::WARN && text.to_bytes().ends_with(b"\n")) else {
        return false;
    };
    let unheard = LOG.try_with(|log| {
        let Ok(log) = log.try_borrow() else {
            return false;
        };
        log.partial.is_none() && (log.quiet > 0 || LevelFilter::current() < level)
    });
    unheard.unwrap_or(true)
}

impl ThreadLog {
    /// Adds a piece of text and returns the lines that it completes. `None` continues the previous line.
    fn append(&mut self, level: Option<Level>, text: &str) -> Vec<(Level, String)> {
        let mut finished = Vec::new();
        for piece in text.split_inclusive('\n') {
            let (line_level, line) = self.partial.get_or_insert_with(|| (level.unwrap_or(Level::DEBUG), String::new()));
            line.push_str(piece.trim_end_matches(['\n', '\r']));
            if piece.ends_with('\n') {
                let line_level = *line_level;
                let line = std::mem::take(line);
                self.partial = None;
                // llama.cpp shows progress by a line of dots.
                if !line.trim_matches(['.', ' ']).is_empty() {
                    finished.push((line_level, line));
                }
            }
        }
        for (level, line) in &finished {
            if *level <= Level::WARN {
                for capture in &mut self.captures {
                    if capture.lines.len() < CAPTURED_LINES {
                        capture.lines.push(line.clone());
                    }
                    if *level == Level::ERROR && capture.first_error.is_none() {
                        capture.first_error = Some(line.clone());
                    }
                }
            }
        }
        finished
    }
}

/// `tracing` requires a static target, so the modules are listed.
fn emit(level: Level, line: &str) {
    macro_rules! with_target {
        ($target:literal) => {
            match level {
                Level::ERROR => tracing::error!(target: $target, "{line}"),
                Level::WARN => tracing::warn!(target: $target, "{line}"),
                Level::DEBUG => tracing::debug!(target: $target, "{line}"),
                _ => tracing::trace!(target: $target, "{line}"),
            }
        };
    }
    match module(line) {
        "cuda" => with_target!("ggml::cuda"),
        "vulkan" => with_target!("ggml::vulkan"),
        "metal" => with_target!("ggml::metal"),
        "rpc" => with_target!("ggml::rpc"),
        "cpu" => with_target!("ggml::cpu"),
        "ggml" => with_target!("ggml"),
        _ => with_target!("llama"),
    }
}

/// The module that the function at the start of a line belongs to.
fn module(line: &str) -> &'static str {
    const PREFIXES: &[(&str, &str)] = &[
        ("ggml_cuda", "cuda"),
        ("ggml_backend_cuda", "cuda"),
        ("ggml_vulkan", "vulkan"),
        ("ggml_vk", "vulkan"),
        ("ggml_backend_vk", "vulkan"),
        ("ggml_metal", "metal"),
        ("ggml_backend_metal", "metal"),
        ("ggml_backend_rpc", "rpc"),
        ("ggml_rpc", "rpc"),
        ("ggml_backend_cpu", "cpu"),
        ("ggml_cpu", "cpu"),
        ("ggml", "ggml"),
        ("gguf", "ggml"),
        ("alloc_tensor_range", "ggml"),
    ];
    PREFIXES.iter().find(|(prefix, _)| line.starts_with(prefix)).map_or("llama", |&(_, module)| module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continued_pieces_become_one_line_at_the_level_it_began_with() {
        let mut log = ThreadLog::default();
        assert!(log.append(Some(Level::WARN), "half a ").is_empty());
        let lines = log.append(None, "line\nnext\n");
        assert_eq!(lines[0], (Level::WARN, "half a line".to_owned()));
        assert_eq!(lines[1].1, "next");
        // A progress bar of dots does not count as a line.
        assert!(log.append(Some(Level::DEBUG), "......\n").is_empty());
    }

    #[test]
    fn lines_that_nobody_would_see_are_dropped_at_once() {
        quietly(|| {
            assert!(unheard(Some(Level::DEBUG), c"a line\n"));
            assert!(!unheard(Some(Level::WARN), c"an error may carry it\n"));
            assert!(!unheard(Some(Level::DEBUG), c"the rest may follow"));
            LOG.with_borrow_mut(|log| log.append(Some(Level::WARN), "half a "));
            assert!(!unheard(Some(Level::DEBUG), c"line\n"));
            LOG.with_borrow_mut(|log| log.append(None, "line\n"));
        });
        assert_eq!(LOG.with_borrow(|log| log.quiet), 0);
    }

    #[test]
    fn a_line_belongs_to_the_module_whose_function_wrote_it() {
        assert_eq!(module("ggml_cuda_init: found 1 CUDA devices"), "cuda");
        assert_eq!(module("ggml_vulkan: Found 1 Vulkan devices"), "vulkan");
        assert_eq!(module("load_tensors: offloaded 3/7 layers"), "llama");
    }
}
