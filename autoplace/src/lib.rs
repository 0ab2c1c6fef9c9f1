//! Runs a local model that does not quite fit its GPU, without the silent slow-down.
//!
//! See the README for the promise; `ARCHITECTURE.md` for the rooms of this crate and the one direction data flows.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as autoplace;

pub mod embed;
mod error;
pub mod generate;
pub mod load;
mod serve;
pub mod watch;
pub mod worker;

/// Compiles the README's examples.
#[cfg(all(doctest, feature = "schemars"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use autoplace_chat as chat;
pub use autoplace_planner::{Plan, Planner, gguf, machine, memory, plan, profile};
pub use embed::Embedder;
pub use error::Error;
pub use load::{Model, ModelBuilder};
pub use serve::worker_main;
pub use worker::{Isolation, OnDeath, WorkerProcess};

/// The native layer underneath, in the version that this crate was built with.
pub use llama_sys;
