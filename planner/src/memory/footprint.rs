//! Bytes, by device and by what they are for.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// What a placement takes of one device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Footprint {
    /// Weights.
    pub weights: u64,
    /// Keys and values (or recurrent state) of the context.
    pub kv: u64,
    /// Buffers of the computation; on the host also the buffer that logits are returned in.
    pub compute: u64,
}

impl Footprint {
    /// A footprint of these parts, in bytes.
    pub const fn new(weights: u64, kv: u64, compute: u64) -> Self {
        Self { weights, kv, compute }
    }

    /// All parts together, in bytes; saturates.
    pub const fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.compute)
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Self) {
        self.weights = self.weights.saturating_add(other.weights);
        self.kv = self.kv.saturating_add(other.kv);
        self.compute = self.compute.saturating_add(other.compute);
    }
}

/// What a placement takes of every device.
///
/// Estimates, probes and measurements all come in this form, so that they can stand beside each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Footprints {
    /// One per GPU, in the order in which the GPUs were given.
    pub gpus: Vec<Footprint>,
    /// The host: what no GPU holds.
    pub host: Footprint,
    /// The part of the host's `compute` that is the buffer of logits, in bytes. llama.cpp's breakdown leaves it out.
    pub output: u64,
}

impl Footprints {
    /// Footprints of these GPUs and this host.
    pub const fn new(gpus: Vec<Footprint>, host: Footprint) -> Self {
        Self { gpus, host, output: 0 }
    }
}
