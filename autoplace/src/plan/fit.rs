//! Whether footprints fit a device: its free bytes, less the headroom, against what is needed of it.

use crate::machine::{Gpu, GpuKind, Host};
use crate::memory::{Footprint, Footprints, Headroom, HeadroomParts, Workload};

use super::{Placement, PlacementKind, Shortfall};

/// The devices of one candidate: at most one GPU, and the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room<'a> {
    pub(super) gpu: Option<&'a Gpu>,
    pub(super) host: &'a Host,
    pub(super) headroom: Headroom,
    pub(super) workload: Workload,
}

/// One device, with what a placement takes of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub(super) footprint: Footprint,
    pub(super) headroom: HeadroomParts,
    pub(super) free: u64,
    pub(super) budget: u64,
    /// Bytes needed of the device: its footprint, and on the host also that of GPUs that use its memory.
    pub(super) needed: u64,
}

impl Level {
    fn new(footprint: Footprint, headroom: HeadroomParts, free: u64) -> Self {
        Self {
            footprint,
            headroom,
            free,
            budget: free.saturating_sub(headroom.total()),
            needed: footprint.total(),
        }
    }

    pub(super) const fn missing(&self) -> u64 {
        self.needed.saturating_sub(self.budget)
    }
}

/// All devices of a candidate, with what a placement takes of them.
#[derive(Debug, Clone)]
pub(super) struct Levels {
    pub(super) gpu: Option<Level>,
    pub(super) host: Level,
}

impl Levels {
    pub(super) fn missing(&self) -> u64 {
        let gpu = self.gpu.as_ref().map_or(0, Level::missing);
        gpu.saturating_add(self.host.missing())
    }

    /// Devices on which something is missing.
    pub(super) fn lacking(&self) -> usize {
        let gpu = self.gpu.iter().filter(|level| level.missing() > 0).count();
        gpu + usize::from(self.host.missing() > 0)
    }

    pub(super) fn fit(&self) -> bool {
        self.missing() == 0
    }
}

impl Room<'_> {
    /// What these footprints leave on each device. `uncertainty` says how many bytes the numbers of a device may be wrong by.
    pub(super) fn levels(
        &self,
        footprints: &Footprints,
        uncertainty: impl Fn(&Footprint) -> u64,
    ) -> Levels {
        let gpu = self.gpu.map(|gpu| {
            let footprint = footprints.gpus.first().copied().unwrap_or_default();
            let unsure = uncertainty(&footprint);
            let headroom = self.headroom.of_gpu(gpu, &self.workload, unsure);
            Level::new(footprint, headroom, gpu.free)
        });
        let unsure = uncertainty(&footprints.host);
        let headroom = Headroom::of_host(self.host, &self.workload, gpu.is_some(), unsure);
        let mut host = Level::new(footprints.host, headroom, self.host.available);
        if self.shares_memory() {
            let shared = gpu.as_ref().map_or(0, |level| level.needed);
            host.needed = host.needed.saturating_add(shared);
        }
        Levels { gpu, host }
    }

    fn shares_memory(&self) -> bool {
        self.gpu.is_some_and(|gpu| gpu.kind == GpuKind::Integrated)
    }

    /// What is missing where, for people.
    pub(super) fn shortfalls(&self, levels: &Levels) -> Vec<Shortfall> {
        let of = |name: &str, level: &Level| Shortfall {
            device: name.to_owned(),
            needed: level.needed,
            budget: level.budget,
            free: level.free,
            missing: level.missing(),
        };
        let gpu = self.gpu.zip(levels.gpu.as_ref());
        gpu.map(|(gpu, level)| of(&gpu.name, level))
            .into_iter()
            .chain([of("host", &levels.host)])
            .collect()
    }

    /// The devices of a plan.
    pub(super) fn placements(
        &self,
        levels: &Levels,
        gpu_layers: u32,
        host_layers: u32,
    ) -> Vec<Placement> {
        let mut all = Vec::new();
        if let Some((gpu, level)) = self.gpu.zip(levels.gpu.as_ref()) {
            all.push(Placement {
                name: gpu.name.clone(),
                device: gpu.device.clone(),
                backend: gpu.backend.clone(),
                kind: if self.shares_memory() {
                    PlacementKind::SharedGpu
                } else {
                    PlacementKind::Gpu
                },
                total: gpu.total,
                free: gpu.free,
                layers: gpu_layers,
                footprint: level.footprint,
                headroom: level.headroom,
                budget: level.budget,
            });
        }
        all.push(Placement {
            name: "host".to_owned(),
            device: None,
            backend: "CPU".to_owned(),
            kind: PlacementKind::Host,
            total: self.host.total,
            free: self.host.available,
            layers: host_layers,
            footprint: levels.host.footprint,
            headroom: levels.host.headroom,
            budget: levels.host.budget,
        });
        all
    }
}
