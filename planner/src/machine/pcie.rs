//! The PCIe link of a card: what carries a model to it, and activations between two cards.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bandwidth::PerSecond;
use super::pci::PciId;
use super::tree::Tree;

/// A card's PCIe link: what card and slot can do together, and how it runs at the moment.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

    /// The peak of the link at its best, in bytes per second, one way.
    pub const fn bytes_per_second(&self) -> u64 {
        self.max.bytes_per_second()
    }

    /// The link of the card at a PCI address, as Linux describes it below `/sys/bus/pci/devices`; `None`
    /// where it does not.
    ///
    /// A card may sit behind bridges, its own among them, and each says only what it can do itself: the
    /// least of all holds.
    pub(super) fn of_card(tree: Tree<'_>, id: PciId) -> Option<Self> {
        // The entry is a link to the card's place in the tree of bridges.
        let card = fs::canonicalize(tree.locate(&format!("/sys/bus/pci/devices/{id}"))).ok()?;
        // A card that says nothing has no link of its own, whatever the bridges before it say.
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
    /// A rate, or `None` for what is no generation (1 to 6) or number of lanes (1 to 32).
    pub const fn new(generation: u8, lanes: u8) -> Option<Self> {
        let exists = generation >= 1 && generation <= 6 && lanes >= 1 && lanes <= 32;
        if exists { Some(Self { generation, lanes }) } else { None }
    }

    /// Whether there is such a rate; a file may say anything.
    pub(super) const fn exists(self) -> bool {
        Self::new(self.generation, self.lanes).is_some()
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

    /// The lower generation and the fewer lanes of two links in a row.
    fn least(self, other: Self) -> Self {
        Self { generation: self.generation.min(other.generation), lanes: self.lanes.min(other.lanes) }
    }

    /// `max` or `current` of one device. The files read `16.0 GT/s PCIe` and `16`; what is unknown reads
    /// `Unknown`, 0 or 255.
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

impl fmt::Display for PcieRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.lanes)
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.max, PerSecond(self.bytes_per_second()))?;
        match self.current {
            Some(now) if now != self.max => {
                write!(f, " (now {}.0 x{})", now.generation, now.lanes)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PcieLink, PcieRate};

    fn rate(generation: u8, lanes: u8) -> PcieRate {
        PcieRate::new(generation, lanes).unwrap()
    }

    #[test]
    fn a_link_carries_what_its_generation_and_lanes_make() {
        // As the specification rounds it: 4, 7.9, 15.8, 31.5, 63 and 121 GB/s.
        for (generation, lanes, megabytes) in
            [(1, 16, 4_000), (3, 8, 7_877), (3, 16, 15_754), (4, 16, 31_508), (5, 16, 63_015), (6, 16, 121_000)]
        {
            let found = rate(generation, lanes).bytes_per_second();
            let difference = found.abs_diff(megabytes * 1_000_000);
            assert!(difference < 1_000_000, "{generation} x{lanes}");
        }
    }

    #[test]
    fn an_idle_link_prints_what_it_can_do_first() {
        let link = PcieLink::new(rate(4, 16));
        let best = "PCIe 4.0 x16, 32 GB/s";
        assert_eq!(link.to_string(), best);
        let idle = link.current(rate(1, 16)).to_string();
        assert_eq!(idle, format!("{best} (now 1.0 x16)"));
        assert_eq!(link.current(rate(4, 16)).to_string(), best);
    }
}
