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
    /// be: [`Backend::names`](crate::Backend::names) lists those that are.
    pub backends: Vec<&'static str>,
    /// CPU code threaded by OpenMP (else by ggml's own pool).
    pub openmp: bool,
    /// Threads that wait for others of their graph sleep after some microseconds, so that they keep no other program
    /// from computing. Else they spin; with OpenMP its runtime decides.
    pub threads_sleep: bool,
    /// Backends are loadable libraries.
    pub dynamic_backends: bool,
}

/// How the native code of this program was built. Runs none of it that needs a particular CPU. With `prebuilt-runtime`,
/// opens the runtime; where there is none, nothing is known but this.
pub fn build_info() -> BuildInfo {
    #[cfg(feature = "prebuilt-runtime")]
    let Ok(manifest) = crate::runtime::open().map(|choice| &choice.set.manifest) else {
        return BuildInfo {
            llama_cpp: "of a runtime, and there is none".to_owned(),
            instruction_set: Vec::new(),
            unused_instructions: Vec::new(),
            backends: Vec::new(),
            openmp: false,
            threads_sleep: false,
            dynamic_backends: true,
        };
    };
    #[cfg(feature = "prebuilt-runtime")]
    let backends = manifest.backends.iter().map(String::as_str);
    #[cfg(not(feature = "prebuilt-runtime"))]
    let backends = env!("LLAMA_SYS_BACKENDS").split(',');
    // SAFETY: returns a string literal (llama.cpp `llama_version`).
    let version = unsafe { std::ffi::CStr::from_ptr(raw::llama_version()) };
    BuildInfo {
        llama_cpp: version.to_string_lossy().into_owned(),
        instruction_set: isa::required().collect(),
        unused_instructions: isa::unused().collect(),
        backends: backends.filter(|name| !name.is_empty()).collect(),
        openmp: has_openmp(),
        threads_sleep: threads_sleep(),
        dynamic_backends: backends_are_loadable(),
    }
}

/// Whether OpenMP's runtime has the CPU's threads.
pub(crate) fn has_openmp() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    return crate::runtime::manifest().is_some_and(|manifest| manifest.openmp);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return env!("LLAMA_SYS_OPENMP") == "1";
}

/// Whether ggml was compiled with the barrier of `native/wait.h`.
fn threads_sleep() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    return crate::runtime::manifest().is_some_and(|manifest| manifest.threads_sleep);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return env!("LLAMA_SYS_THREADS_SLEEP") == "1";
}

/// Whether backends are loadable libraries, and which of the CPU's is loaded is chosen at run time.
pub(crate) fn backends_are_loadable() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    return crate::runtime::manifest().is_none_or(|manifest| manifest.loadable);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return cfg!(feature = "dynamic-backends");
}

impl fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "llama.cpp {} ({}", self.llama_cpp, self.backends.join(", "))?;
        if self.dynamic_backends {
            f.write_str("; loadable backends")?;
        }
        f.write_str(match (self.openmp, self.threads_sleep) {
            (true, _) => "; OpenMP",
            (false, true) => "; threads that sleep",
            (false, false) => "; threads that spin",
        })?;
        if !self.instruction_set.is_empty() {
            write!(f, "; {}", self.instruction_set.join(" "))?;
        }
        f.write_str(")")
    }
}
