//! What was compiled: for bug reports, and to explain a speed.

use std::fmt;

use crate::{isa, raw};

/// How the native code of this program was built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildInfo {
    /// llama.cpp's version, such as `0.6.0-dev`.
    pub llama_cpp: String,
    /// CPU features that the code was compiled for and requires; empty with `dynamic-backends`, which
    /// choose at run time.
    pub instruction_set: Vec<&'static str>,
    /// CPU features that this computer has and that would make the code faster, had it been compiled for them (`native`
    /// does); empty with `dynamic-backends`.
    pub unused_instructions: Vec<&'static str>,
    /// Backends that were built, by ggml's names. With `dynamic-backends` they are loaded at run time, and others may
    /// be: [`Backend::names`](crate::Backend::names) tells which are.
    pub backends: Vec<&'static str>,
    /// CPU code threaded by OpenMP (else by ggml's own pool).
    pub openmp: bool,
    /// Backends are loadable libraries.
    pub dynamic_backends: bool,
}

/// How the native code of this program was built. Runs none of it that needs a particular CPU.
pub fn build_info() -> BuildInfo {
    // SAFETY: returns a string literal (llama.cpp `llama_version`).
    let version = unsafe { std::ffi::CStr::from_ptr(raw::llama_version()) };
    BuildInfo {
        llama_cpp: version.to_string_lossy().into_owned(),
        instruction_set: isa::required().collect(),
        unused_instructions: isa::unused().collect(),
        backends: env!("LLAMA_SYS_BACKENDS").split(',').filter(|name| !name.is_empty()).collect(),
        openmp: env!("LLAMA_SYS_OPENMP") == "1",
        dynamic_backends: cfg!(feature = "dynamic-backends"),
    }
}

impl fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "llama.cpp {} ({}", self.llama_cpp, self.backends.join(", "))?;
        if self.dynamic_backends {
            f.write_str("; loadable backends")?;
        }
        f.write_str(if self.openmp { "; OpenMP" } else { "; ggml threads" })?;
        if !self.instruction_set.is_empty() {
            write!(f, "; {}", self.instruction_set.join(" "))?;
        }
        f.write_str(")")
    }
}
