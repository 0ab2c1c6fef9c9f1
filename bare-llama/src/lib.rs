//! llama.cpp's own API without this library around it, for comparisons in benchmarks, in tests of real models and in
//! the GPU check.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let mut bare = bare_llama::Bare::load(Path::new("model.gguf"), 99, 8, |context| context.n_ctx = 4096)?;
//! println!("prompt {:.1} tok/s, generation {:.1} tok/s", bare.prompt(512)?, bare.generation(128)?);
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! In: a file, and the placement of its layers. Out: [`Bare`], a model with its context. It has llama.cpp's own loops:
//! speeds by the protocol of llama-bench, texts of `examples/simple` and `examples/batched`, greedy tokens and logits.
//! The crate also has llama.cpp's own fit (feature `fit`), a [`Buffer`] that takes memory of a device, and
//! [turns](in_turns) of two ways to do the same work.

mod bare;
mod chain;
mod devices;
mod dice;
#[cfg(feature = "fit")]
mod fit;
mod params;
mod speed;
mod text;
mod turns;

pub use bare::Bare;
pub use devices::Buffer;
#[cfg(feature = "fit")]
pub use fit::{Fit, FitRequest};
pub use params::native_context;
pub use turns::{in_turns, median};
