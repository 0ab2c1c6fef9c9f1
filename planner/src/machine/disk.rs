//! Read rates of disks, with the source of each rate. The rate matters for a model that does not fit in memory.

use serde::{Deserialize, Serialize};

use super::bandwidth::PerSecond;

/// The rate at which an uncached file is read. `Display` includes the source: `3.0 GB/s as stated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} {source}", PerSecond(*bytes_per_second))]
#[non_exhaustive]
pub struct DiskRate {
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// The source of the figure.
    pub source: DiskRateSource,
}

/// The source of a disk's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskRateSource {
    /// Measured on the model's file.
    #[error("as measured on the model's file")]
    Measured,
    /// A number that a person stated.
    #[error("as stated")]
    Stated,
    /// A guess: the rate of a slow NVMe drive.
    #[error("of an unknown disk, a guess")]
    Guess,
}

impl DiskRate {
    /// The rate assumed for an unknown disk.
    pub const UNKNOWN: Self = Self::new(1_000_000_000, DiskRateSource::Guess);

    /// A rate from this source.
    pub const fn new(bytes_per_second: u64, source: DiskRateSource) -> Self {
        Self { bytes_per_second, source }
    }
}
