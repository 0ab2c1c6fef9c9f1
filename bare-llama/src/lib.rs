//! llama.cpp's own API without this library around it, for comparisons in benchmarks and in the GPU check.
//!
//! In: a file, and the placement of its layers. Out: [`Bare`], a model with its context, and its speed by the protocol
//! of llama.cpp's llama-bench. The crate also has llama.cpp's own fit (feature `fit`), the sampler [`chain`] of the
//! library's defaults, a [`Buffer`] that takes memory of a device, and [turns](in_turns) of two ways to do the same
//! work.

mod bare;
mod chain;
mod devices;
mod dice;
#[cfg(feature = "fit")]
mod fit;
mod params;
mod speed;
mod turns;

pub use bare::Bare;
pub use chain::chain;
pub use devices::Buffer;
#[cfg(feature = "fit")]
pub use fit::{Fit, FitRequest};
pub use params::native_context;
pub use turns::{in_turns, median};
