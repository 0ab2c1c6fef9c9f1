//! The bytes that a model takes of each device, and the free bytes of a machine's devices.

use serde::{Deserialize, Serialize};

use autoplace::Plan;
use autoplace::machine::Machine;
use autoplace::plan::PlacementKind;

/// The bytes that a placement takes of each device of a machine: its footprint, its companions, and its headroom
/// without the margin. The headroom includes the limit of the prompt store. The margin is listed apart, because all
/// models on a device share one margin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeldBytes {
    /// Bytes of each GPU, in the machine's order.
    pub gpus: Vec<u64>,
    /// Bytes of the host, including mapped weights: if the mapped files of two models did not fit together, they would
    /// be read from the disk again for every token.
    pub host: u64,
    /// The margin that the plan leaves free on each GPU, in the machine's order.
    pub gpu_margins: Vec<u64>,
    /// The margin that the plan leaves free on the host.
    pub host_margin: u64,
}

impl HeldBytes {
    /// The bytes that `plan` takes of the devices of `machine`. Each placement of the plan is assigned to the first
    /// unassigned GPU with its name.
    pub fn from_plan(plan: &Plan, machine: &Machine) -> Self {
        let none = vec![0; machine.gpus.len()];
        let mut held = Self { gpus: none.clone(), gpu_margins: none, ..Self::default() };
        let mut is_matched = vec![false; machine.gpus.len()];
        for placement in &plan.placements {
            let headroom = placement.headroom;
            let of_headroom = [headroom.driver, headroom.growth, headroom.prompt_store];
            let bytes = [placement.footprint.total(), placement.companions].into_iter().chain(of_headroom);
            let bytes = bytes.fold(0, u64::saturating_add);
            if placement.kind == PlacementKind::Host {
                held.host = held.host.saturating_add(bytes);
                held.host_margin = headroom.margin;
                continue;
            }
            held.host = held.host.saturating_add(placement.of_host);
            let is_this = |index: &usize| {
                let gpu = &machine.gpus[*index];
                !is_matched[*index] && (&gpu.name, &gpu.device) == (&placement.name, &placement.device)
            };
            if let Some(index) = (0..machine.gpus.len()).find(is_this) {
                is_matched[index] = true;
                held.gpus[index] = bytes;
                held.gpu_margins[index] = headroom.margin;
            }
        }
        // A companion may lie on a GPU that holds no part of the model, and so has no placement.
        for companion in &plan.companions {
            let is_there = |index: &usize| {
                let gpu = &machine.gpus[*index];
                !is_matched[*index] && Some(&gpu.name) == companion.gpu.as_ref() && gpu.device == companion.device
            };
            if let Some(index) = (0..machine.gpus.len()).find(is_there) {
                held.gpus[index] = held.gpus[index].saturating_add(companion.bytes.gpu.total());
            }
        }
        held
    }

    /// Whether this takes at most as many bytes of every device as `other`.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.host <= other.host && self.gpus.iter().zip(&other.gpus).all(|(bytes, most)| bytes <= most)
    }

    /// The bytes on all devices together.
    pub fn total(&self) -> u64 {
        self.gpus.iter().copied().fold(self.host, u64::saturating_add)
    }
}

/// The free bytes of a machine's devices while models are placed on them one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    gpus: Vec<u64>,
    host: u64,
    gpu_margins: Vec<u64>,
    host_margin: u64,
}

impl Room {
    /// The room of a machine on which no model of the pool is loaded.
    pub(crate) fn new(machine: &Machine) -> Self {
        let gpus: Vec<u64> = machine.gpus.iter().map(|gpu| gpu.free).collect();
        Self { gpu_margins: vec![0; gpus.len()], gpus, host: machine.host.available, host_margin: 0 }
    }

    /// The room after this model is placed too; `None` if a device would have fewer free bytes than its margin.
    pub(crate) fn with(&self, held: &HeldBytes) -> Option<Self> {
        let mut room = self.clone();
        for (index, free) in room.gpus.iter_mut().enumerate() {
            let bytes = held.gpus.get(index).copied().unwrap_or(0);
            let margin = &mut room.gpu_margins[index];
            if bytes > 0 {
                *margin = (*margin).max(held.gpu_margins.get(index).copied().unwrap_or(0));
            }
            *free = free.checked_sub(bytes).filter(|left| bytes == 0 || left >= margin)?;
        }
        room.host_margin = room.host_margin.max(held.host_margin);
        let host_margin = room.host_margin;
        room.host = room.host.checked_sub(held.host).filter(|left| held.host == 0 || *left >= host_margin)?;
        Some(room)
    }

    /// The machine, with its free bytes limited to this room.
    pub(crate) fn limit(&self, machine: &Machine) -> Machine {
        let mut machine = machine.clone();
        for (gpu, &free) in machine.gpus.iter_mut().zip(&self.gpus) {
            limit(gpu, free);
        }
        machine.host.available = machine.host.available.min(self.host);
        machine
    }

    /// Free bytes of each GPU, in the machine's order.
    pub(crate) fn gpus(&self) -> &[u64] {
        &self.gpus
    }

    /// Free bytes of the host.
    pub(crate) const fn host(&self) -> u64 {
        self.host
    }
}

/// Limits the free bytes of a GPU. The bytes of the GPU's own pool of memory are reduced last, after the bytes that the
/// GPU shares with the host.
pub(crate) fn limit(gpu: &mut autoplace::machine::Gpu, free: u64) {
    gpu.free = gpu.free.min(free);
    if let Some(pools) = &mut gpu.pools {
        pools.own.free = pools.own.free.min(gpu.free);
    }
}
