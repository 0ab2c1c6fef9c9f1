//! The native build: its identity, its instruction set, and the runtime. A program with `prebuilt-runtime` opens a
//! runtime, and links no native code.

mod info;
mod isa;
#[cfg(feature = "prebuilt-runtime")]
pub(crate) mod runtime;

pub use info::{BuildInfo, build_info};
pub(crate) use info::{has_openmp, required};
pub(crate) use isa::{cpu_has, missing};

/// A hash over the bindings and the native code. A runtime with another hash is not opened.
pub const BUILD: &str = env!("LLAMA_SYS_BUILD");

/// The processor, system and C library that this crate was compiled for, as runtimes write them: `x86_64-linux-gnu`.
pub const TARGET: &str = env!("LLAMA_SYS_TARGET");
