//! The raw bindings: llama.cpp's C API, ggml's backend interface and the shim, as bindgen wrote them.
//!
//! Regenerated and compared by `cargo xtask bindings`. One file serves every platform: C enums are [`CEnum`], the
//! single thing that differs between ABIs in what llama.cpp exposes.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    clippy::all
)]

/// The type of a C enum without negative values: unsigned for gcc and clang, signed for MSVC.
#[cfg(target_env = "msvc")]
pub type CEnum = core::ffi::c_int;
/// The type of a C enum without negative values: unsigned for gcc and clang, signed for MSVC.
#[cfg(not(target_env = "msvc"))]
pub type CEnum = core::ffi::c_uint;

include!("bindings.rs");
