//! Read bandwidth of memories, with the source of each figure. Generating a token reads every weight once, so the
//! bandwidth decides the speed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The read bandwidth of a memory, with the source of the figure.
///
/// The figure is the theoretical peak, of which programs reach most; [`MeasuredRates`](super::MeasuredRates) has the
/// measured rates. `Display` uses GB as data sheets do, 1000 * 1000 * 1000 bytes: `1008 GB/s by its data sheet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} {source}", PerSecond(*bytes_per_second))]
#[non_exhaustive]
pub struct Bandwidth {
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// The source of the figure.
    pub source: BandwidthSource,
}

/// The source of a bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BandwidthSource {
    /// NVIDIA's driver. The figure is a peak: the memory clock times the width of the bus.
    #[error("by its memory clock")]
    Nvml,
    /// The maker's data sheet. The figure is a peak.
    #[error("by its data sheet")]
    Catalogue,
    /// A number that a person stated.
    #[error("as stated")]
    Stated,
}

impl Bandwidth {
    /// A bandwidth from this source.
    pub const fn new(bytes_per_second: u64, source: BandwidthSource) -> Self {
        Self { bytes_per_second, source }
    }
}

/// Bytes per second, displayed in GB as in data sheets: `1008 GB/s`, `7.9 GB/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PerSecond(pub(super) u64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GB: u64 = 1_000_000_000;
        let tenths = self.0 / (GB / 10) + u64::from(self.0 % (GB / 10) >= GB / 20);
        if tenths < 100 {
            write!(f, "{}.{} GB/s", tenths / 10, tenths % 10)
        } else {
            write!(f, "{} GB/s", self.0 / GB + u64::from(self.0 % GB >= GB / 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PerSecond;

    #[test]
    fn numbers_below_ten_have_a_decimal_and_nothing_overflows() {
        for (bytes, text) in [
            (1_008_096_000_000, "1008 GB/s"),
            (7_876_923_077, "7.9 GB/s"),
            (9_960_000_000, "10 GB/s"),
            (49_999_999, "0.0 GB/s"),
            (u64::MAX, "18446744074 GB/s"),
        ] {
            assert_eq!(PerSecond(bytes).to_string(), text);
        }
    }
}
