//! How fast a model's file is read from its disk, and who says so. It counts for a model that memory has no room for.

use serde::{Deserialize, Serialize};

use super::bandwidth::PerSecond;

/// Bytes per second that a file is read at where the system has nothing of it in memory. It prints with its source:
/// `3.0 GB/s as stated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} {source}", PerSecond(*bytes_per_second))]
#[non_exhaustive]
pub struct DiskRate {
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Who says so.
    pub source: DiskRateSource,
}

/// Who says how fast a disk is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskRateSource {
    /// The model's file was read.
    #[error("as measured on the model's file")]
    Measured,
    /// Somebody wrote the number down.
    #[error("as stated")]
    Stated,
    /// Nobody: an NVMe drive of the lower class.
    #[error("of an unknown disk, a guess")]
    Guess,
}

impl DiskRate {
    /// What is taken for a disk of which nothing is known.
    pub const UNKNOWN: Self = Self::new(1_000_000_000, DiskRateSource::Guess);

    /// A figure from this source.
    pub const fn new(bytes_per_second: u64, source: DiskRateSource) -> Self {
        Self { bytes_per_second, source }
    }
}
