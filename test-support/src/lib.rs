//! Code that tests and benchmarks of several crates share.
//!
//! ```
//! // A model of a few kilobytes, with a vocabulary; no test needs a download.
//! let header = test_support::tiny::tiny_llama().header()?;
//! assert_eq!(header.architecture()?, "llama");
//! # Ok::<(), autoplace_gguf::Error>(())
//! ```
//!
//! - Models: [`synthetic`] headers (the tensor data is a hole in the file), [`shapes`] of well-known models, models
//!   with [`random_weights`] that can be computed, [`embedding_models`], models with [`prediction_heads`], [`tiny`]
//!   models, [`lora`] adapters, and valid and invalid [`headers`].
//! - Fixtures: [`plans`], [`replies`], [`table`]s of cases, [`llama_source`].
//! - Other programs: an [`http`] server, a [`hub_server`], an example as a [`program`], and llama-server.
//! - The process of a test: [`mod@own_process`], [`counting`].
//!
//! This crate depends on only one crate of the workspace, `autoplace-gguf`, so that the unit tests of all other crates
//! can use it. The reason is that cargo compiles a crate a second time for its unit tests, and the types of the two
//! compilations differ.

#![allow(missing_docs, reason = "the helpers and fields of tests are named for what they are")]

mod assert_matches;
pub mod counting;
pub mod dims;
pub mod embedding_models;
pub mod headers;
pub mod http;
pub mod hub_server;
#[cfg(feature = "llama-server")]
pub mod llama_server;
pub mod llama_source;
pub mod lora;
pub mod own_process;
pub mod plans;
pub mod prediction_heads;
pub mod program;
pub mod random_weights;
pub mod replies;
pub mod running;
pub mod synthetic;
pub mod table;
pub mod tiny;
mod waiting;

pub use synthetic::shapes;
pub use waiting::{meanwhile, settled, wait};

use std::path::{Path, PathBuf};

/// The model that the repository ships.
pub fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/model/autoplace-demo-q8_0.gguf")
}
