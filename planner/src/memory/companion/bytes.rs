//! The memory of a companion.

use serde::{Deserialize, Serialize};

use crate::memory::Footprint;

/// The memory of a companion, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CompanionBytes {
    /// Bytes on the GPU; all 0 if the companion is on the host alone.
    pub gpu: Footprint,
    /// Bytes on the host: the whole companion, or the part that stays there.
    pub host: Footprint,
    /// Bytes by which the GPU's `compute` may be too low.
    pub gpu_uncertainty: u64,
    /// Bytes by which the host's `compute` may be too low.
    pub host_uncertainty: u64,
}
