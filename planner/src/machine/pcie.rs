//! The PCIe link of a card, over which the model reaches the card and activations pass between cards.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bandwidth::PerSecond;
use super::pci::PciId;
use super::tree::Tree;

/// A card's PCIe link, as NVIDIA's driver or Linux reports it: its maximum rate and its current rate.
///
/// Idle cards slow their link down to save power, and speed it up for transfers. So the maximum is the figure that
/// matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct PcieLink {
    /// The maximum rate between the card and the host, through all slots and switches between them.
    pub max: PcieRate,
    /// The rate at the time of the query.
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
    /// A link with this maximum; the current rate is unknown.
    pub const fn new(max: PcieRate) -> Self {
        Self { max, current: None }
    }

    /// Sets the current rate.
    pub const fn current(mut self, rate: PcieRate) -> Self {
        self.current = Some(rate);
        self
    }

    /// The link of the card at a PCI address, from `/sys/bus/pci/devices` (Documentation/ABI/testing/sysfs-bus-pci);
    /// `None` if the card reports none.
    ///
    /// There may be bridges between the card and the host, and the card itself may contain a bridge. Each device
    /// reports its own rate, and the lowest rate applies.
    pub(super) fn of_card(tree: Tree<'_>, id: PciId) -> Option<Self> {
        // The entry is a symbolic link into the tree of bridges.
        let card = fs::canonicalize(tree.locate(&format!("/sys/bus/pci/devices/{id}"))).ok()?;
        // The link of a card that reports nothing is unknown, even if the bridges report their links.
        PcieRate::of_device(&card, "max")?;
        let is_device = |path: &&Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.parse::<PciId>().is_ok())
        };
        let least = |which| {
            let way = card.ancestors().take_while(is_device);
            way.filter_map(|device| PcieRate::of_device(device, which)).reduce(PcieRate::least)
        };
        Some(Self { max: least("max")?, current: least("current") })
    }
}

impl PcieRate {
    /// A rate; `None` unless the generation is 1 to 6 and the lanes are 1 to 32.
    pub const fn new(generation: u8, lanes: u8) -> Option<Self> {
        let exists = generation >= 1 && generation <= 6 && lanes >= 1 && lanes <= 32;
        if exists { Some(Self { generation, lanes }) } else { None }
    }

    /// The peak in bytes per second, in one direction.
    ///
    /// Each lane transfers 2.5, 5, 8, 16, 32 or 64 GT/s. Of the transferred bits, the encoding leaves 8 of 10 for data
    /// in generations 1 and 2, 128 of 130 in generations 3 to 5, and 242 of 256 in generation 6. Packet headers take
    /// some percent more (PCI Express Base Specification).
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

    /// The rate of two links in series: the lower generation, and the smaller number of lanes.
    fn least(self, other: Self) -> Self {
        Self { generation: self.generation.min(other.generation), lanes: self.lanes.min(other.lanes) }
    }

    /// The `max` or `current` rate of one device. Its files contain `16.0 GT/s PCIe` (older kernels: `16 GT/s`) and
    /// `16`. If the speed is unknown, the file contains `Unknown`; if the width is unknown, it contains 0 or 255.
    fn of_device(device: &Path, which: &str) -> Option<Self> {
        let read = |what: &str| fs::read_to_string(device.join(format!("{which}_link_{what}"))).ok();
        let generation = match read("speed")?.split_whitespace().next()? {
            "2.5" => 1,
            "5" | "5.0" => 2,
            "8" | "8.0" => 3,
            "16" | "16.0" => 4,
            "32" | "32.0" => 5,
            "64" | "64.0" => 6,
            _ => return None,
        };
        Self::new(generation, read("width")?.trim().parse().ok()?)
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
