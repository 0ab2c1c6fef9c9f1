//! The stored bytes of a placement on each device.

use crate::memory::{Footprint, Footprints};

use super::Place;
use super::kv::CacheKinds;
use super::weights::Largest;

/// The stored bytes of one device, and the facts that its compute buffer depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    pub(super) weights: u64,
    pub(super) kv: u64,
    /// The largest matrices on the device.
    pub(super) largest: Largest,
    /// The kinds of caches of its blocks, wherever the caches are.
    pub(super) held: CacheKinds,
}

/// The stored bytes of all devices.
#[derive(Debug, Clone, Default)]
pub(super) struct Cost {
    pub(super) gpus: Vec<Share>,
    pub(super) host: Share,
    /// Whether overrides put weights on GPUs, or the output matrix on the host.
    pub(super) weights_moved: bool,
    /// Elements of keys and of values of the largest block.
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
