//! Make the plan so: a [`Model`], loaded where the plan says, with the one context that the plan made room for.
//!
//! In: a path and a [`Request`](crate::plan::Request). Out: a [`Model`]. In between: read the header, ask the machine, plan,
//! let llama.cpp confirm the plan without allocating, load.

mod better;
mod builder;
mod devices;
mod error;
mod headroom;
mod lease;
mod model;
mod probe;
mod pulse;
mod recipe;
mod replay;
mod requested;
mod room;
mod slot;

pub use better::BetterPlan;
pub use builder::ModelBuilder;
pub use devices::{build_name, detect};
pub use error::Error;
pub use headroom::{Doubt, MeasuredHeadroom};
pub use lease::Leases;
pub use model::Model;
pub(crate) use model::WeakModel;
pub use probe::{NativeProbe, PlacedProbe};
pub(crate) use pulse::Pulse;
pub use requested::Replacement;
pub(crate) use slot::ContextSlot;
