//! Whether footprints fit a device: its free bytes, less the headroom, compared with what is needed of it.

use crate::machine::{Bytes, Gpu, Host};
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Footprint, Footprints, Headroom, HeadroomParts, Split, Uncertainty, Workload};

use super::{Confidence, Placement, PlacementKind, Shortfall};

/// The devices of one candidate: its GPUs, in the order in which they take layers, and the host.
#[derive(Debug, Clone)]
pub(super) struct Room<'a> {
    pub(super) gpus: Vec<&'a Gpu>,
    pub(super) host: &'a Host,
    pub(super) headroom: Headroom,
    pub(super) workload: Workload,
    /// Whether the machine is a Linux inside of Windows.
    pub(super) wsl: bool,
    /// Where the host's weights may be more than it has room for: bytes of them that must be in memory all the same.
    pub(super) unmapped_if_paging: Option<u64>,
}

/// One device, with what a placement takes of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub(super) footprint: Footprint,
    pub(super) headroom: HeadroomParts,
    pub(super) free: u64,
    pub(super) budget: u64,
    /// Bytes needed of the device: its footprint, and on the host also what GPUs take of its memory.
    pub(super) needed: u64,
    /// Bytes of the host's mapped weights that are not among them, because there is no room for them.
    pub(super) paged: u64,
}

impl Level {
    fn new(footprint: Footprint, headroom: HeadroomParts, free: u64) -> Self {
        let budget = free.saturating_sub(headroom.total());
        Self { footprint, headroom, free, budget, needed: footprint.total(), paged: 0 }
    }

    /// Leaves out what is missing, as far as that is mapped weights: all but `unmapped` bytes of them.
    fn page(&mut self, unmapped: u64) {
        self.paged = self.missing().min(self.footprint.weights.saturating_sub(unmapped));
        self.needed -= self.paged;
    }

    /// Bytes of it that lie in the host's memory, where it is this GPU's.
    fn of_host(&self, gpu: &Gpu) -> u64 {
        gpu.bytes_of_host(self.needed, self.headroom.total())
    }

    pub(super) const fn missing(&self) -> u64 {
        self.needed.saturating_sub(self.budget)
    }

    pub(super) const fn spare(&self) -> u64 {
        self.budget.saturating_sub(self.needed)
    }
}

/// All devices of a candidate, with what a placement takes of them.
#[derive(Debug, Clone)]
pub(super) struct Levels {
    pub(super) gpus: Vec<Level>,
    pub(super) host: Level,
}

impl Levels {
    pub(super) fn missing(&self) -> u64 {
        self.gpus.iter().chain([&self.host]).map(Level::missing).fold(0, u64::saturating_add)
    }

    /// How far from fitting it is, to compare candidates by: whether something is missing on the GPUs and on the host,
    /// how many of the two, and then how many bytes. Bytes missing on one GPU may go to another; those missing on the
    /// host may not.
    pub(super) fn lack(&self) -> (usize, u64) {
        let gpus = self.gpus.iter().any(|level| level.missing() > 0);
        let lacking = usize::from(gpus) + usize::from(self.host.missing() > 0);
        (lacking, self.missing())
    }

    pub(super) fn fit(&self) -> bool {
        self.missing() == 0
    }

    /// Whether these devices are left enough when more is needed of them: at most `1 / share` of what is to spare.
    pub(super) fn leave(&self, share: u64, more: &Self) -> bool {
        let devices = self.gpus.iter().chain([&self.host]).zip(more.gpus.iter().chain([&more.host]));
        { devices }.all(|(now, then)| then.needed <= now.needed.saturating_add(now.spare() / share))
    }
}

/// A chosen placement, ready to become a plan.
pub(super) struct Chosen<'a> {
    pub(super) room: Room<'a>,
    pub(super) params: ContextParams,
    pub(super) split: Split,
    pub(super) assignment: Assignment,
    /// Layers on each GPU.
    pub(super) counts: Vec<u32>,
    /// Blocks on GPUs of which a part stays on the host.
    pub(super) parted_blocks: u32,
    pub(super) levels: Levels,
    pub(super) confidence: Confidence,
    /// What decided, for people; and what stands before the bytes that are left of the GPUs, where these are stated.
    pub(super) why: (String, Option<char>),
    /// Further notes on the choice.
    pub(super) notes: Vec<String>,
}

impl Chosen<'_> {
    /// What decided, with what is left of the GPUs where no more of them could be taken.
    pub(super) fn reason(&self) -> String {
        let (why, before) = &self.why;
        let Some(before) = before else {
            return why.clone();
        };
        let least = Bytes(self.levels.gpus.iter().map(Level::spare).min().unwrap_or(0));
        match self.levels.gpus.len() {
            1 => format!("{why}{before} {least} to spare"),
            _ => format!("{why}{before} at least {least} to spare on each"),
        }
    }
}

impl Room<'_> {
    /// What these footprints leave on each device, if they may be larger by `uncertainty`.
    pub(super) fn levels(&self, footprints: &Footprints, uncertainty: &Uncertainty) -> Levels {
        let level = |(index, gpu): (usize, &&Gpu)| {
            let footprint = footprints.gpus.get(index).copied().unwrap_or_default();
            let unsure = uncertainty.gpus.get(index).copied().unwrap_or(0);
            Level::new(footprint, self.headroom.of_gpu(gpu, &self.workload, unsure, self.wsl), gpu.free)
        };
        let gpus: Vec<Level> = self.gpus.iter().enumerate().map(level).collect();
        let unsure = uncertainty.host;
        let headroom = Headroom::of_host(self.host, &self.workload, !gpus.is_empty(), unsure);
        let mut host = Level::new(footprints.host, headroom, self.host.available);
        for (gpu, level) in self.gpus.iter().zip(&gpus) {
            host.needed = host.needed.saturating_add(level.of_host(gpu));
        }
        if let Some(unmapped) = self.unmapped_if_paging {
            host.page(unmapped);
        }
        Levels { gpus, host }
    }

    /// The GPUs, for people.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        if names.is_empty() { "the host".to_owned() } else { names.join(" and ") }
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
        let gpus = self.gpus.iter().zip(&levels.gpus);
        gpus.map(|(gpu, level)| of(&gpu.name, level)).chain([of("host", &levels.host)]).collect()
    }

    /// The devices of a plan, with so many layers on each GPU and on the host.
    pub(super) fn placements(&self, levels: &Levels, gpu_layers: &[u32], host_layers: u32) -> Vec<Placement> {
        let of = |name: &str, backend: &str, kind, total, layers, level: &Level| Placement {
            name: name.to_owned(),
            device: None,
            backend: backend.to_owned(),
            kind,
            total,
            free: level.free,
            layers,
            footprint: level.footprint,
            of_host: 0,
            headroom: level.headroom,
            companions: 0,
            budget: level.budget,
        };
        let gpus = self.gpus.iter().zip(&levels.gpus).zip(gpu_layers).map(|((gpu, level), &layers)| {
            let kind = if gpu.shares_host_memory() { PlacementKind::SharedGpu } else { PlacementKind::Gpu };
            let placement = of(&gpu.name, &gpu.backend, kind, gpu.total, layers, level);
            Placement { device: gpu.device.clone(), of_host: level.of_host(gpu), ..placement }
        });
        gpus.chain([of("host", "CPU", PlacementKind::Host, self.host.total, host_layers, &levels.host)]).collect()
    }
}
