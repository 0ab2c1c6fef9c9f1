//! The bytes that a model takes of each device, and the free bytes of a machine's devices.

use serde::{Deserialize, Serialize};

use autoplace::Plan;
use autoplace::machine::{Gpu, GpuKind, Machine};
use autoplace::plan::PlacementKind;

/// The bytes that a placement takes of each device of a machine: its footprint, its companions, and its headroom
/// without the margin. The headroom includes the limit of the prompt store. The margin is listed apart, because all
/// models on a device share one margin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeldBytes {
    /// Bytes of each GPU, in the machine's order.
    pub gpus: Vec<u64>,
    /// The part of the bytes of each GPU that was planned in memory of the GPU's own. All other bytes of an integrated
    /// GPU lie in the host's memory, and count in `host` too.
    pub own_of_gpus: Vec<u64>,
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
        let mut held = Self { gpus: none.clone(), own_of_gpus: none.clone(), gpu_margins: none, ..Self::default() };
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
                held.own_of_gpus[index] = own(&machine.gpus[index], bytes.saturating_sub(placement.of_host));
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
                let gpu = &machine.gpus[index];
                held.gpus[index] = held.gpus[index].saturating_add(companion.bytes.gpu.total());
                held.own_of_gpus[index] = own(gpu, held.gpus[index]);
            }
        }
        held
    }

    /// Whether this takes at most as many bytes of every device as `other`.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.host <= other.host && self.gpus.iter().zip(&other.gpus).all(|(bytes, most)| bytes <= most)
    }

    /// The bytes on all devices together. The bytes that an integrated GPU takes of the host's memory count once.
    pub fn total(&self) -> u64 {
        self.own_of_gpus.iter().copied().fold(self.host, u64::saturating_add)
    }
}

/// The part of `bytes` on a GPU that lies in memory of the GPU's own, if nothing else is on this GPU. The planner fills
/// this memory first.
fn own(gpu: &Gpu, bytes: u64) -> u64 {
    bytes.min(own_free(gpu))
}

/// Free bytes of the GPU that the host does not have. For a GPU that shares none with the host, any number of bytes.
fn own_free(gpu: &Gpu) -> u64 {
    if gpu.kind == GpuKind::Integrated { gpu.own_free() } else { u64::MAX }
}

/// The free bytes of a machine's devices while models are placed on them one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    gpus: Vec<u64>,
    /// Free bytes of each GPU that the host does not have.
    own_of_gpus: Vec<u64>,
    host: u64,
    gpu_margins: Vec<u64>,
    host_margin: u64,
}

impl Room {
    /// The room of a machine on which no model of the pool is loaded.
    pub(crate) fn new(machine: &Machine) -> Self {
        let gpus: Vec<u64> = machine.gpus.iter().map(|gpu| gpu.free).collect();
        let own_of_gpus = machine.gpus.iter().map(own_free).collect();
        Self { gpu_margins: vec![0; gpus.len()], gpus, own_of_gpus, host: machine.host.available, host_margin: 0 }
    }

    /// The room after this model is placed too. A device that has too few bytes for it has none left.
    pub(crate) fn without(&self, held: &HeldBytes) -> Self {
        let mut room = self.clone();
        let host = room.take_of_gpus(held).saturating_add(held.host);
        room.host = room.host.saturating_sub(host);
        for (free, bytes) in room.gpus.iter_mut().zip(&held.gpus) {
            *free = free.saturating_sub(*bytes);
        }
        room
    }

    /// Takes the GPUs' own memory. Returns the number of bytes that were planned there and find no place there, because
    /// other models already fill this memory: these bytes are the host's too.
    fn take_of_gpus(&mut self, held: &HeldBytes) -> u64 {
        let mut of_host = 0_u64;
        for (free, &planned) in self.own_of_gpus.iter_mut().zip(&held.own_of_gpus) {
            let own = planned.min(*free);
            *free -= own;
            of_host = of_host.saturating_add(planned - own);
        }
        of_host
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
        let host = room.take_of_gpus(held).saturating_add(held.host);
        room.host_margin = room.host_margin.max(held.host_margin);
        let host_margin = room.host_margin;
        room.host = room.host.checked_sub(host).filter(|left| host == 0 || *left >= host_margin)?;
        Some(room)
    }

    /// The machine, with its free bytes limited to this room.
    pub(crate) fn limit(&self, machine: &Machine) -> Machine {
        let mut machine = machine.clone();
        for (gpu, (&free, &own)) in machine.gpus.iter_mut().zip(self.gpus.iter().zip(&self.own_of_gpus)) {
            limit(gpu, free);
            if let Some(pools) = &mut gpu.pools {
                pools.own.free = pools.own.free.min(own);
            }
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

/// Limits the free bytes of a GPU on which nothing else is placed: so the bytes that remain are those of the GPU's own
/// pool of memory as far as this goes, because the planner and the drivers fill it first.
pub(crate) fn limit(gpu: &mut Gpu, free: u64) {
    gpu.free = gpu.free.min(free);
    if let Some(pools) = &mut gpu.pools {
        pools.own.free = pools.own.free.min(gpu.free);
    }
}

#[cfg(test)]
mod tests {
    use autoplace::machine::{Host, Pool, Pools, gib};

    use super::*;

    /// An integrated GPU with 8 GiB of its own and up to 16 GiB of the host's 16 GiB.
    fn machine() -> Machine {
        let pools = Pools::new(Pool::new(gib(8), gib(8)), Pool::new(gib(16), gib(16)));
        let gpu = Gpu::new("integrated").kind(GpuKind::Integrated).total(gib(24)).free(gib(24)).pools(pools);
        Machine::new(Host::new(gib(32)).available(gib(16))).with_gpu(gpu)
    }

    /// A model on the GPU that was planned alone: it fills the GPU's own memory first.
    fn on_gpu(bytes: u64) -> HeldBytes {
        let own = bytes.min(gib(8));
        HeldBytes { gpus: vec![bytes], own_of_gpus: vec![own], host: bytes - own, gpu_margins: vec![0], host_margin: 0 }
    }

    #[test]
    fn the_own_memory_of_an_integrated_gpu_is_filled_once_and_then_the_hosts() {
        let machine = machine();
        let one = Room::new(&machine).with(&on_gpu(gib(6))).unwrap();
        assert_eq!((one.gpus(), one.host()), (&[gib(18)][..], gib(16)));
        // 2 GiB are left of the GPU's own memory, so 4 GiB of the second model are the host's.
        let two = one.with(&on_gpu(gib(6))).unwrap();
        assert_eq!((two.gpus(), two.host()), (&[gib(12)][..], gib(12)));
        assert_eq!(two, Room::new(&machine).without(&on_gpu(gib(6))).without(&on_gpu(gib(6))));
        // A plan for what is left knows both.
        let left = two.limit(&machine);
        assert_eq!((left.gpus[0].free, left.gpus[0].own_free(), left.host.available), (gib(12), 0, gib(12)));
        // A model on the host takes what the GPU would share, and the other way round.
        let on_host = HeldBytes { gpus: vec![0], own_of_gpus: vec![0], host: gib(9), ..on_gpu(0) };
        let three = two.with(&on_host).unwrap();
        assert_eq!((three.gpus(), three.host()), (&[gib(12)][..], gib(3)));
        assert_eq!(three.with(&on_gpu(gib(4))), None);
        assert_eq!(on_gpu(gib(10)).total(), gib(10));
    }

    #[test]
    fn a_device_that_has_too_little_for_what_is_there_has_nothing_left() {
        let machine = Machine::new(Host::new(gib(4)).available(gib(2))).with_gpu(Gpu::new("card").free(gib(6)));
        let held = HeldBytes { gpus: vec![gib(8)], own_of_gpus: vec![gib(8)], host: gib(1), ..HeldBytes::default() };
        let room = Room::new(&machine);
        assert_eq!(room.with(&held), None);
        let left = room.without(&held);
        assert_eq!((left.gpus(), left.host()), (&[0][..], gib(1)));
    }
}
