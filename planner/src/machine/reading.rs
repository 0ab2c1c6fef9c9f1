//! A driver's count of a GPU's memory.

use serde::{Deserialize, Serialize};

/// One source's reading of a GPU's memory, in bytes, before any rule is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Reading {
    /// Total bytes. The total of ggml's CUDA backend is the usable part; NVML's total is the whole card.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that the driver keeps for itself, included in NVML's `total`. Only NVML's second memory query reports
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

impl Reading {
    /// A reading of total and free bytes.
    pub const fn new(total: u64, free: u64) -> Self {
        Self { total, free, reserved: None }
    }

    /// The same reading with the bytes that the driver keeps for itself.
    pub const fn reserved(mut self, bytes: u64) -> Self {
        self.reserved = Some(bytes);
        self
    }
}
