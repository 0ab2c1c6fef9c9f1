//! Make the plan so: a [`Model`], loaded where the plan says, with the one context that the plan made room for.
//!
//! In: a path and a [`Request`](crate::plan::Request). Out: a [`Model`]. In between: read the header, ask the machine, plan,
//! let llama.cpp confirm the plan without allocating, load.

mod builder;
mod devices;
mod error;
mod headroom;
mod probe;
mod replay;
mod room;
mod slot;

use std::path::Path;
use std::sync::Arc;

pub use builder::ModelBuilder;
pub use devices::{build_name, detect};
pub use error::Error;
use headroom::LoadReadings;
pub use headroom::{Doubt, MeasuredHeadroom};
pub use probe::{NativeProbe, PlacedProbe};
pub(crate) use slot::ContextSlot;

use crate::machine::Machine;
use crate::memory::{Footprints, probe as native_probe};
use crate::plan::Plan;

/// A loaded model. Cloning is cheap; everything is freed when the last clone and the last stream are dropped.
#[derive(Debug, Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    native: llama_sys::Model,
    slot: Arc<ContextSlot>,
    plan: Plan,
    machine: Machine,
    allocated: Footprints,
    readings: LoadReadings,
}

impl Model {
    /// Loads a GGUF file (of a split one, the first part) with as many layers on the GPU as are safe.
    ///
    /// # Errors
    ///
    /// As [`ModelBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).load()
    }

    /// Describes a load: context, KV type, headroom, layers, progress.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(path.as_ref())
    }

    fn new(
        native: llama_sys::Model,
        slot: ContextSlot,
        plan: Plan,
        machine: Machine,
        devices: &[llama_sys::Device],
        before: LoadReadings,
    ) -> Self {
        let allocated = slot
            .peek(llama_sys::Context::memory_breakdown)
            .and_then(Result::ok)
            .map(|breakdown| native_probe::footprints(&breakdown, devices))
            .unwrap_or_default();
        Self {
            inner: Arc::new(Inner {
                native,
                slot: Arc::new(slot),
                plan,
                machine,
                allocated,
                readings: before.loaded(),
            }),
        }
    }

    /// What went where, and why. Its `Display` is a table.
    pub fn placement(&self) -> &Plan {
        &self.inner.plan
    }

    /// The machine as it was when the plan was made.
    pub fn machine(&self) -> &Machine {
        &self.inner.machine
    }

    /// What llama.cpp says it has allocated, GPUs in the order of the plan: to stand beside the plan's footprints. The buffer
    /// of logits is not in it, and a mapped file counts with its span.
    pub fn allocated(&self) -> &Footprints {
        &self.inner.allocated
    }

    /// The model underneath, for what this crate does not cover. Contexts made of it take memory that the plan did not count.
    pub fn native(&self) -> &llama_sys::Model {
        &self.inner.native
    }

    pub(crate) fn context_slot(&self) -> Arc<ContextSlot> {
        Arc::clone(&self.inner.slot)
    }
}
