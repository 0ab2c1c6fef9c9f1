//! Facts about the native build. They are meant for bug reports, and can explain why a program is slow or fast.

use std::fmt;

use super::isa::cpu_has;
use crate::raw;

/// How the native code of this program was built.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildInfo {
    /// llama.cpp's version, such as `0.6.0-dev`.
    pub llama_cpp: String,
    /// CPU features that the code was compiled for and requires. Empty with `dynamic-backends`, which choose their code
    /// at run time.
    pub instruction_set: Vec<&'static str>,
    /// CPU features of this computer that would make the code faster if it were compiled for them (feature `native`).
    /// Empty with `dynamic-backends`.
    pub unused_instructions: Vec<&'static str>,
    /// The names that ggml gives to the backends that were built. With `dynamic-backends` these backends are loaded at
    /// run time, and others may be loaded too. [`Backend::names`](crate::Backend::names) lists the loaded backends.
    pub backends: Vec<&'static str>,
    /// Whether OpenMP runs the CPU's threads. If not, ggml's own thread pool runs them.
    pub openmp: bool,
    /// Whether a thread that waits for other threads of its graph sleeps after some microseconds, which leaves the core
    /// to other programs. If not, such a thread spins. With OpenMP, OpenMP's runtime decides.
    pub threads_sleep: bool,
    /// Whether the backends are loadable libraries.
    pub dynamic_backends: bool,
}

/// How the native code of this program was built. The call is safe even on a CPU that the native code does not support.
/// With `prebuilt-runtime` it opens the runtime. If there is no runtime, [`BuildInfo::llama_cpp`] contains a message
/// about that, and the other fields say nothing.
pub fn build_info() -> BuildInfo {
    #[cfg(feature = "prebuilt-runtime")]
    let Ok(manifest) = super::runtime::open().map(|choice| &choice.set.manifest) else {
        return BuildInfo {
            llama_cpp: "none: there is no runtime to open".to_owned(),
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
        instruction_set: required().collect(),
        unused_instructions: unused().collect(),
        backends: backends.filter(|name| !name.is_empty()).collect(),
        openmp: has_openmp(),
        threads_sleep: threads_sleep(),
        dynamic_backends: backends_are_loadable(),
    }
}

/// Whether OpenMP's runtime runs the CPU's threads.
pub(crate) fn has_openmp() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    return super::runtime::manifest().is_some_and(|manifest| manifest.openmp);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return env!("LLAMA_SYS_OPENMP") == "1";
}

/// Whether ggml was compiled with the barrier of `native/wait.h`.
fn threads_sleep() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    return super::runtime::manifest().is_some_and(|manifest| manifest.threads_sleep);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return env!("LLAMA_SYS_THREADS_SLEEP") == "1";
}

/// Whether the backends are loadable libraries, so that the CPU's backend is chosen at run time.
fn backends_are_loadable() -> bool {
    #[cfg(feature = "prebuilt-runtime")]
    return super::runtime::manifest().is_none_or(|manifest| manifest.loadable);
    #[cfg(not(feature = "prebuilt-runtime"))]
    return cfg!(feature = "dynamic-backends");
}

/// The CPU features that the native code requires. For linked code, the build script recorded these features. An opened
/// runtime lists them in its manifest.
pub(crate) fn required() -> impl Iterator<Item = &'static str> {
    let linked = env!("LLAMA_SYS_INSTRUCTION_SET").split(',').filter(|name| !name.is_empty());
    #[cfg(feature = "prebuilt-runtime")]
    let linked = linked.chain(
        super::runtime::manifest().into_iter().flat_map(|manifest| manifest.instructions.iter().map(String::as_str)),
    );
    linked
}

/// The CPU features that would speed ggml up most, among those that this CPU has and the native code does not use.
fn unused() -> impl Iterator<Item = &'static str> {
    #[cfg(target_arch = "x86_64")]
    const FAST: [&str; 6] = ["avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni"];
    #[cfg(target_arch = "aarch64")]
    const FAST: [&str; 3] = ["dotprod", "i8mm", "sve"];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const FAST: [&str; 0] = [];
    let chosen_later = backends_are_loadable();
    FAST.into_iter().filter(move |name| !chosen_later && cpu_has(name) && !required().any(|compiled| compiled == *name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_what_the_native_code_was_compiled_for() {
        assert_eq!(super::super::missing(required(), cpu_has), Vec::<String>::new());
    }

    #[cfg(all(target_arch = "x86_64", feature = "native"))]
    #[test]
    fn a_native_build_records_instructions() {
        // An x86-64 compiler that builds for its own CPU defines at least SSE3.
        assert!(required().count() > 0);
    }
}
