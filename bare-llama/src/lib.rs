//! llama.cpp's own API without this library around it, for comparisons in benchmarks and in the GPU check.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let mut bare = bare_llama::Bare::load(Path::new("model.gguf"), 99, 8, |context| context.n_ctx = 4096)?;
//! println!("prompt {:.1} tok/s, generation {:.1} tok/s", bare.prompt(512)?, bare.generation(128)?);
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! In: a file, and the placement of its layers. Out: [`Bare`], a model with its context, and its speed by the protocol
//! of llama.cpp's llama-bench. The crate also has llama.cpp's own fit (feature `fit`), the sampler [`chain`] of the
//! library's defaults, and a [`Buffer`] that takes memory of a device.

mod bare;
mod chain;
mod devices;
mod dice;
#[cfg(feature = "fit")]
mod fit;
mod params;
mod speed;

pub use bare::Bare;
pub use chain::chain;
pub use devices::Buffer;
#[cfg(feature = "fit")]
pub use fit::{Fit, FitRequest};
pub use params::native_context;
