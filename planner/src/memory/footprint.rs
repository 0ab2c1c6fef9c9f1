//! Bytes by device and by purpose.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The memory that a placement takes on one device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Footprint {
    /// Weights.
    pub weights: u64,
    /// Keys and values, or recurrent state, of the context.
    pub kv: u64,
    /// Compute buffers; on the host also the buffer that returns logits.
    pub compute: u64,
    /// The cache of experts ([`ContextParams::moe_cache_size`](super::ContextParams::moe_cache_size)); on the host, the
    /// slots of each layer's experts.
    // Workers send footprints in a format without field names, so the field is always written.
    #[serde(default)]
    pub experts: u64,
}

impl Footprint {
    /// A footprint with these parts, in bytes, without a cache of experts.
    pub const fn new(weights: u64, kv: u64, compute: u64) -> Self {
        Self { weights, kv, compute, experts: 0 }
    }

    /// The same footprint with a cache of experts of this many bytes.
    #[must_use]
    pub const fn with_experts(self, experts: u64) -> Self {
        Self { experts, ..self }
    }

    /// The sum of all parts, in bytes; saturates.
    pub const fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.compute).saturating_add(self.experts)
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Self) {
        self.weights = self.weights.saturating_add(other.weights);
        self.kv = self.kv.saturating_add(other.kv);
        self.compute = self.compute.saturating_add(other.compute);
        self.experts = self.experts.saturating_add(other.experts);
    }
}

/// The memory that a placement takes on every device.
///
/// Estimates, probes and measurements all use this type, so that they can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Footprints {
    /// One footprint per GPU, in the caller's order of GPUs.
    pub gpus: Vec<Footprint>,
    /// The host's footprint.
    pub host: Footprint,
    /// Bytes of the buffer of logits, a part of the host's `compute`. llama.cpp's breakdown does not include this
    /// buffer.
    pub output: u64,
}

impl Footprints {
    /// Footprints of these GPUs and this host, with an `output` of 0.
    pub const fn new(gpus: Vec<Footprint>, host: Footprint) -> Self {
        Self { gpus, host, output: 0 }
    }
}
