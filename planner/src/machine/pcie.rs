//! The PCIe link of a card: what carries a model to it, and activations between two cards.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bandwidth::PerSecond;

/// A card's PCIe link as NVIDIA's driver reports it: what card and slot can do together, and how it runs now.
///
/// Idle cards slow their link down to save power and raise it when something is sent: what it can do is what counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct PcieLink {
    /// The most that the card and every slot and switch before it can do.
    pub max: PcieRate,
    /// How it ran when it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<PcieRate>,
}

/// A PCIe generation and a number of lanes: `PCIe 4.0 x16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[error("PCIe {generation}.0 x{lanes}")]
#[non_exhaustive]
pub struct PcieRate {
    /// 1 to 6.
    pub generation: u8,
    /// 1 to 32.
    pub lanes: u8,
}

impl PcieLink {
    /// A link that can do this; how it runs at the moment is not known.
    pub const fn new(max: PcieRate) -> Self {
        Self { max, current: None }
    }

    /// Sets how it runs at the moment.
    pub const fn current(mut self, rate: PcieRate) -> Self {
        self.current = Some(rate);
        self
    }
}

impl PcieRate {
    /// A rate, or `None` for what is no generation (1 to 6) or number of lanes (1 to 32).
    pub const fn new(generation: u8, lanes: u8) -> Option<Self> {
        let exists = generation >= 1 && generation <= 6 && lanes >= 1 && lanes <= 32;
        if exists { Some(Self { generation, lanes }) } else { None }
    }

    /// Its peak in bytes per second, one way.
    ///
    /// Per lane 2.5, 5, 8, 16, 32 and 64 GT/s, of which the coding leaves 8 of 10 bits (generations 1 and 2), 128 of
    /// 130 (3 to 5) and 242 of 256 (6); the headers of packets take some percent more (PCI Express Base Specification).
    pub const fn bytes_per_second(self) -> u64 {
        let lane: u64 = match self.generation {
            0 => 0,
            1 => 250_000_000,
            2 => 500_000_000,
            3 => 984_615_384,
            4 => 1_969_230_769,
            5 => 3_938_461_538,
            _ => 7_562_500_000,
        };
        lane.saturating_mul(self.lanes as u64)
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.max, PerSecond(self.max.bytes_per_second()))?;
        match self.current.filter(|now| *now != self.max) {
            Some(now) => write!(f, " (now {}.0 x{})", now.generation, now.lanes),
            None => Ok(()),
        }
    }
}
