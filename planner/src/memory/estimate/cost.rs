//! The stored bytes of a placement on each device.

use crate::memory::{Footprint, Footprints};
use crate::profile::{BlockState, Rows};

use super::Place;

/// The stored bytes of one device, and the facts on which its compute buffer depends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    pub(super) weights: u64,
    pub(super) kv: u64,
    /// The largest matrices on the device.
    pub(super) largest: Largest,
    /// The kinds of caches that the device's blocks have, even if the caches are on another device.
    pub(super) held: CacheKinds,
}

/// The stored bytes of all devices.
#[derive(Debug, Clone, Default)]
pub(super) struct Cost {
    pub(super) gpus: Vec<Share>,
    pub(super) host: Share,
    /// Whether overrides put weights on GPUs, or the output matrix on the host.
    pub(super) weights_moved: bool,
    /// The numbers of elements in the keys and in the values of the block with the largest cache.
    pub(super) largest_elements: (u64, u64),
    /// Bytes of the largest cache on the host.
    pub(super) largest_on_host: u64,
}

impl Cost {
    /// The share of a device. A GPU outside the estimate counts as the host.
    pub(super) fn at(&mut self, place: Place) -> &mut Share {
        match place {
            Place::Gpu(gpu) => self.gpus.get_mut(gpu).unwrap_or(&mut self.host),
            Place::Host => &mut self.host,
        }
    }

    /// The bytes without compute buffers.
    pub(super) fn footprints(&self) -> Footprints {
        let footprint = |share: &Share| Footprint::new(share.weights, share.kv, 0);
        Footprints::new(self.gpus.iter().map(footprint).collect(), footprint(&self.host))
    }
}

/// The kinds of caches that a set of blocks has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CacheKinds {
    /// A cache of every token, or a state.
    pub(super) full: bool,
    /// A cache of a window.
    pub(super) windowed: bool,
}

impl CacheKinds {
    pub(super) fn new(block: &BlockState) -> Self {
        let windowed = block.kept.iter().any(|kept| matches!(kept.rows, Rows::Window(_)));
        Self { full: !windowed && !block.kept.is_empty(), windowed }
    }

    /// The kinds of caches that at least one of the two sets has.
    pub(super) const fn and(self, other: Self) -> Self {
        Self { full: self.full || other.full, windowed: self.windowed || other.windowed }
    }
}

/// Bytes of the largest matrices, by purpose.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Largest {
    /// First matrices of a feed-forward step: `ffn_gate`, `ffn_up`.
    pub(super) up: u64,
    /// Last matrix of a feed-forward step.
    pub(super) down: u64,
    /// Matrices of attention, and all other matrices.
    pub(super) other: u64,
    /// The output matrix.
    pub(super) output: u64,
}

impl Largest {
    pub(super) fn max(self, of: Self) -> Self {
        Self {
            up: self.up.max(of.up),
            down: self.down.max(of.down),
            other: self.other.max(of.other),
            output: self.output.max(of.output),
        }
    }

    /// The largest matrix of any block.
    pub(super) fn largest_of_blocks(&self) -> u64 {
        self.up.max(self.down).max(self.other)
    }

    /// Whether there is a feed-forward matrix.
    pub(super) const fn has_feed_forward(&self) -> bool {
        self.up > 0 || self.down > 0
    }
}
