//! Why a GPU's clocks are held down.

use serde::{Deserialize, Serialize};

/// A reason that holds a GPU's clocks down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThrottleReason {
    /// The card reaches its power limit. Busy cards often do, so this alone is not a fault.
    #[error("power limit")]
    PowerLimit,
    /// GPU or memory are warmer than they should be (NVML: software thermal slowdown).
    #[error("heat")]
    Heat,
    /// The card is too hot, and its clocks are halved or less (NVML: hardware thermal slowdown).
    #[error("overheating")]
    Overheating,
    /// The power supply asked the card to slow down (NVML: hardware power brake).
    #[error("power brake")]
    PowerBrake,
    /// The clocks are halved or less because of heat or power; the driver does not report which (NVML: hardware
    /// slowdown).
    #[error("hardware slowdown")]
    Hardware,
}

impl ThrottleReason {
    /// Whether the reason deserves a report. [`PowerLimit`](Self::PowerLimit) does not, because the clocks of busy
    /// cards usually settle at this limit.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::PowerLimit)
    }
}
