//! Runs a local model that does not quite fit its GPU, without the silent slow-down.
//!
//! See the README for the promise; `ARCHITECTURE.md` for the rooms of this crate and the one direction data flows.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as autoplace;

#[cfg(feature = "chat")]
pub mod chat;
#[cfg(feature = "llama")]
pub mod embed;
#[cfg(feature = "llama")]
pub mod generate;
pub mod gguf;
mod json;
#[cfg(feature = "llama")]
pub mod load;
pub mod machine;
pub mod memory;
#[cfg(feature = "openai")]
pub mod openai;
pub mod plan;
pub mod profile;
#[cfg(feature = "llama")]
mod serve;
pub mod watch;
#[cfg(feature = "llama")]
pub mod worker;

/// Compiles the README's examples.
#[cfg(all(doctest, feature = "llama"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "llama")]
pub use embed::Embedder;
#[cfg(feature = "llama")]
pub use load::{Model, ModelBuilder};
pub use plan::{Plan, Planner};
#[cfg(feature = "llama")]
pub use serve::worker_main;
#[cfg(feature = "llama")]
pub use worker::{Isolation, OnDeath, WorkerProcess};

/// The native layer underneath, in the version that this crate was built with.
#[cfg(feature = "llama")]
pub use llama_sys;
