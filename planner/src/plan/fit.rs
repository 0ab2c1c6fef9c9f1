//! Decides whether footprints fit: compares the bytes that each device needs with its free bytes minus the headroom.

use crate::machine::{Bytes, Gpu, Host};
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Footprint, Footprints, Headroom, HeadroomParts, PeakSizes, Split, Uncertainty};

use super::{Confidence, Placement, PlacementKind, Shortfall};

/// The devices of one candidate placement: its GPUs, in the order in which they take layers, and the host.
#[derive(Debug, Clone)]
pub(super) struct Room<'a> {
    pub(super) gpus: Vec<&'a Gpu>,
    pub(super) host: &'a Host,
    pub(super) headroom: Headroom,
    pub(super) peak_sizes: PeakSizes,
    /// Whether the machine is Linux under WSL.
    pub(super) wsl: bool,
    /// Bytes of the host for stored prompts.
    pub(super) prompt_store: u64,
    /// `Some` if the host's weights may be larger than its memory. The number is how many bytes of these weights must
    /// nevertheless stay in memory.
    pub(super) unmapped_if_paging: Option<u64>,
}

/// The memory of one device under a placement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub(super) footprint: Footprint,
    pub(super) headroom: HeadroomParts,
    pub(super) free: u64,
    pub(super) budget: u64,
    /// The bytes that are needed: the device's footprint and, on the host, also the bytes that GPUs take of the host's
    /// memory.
    pub(super) needed: u64,
    /// Bytes of mapped weights that do not fit on the host; `needed` excludes them.
    pub(super) paged: u64,
}

impl Level {
    fn new(footprint: Footprint, headroom: HeadroomParts, free: u64) -> Self {
        let budget = free.saturating_sub(headroom.total());
        Self { footprint, headroom, free, budget, needed: footprint.total(), paged: 0 }
    }

    /// Moves missing bytes from `needed` to `paged`, but at most the bytes of the mapped weights (all but `unmapped`
    /// bytes).
    fn page(&mut self, unmapped: u64) {
        self.paged = self.missing().min(self.footprint.weights.saturating_sub(unmapped));
        self.needed -= self.paged;
    }

    /// Bytes of the footprint in the host's memory, for a GPU that shares it.
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

/// The memory of all devices under a placement.
#[derive(Debug, Clone)]
pub(super) struct Levels {
    pub(super) gpus: Vec<Level>,
    pub(super) host: Level,
}

impl Levels {
    pub(super) fn missing(&self) -> u64 {
        self.gpus.iter().chain([&self.host]).map(Level::missing).fold(0, u64::saturating_add)
    }

    /// How far the placement is from fitting, for the comparison of candidates. The first number counts the kinds of
    /// devices with missing bytes: 0 for none, 1 for GPUs or the host, 2 for both. The second number is the missing
    /// bytes. Bytes missing on one GPU may fit on another, but bytes missing on the host cannot go elsewhere.
    pub(super) fn lack(&self) -> (usize, u64) {
        let gpus = self.gpus.iter().any(|level| level.missing() > 0);
        let lacking = usize::from(gpus) + usize::from(self.host.missing() > 0);
        (lacking, self.missing())
    }

    pub(super) fn fit(&self) -> bool {
        self.missing() == 0
    }

    /// Whether `more` takes at most `1 / share` of the bytes that `self` leaves spare on each device.
    pub(super) fn leave(&self, share: u64, more: &Self) -> bool {
        let devices = self.gpus.iter().chain([&self.host]).zip(more.gpus.iter().chain([&more.host]));
        { devices }.all(|(now, then)| then.needed <= now.needed.saturating_add(now.spare() / share))
    }
}

/// The gain that a placement has from its cache of experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheGain {
    pub(super) speedup: f64,
    /// Seconds of a token in the best placement without a cache.
    pub(super) token_without: f64,
}

/// A chosen placement, from which the plan is made.
pub(super) struct Chosen<'a> {
    pub(super) room: Room<'a>,
    pub(super) params: ContextParams,
    /// The gain of the cache of experts, if the placement has a cache.
    pub(super) cache: Option<CacheGain>,
    pub(super) split: Split,
    pub(super) assignment: Assignment,
    /// The number of layers on each GPU.
    pub(super) counts: Vec<u32>,
    pub(super) split_blocks: u32,
    pub(super) levels: Levels,
    pub(super) confidence: Confidence,
    /// The reason for the choice, for people. If the reason comes with a character, the GPUs' spare bytes are written
    /// after it, separated by this character.
    pub(super) why: (String, Option<char>),
    /// Further notes on the choice.
    pub(super) notes: Vec<String>,
}

impl Chosen<'_> {
    /// The reason for the choice, with the GPUs' spare bytes if `why` has a character for them.
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
    /// The memory of each device with these footprints, if `uncertainty` stays free.
    pub(super) fn levels(&self, footprints: &Footprints, uncertainty: &Uncertainty) -> Levels {
        let level = |(index, gpu): (usize, &&Gpu)| {
            let footprint = footprints.gpus.get(index).copied().unwrap_or_default();
            let unsure = uncertainty.gpus.get(index).copied().unwrap_or(0);
            Level::new(footprint, self.headroom.of_gpu(gpu, &self.peak_sizes, unsure, self.wsl), gpu.free)
        };
        let gpus: Vec<Level> = self.gpus.iter().enumerate().map(level).collect();
        let unsure = uncertainty.host;
        let mut headroom = Headroom::of_host(self.host, &self.peak_sizes, !gpus.is_empty(), unsure);
        headroom.prompt_store = self.prompt_store;
        let mut host = Level::new(footprints.host, headroom, self.host.available);
        for (gpu, level) in self.gpus.iter().zip(&gpus) {
            host.needed = host.needed.saturating_add(level.of_host(gpu));
        }
        if let Some(unmapped) = self.unmapped_if_paging {
            host.page(unmapped);
        }
        Levels { gpus, host }
    }

    /// The GPUs' names for people.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        if names.is_empty() { "the host".to_owned() } else { names.join(" and ") }
    }

    /// How many bytes each device lacks, for people.
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

    /// The devices as the plan lists them. `gpu_layers` has the layers of each GPU.
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
