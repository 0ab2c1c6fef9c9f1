//! The question that a planner may ask llama.cpp.

use crate::machine::{Bytes, Gpu};
use crate::memory::{ContextParams, Footprint, Footprints, Split};

/// Asks llama.cpp itself what a placement takes, without loading it.
///
/// Called for a handful of placements per plan. The load room implements it; without one the estimate decides.
pub trait Probe {
    /// Bytes per device with the model split so over these GPUs, or on the host alone where there are none.
    ///
    /// `output` of the answer may be left out (0): the planner then adds the buffer of logits, which llama.cpp's
    /// breakdown does not count, to the host's `compute`.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] where a device has too little for what the probe itself had to allocate: such a placement does not
    /// fit. Any other error keeps llama.cpp from answering, and counts against the devices.
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn std::error::Error + Send + Sync>>;
}

/// An answer with the buffer of logits of so many bytes, unless it has one.
pub(super) fn with_output(mut answer: Footprints, output: u64) -> Footprints {
    if answer.output == 0 {
        answer.output = output;
        answer.host += Footprint::new(0, 0, output);
    }
    answer
}

/// A device has no room for what a probe really allocates, such as the state of a recurrent model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device} has no room for {}", Bytes(*bytes))]
#[non_exhaustive]
pub struct NoRoom {
    /// The device, as ggml names it.
    pub device: String,
    /// Bytes of the buffer that it has no room for.
    pub bytes: u64,
}

impl NoRoom {
    /// A device without room for a buffer of so many bytes.
    pub fn new(device: impl Into<String>, bytes: u64) -> Self {
        Self { device: device.into(), bytes }
    }
}
