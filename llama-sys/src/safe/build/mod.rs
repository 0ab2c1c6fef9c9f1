//! The native build: its identity, its instruction set, and the runtime that a program with `prebuilt-runtime` opens
//! instead of linking the native code.

mod info;
mod isa;
#[cfg(feature = "prebuilt-runtime")]
pub(crate) mod runtime;

pub use info::{BuildInfo, build_info};
pub(crate) use info::{has_openmp, required};
pub(crate) use isa::{cpu_has, missing};

/// A hash of the bindings and of the native code. A runtime of another build is not opened.
pub const BUILD: &str = env!("LLAMA_SYS_BUILD");

/// The processor, system and C library that this crate was compiled for, in the notation of runtimes:
/// `x86_64-linux-gnu`.
pub const TARGET: &str = env!("LLAMA_SYS_TARGET");
