//! The interface through which the planner gets the bytes that llama.cpp counts for a placement.

use crate::machine::{Bytes, Gpu};
use crate::memory::{ContextParams, Footprint, Footprints, Split};

/// Returns the memory that a placement takes according to llama.cpp, without loading the model.
///
/// The planner calls a probe for a handful of placements. The load room implements it. Without a probe, the planner
/// uses the estimate.
pub trait Probe {
    /// Bytes that the model takes on each device with this split over these GPUs. Without GPUs, the model is on the
    /// host.
    ///
    /// The answer may leave `output` at 0. The planner then adds the buffer of logits to the host's `compute`, because
    /// llama.cpp's breakdown does not count it.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if a device lacks memory for an allocation of the probe itself; the planner then treats the placement
    /// as if it did not fit. Any other error means that llama.cpp gave no answer; the planner then leaves these devices
    /// out.
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>>;
}

/// The answer with an output buffer of `output` bytes added, unless the answer already includes such a buffer.
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
    /// ggml's name of the device or buffer type, such as `CUDA0`; `the host` for memory outside of a buffer.
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
