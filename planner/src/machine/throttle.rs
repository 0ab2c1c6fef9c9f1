//! Why a GPU runs below its clocks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What holds a GPU's clocks down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ThrottleReason {
    /// It draws as much power as it may. Many cards do whenever they are busy: by itself it is no fault.
    PowerLimit,
    /// GPU or memory are warmer than they should run (NVML: software thermal slowdown).
    Heat,
    /// It is too hot, and its clocks are halved or less (NVML: hardware thermal slowdown).
    Overheating,
    /// The computer's power supply asked it to slow down (NVML: hardware power brake).
    PowerBrake,
    /// Its clocks are halved or less, for heat or power, and the driver does not tell which (NVML: hardware slowdown).
    Hardware,
}

impl ThrottleReason {
    /// Whether it is worth a word by itself. [`PowerLimit`](Self::PowerLimit) is not: it is how busy cards
    /// find their clocks.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::PowerLimit)
    }
}

impl fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PowerLimit => "power limit",
            Self::Heat => "heat",
            Self::Overheating => "overheating",
            Self::PowerBrake => "power brake",
            Self::Hardware => "hardware slowdown",
        })
    }
}
