//! The interface by which the planner asks llama.cpp.

use crate::machine::{Bytes, Gpu};
use crate::memory::{ContextParams, Footprint, Footprints, Split};

/// Asks llama.cpp how much memory a placement takes, without loading the model.
///
/// The planner calls it for a handful of placements. The load room implements it; without a probe the estimate decides.
pub trait Probe {
    /// Bytes that the model takes on each device, split over these GPUs as `split` says. Without GPUs, the model is on
    /// the host.
    ///
    /// The answer may leave `output` at 0: the planner then adds the buffer of logits, which llama.cpp's breakdown does
    /// not count, to the host's `compute`.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if a device lacks memory for an allocation that the probe itself makes; the planner takes this as a
    /// placement that does not fit. Any other error means that llama.cpp gave no answer; the planner then leaves these
    /// devices out.
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>>;
}

/// The answer with an output buffer of `output` bytes added, unless it already has one.
pub(super) fn with_output(mut answer: Footprints, output: u64) -> Footprints {
    if answer.output == 0 {
        answer.output = output;
        answer.host += Footprint::new(0, 0, output);
    }
    answer
}

/// A device lacks memory for a buffer that the probe really allocates, such as a control vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device} has no room for {}", Bytes(*bytes))]
#[non_exhaustive]
pub struct NoRoom {
    /// The device's name in ggml.
    pub device: String,
    /// Bytes of the buffer.
    pub bytes: u64,
}

impl NoRoom {
    /// The error for a buffer of `bytes` bytes on `device`.
    pub fn new(device: impl Into<String>, bytes: u64) -> Self {
        Self { device: device.into(), bytes }
    }
}
