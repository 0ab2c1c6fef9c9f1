//! What a load took beside the buffers that llama.cpp counts. Free bytes before the load, after it and after the
//! warm-up flow in; what driver and pools took flows out, and into the user's cache for the next plan.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use llama_sys::Device;

use super::devices::{build_name, free, is_simulated};
use super::recipe::{Learn, Verify};
use super::report::Doubt;
use super::warm_up::WarmedUp;
use crate::machine::{Date, Gpu, GpuKind, GpuProcess, LearnedHeadroom, Machine, mib, nvidia};
use crate::memory::{ContextSizes, Footprint, Headroom, Workload};
use crate::plan::Plan;
use crate::profile::ModelProfile;

/// What there is to say of a GPU of the plan.
#[derive(Debug)]
pub(super) struct Judged {
    /// Why the change of its free bytes says nothing of this load, if it does not.
    pub(super) doubt: Option<Doubt>,
    pub(super) learned: Result<LearnedHeadroom, Doubt>,
}

/// What is learned of each GPU of the plan, in its order. What is new is kept where `learn` says.
pub(super) fn judge(
    plan: &Plan,
    machine: &Machine,
    readings: &LoadReadings,
    run: &WarmedUp,
    learn: &Learn,
) -> Vec<Judged> {
    let has_nvidia = machine.gpus.iter().any(|gpu| gpu.nvml.is_some());
    let cards = if has_nvidia { nvidia::detect().gpus } else { Vec::new() };
    let count = readings.devices.len();
    let judged = plan.gpus().take(count).enumerate().map(|(index, placement)| {
        let device = placement.device.clone().unwrap_or_default();
        let has_name = |gpu: &&Gpu| gpu.device.as_ref() == Some(&device);
        let gpu = machine.gpus.iter().find(has_name);
        let doubt = gpu.and_then(|gpu| {
            let card = cards.iter().find(|card| card.pci_id == gpu.pci_id);
            doubt(gpu, card.and_then(|card| card.processes.as_deref()))
        });
        let seen = seen(index, readings, run);
        // The last GPU has the output layer (llama-model.cpp, load_tensors).
        let work = if index + 1 == count { &readings.work.with_output } else { &readings.work.blocks };
        let learned = match (doubt, gpu) {
            (Some(doubt), _) => Err(doubt),
            (None, _) if run.warm_up.verify == Verify::Off => Err(Doubt::NotComputed),
            (None, _) if run.warm_up.skipped.is_some() => Err(Doubt::NotGenerative),
            (None, _) if readings.is_first.get(index) != Some(&true) => Err(Doubt::NotFirst),
            (None, _) if placement.layers < 2 => Err(Doubt::OneLayer),
            (None, None) => Err(Doubt::NotTold),
            (None, Some(gpu)) => {
                let mut unknown = gpu.clone();
                unknown.learned = None;
                let table = Headroom::Tight.of_gpu(&unknown, work, 0, machine.wsl);
                seen.learned(work, table.driver.saturating_add(table.growth))
            }
        };
        if let (Some(gpu), Ok(learned)) = (gpu, learned) {
            keep(gpu, learned, learn, is_simulated(&device));
        }
        Judged { doubt, learned }
    });
    judged.collect()
}

fn seen(index: usize, readings: &LoadReadings, run: &WarmedUp) -> Seen {
    let at = |values: &[Option<u64>]| values.get(index).copied().flatten();
    let reserved = run.reserved.gpus.get(index).map(Footprint::total);
    let allocated = run.allocated.gpus.get(index).map(Footprint::total);
    Seen {
        before: at(&readings.before),
        loaded: at(&run.loaded),
        used: at(&run.used),
        allocated: reserved,
        grown: allocated.unwrap_or(0).saturating_sub(reserved.unwrap_or(0)),
    }
}

/// Keeps what was learned, unless that is known.
fn keep(gpu: &Gpu, learned: LearnedHeadroom, learn: &Learn, is_simulated: bool) {
    let Some(cache) = learn.cache(is_simulated) else {
        return;
    };
    let build = build_name();
    let is_known = cache.headroom(gpu, &build).is_some_and(|known| {
        known.driver >= learned.driver
            && known.growth >= learned.growth
            && known.covers(learned.activations, learned.decoded_matrix)
    });
    if !is_known {
        cache.put_headroom(gpu, &build, learned);
    }
}

/// What free memory may change by itself while nothing is done: desktops redraw, Windows moves what it holds. As much
/// as the smallest margin of [`Headroom::Default`](crate::memory::Headroom::Default) leaves.
const JITTER: u64 = mib(64);

/// Several times as much as the table of known drivers and pools says is the doing of somebody else.
const MOST_OF_TABLE: u64 = 4;

/// What a load notes down before it begins.
#[derive(Debug)]
pub(super) struct LoadReadings {
    pub(super) devices: Vec<Device>,
    /// Whether the model is the first of this process on the device.
    pub(super) is_first: Vec<bool>,
    pub(super) before: Vec<Option<u64>>,
    pub(super) work: Work,
}

/// What a model does in its blocks and, on the last GPU, in its output layer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) blocks: Workload,
    pub(super) with_output: Workload,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) before: Option<u64>,
    /// When everything was reserved and nothing computed.
    pub(super) loaded: Option<u64>,
    pub(super) used: Option<u64>,
    /// What llama.cpp said it had allocated when everything was reserved.
    pub(super) allocated: Option<u64>,
    /// What it allocated after that.
    pub(super) grown: u64,
}

impl Work {
    pub(super) fn of(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let mut without_output = *sizes;
        without_output.n_outputs = 0;
        Self { blocks: Workload::of(profile, &without_output), with_output: Workload::of(profile, sizes) }
    }

    /// What it does at the most.
    pub(super) const fn largest(&self) -> &Workload {
        &self.with_output
    }
}

impl LoadReadings {
    /// To be called right before the load.
    pub(super) fn before(devices: &[Device], work: Work) -> Self {
        Self {
            devices: devices.to_owned(),
            is_first: devices.iter().map(is_first).collect(),
            before: free(devices),
            work,
        }
    }
}

/// Whether no model of this process has been on this device. On a simulated one, which keeps no code
/// loaded, every model counts as the first.
fn is_first(device: &Device) -> bool {
    static USED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let name = device.name();
    is_simulated(&name) || USED.lock().unwrap_or_else(PoisonError::into_inner).insert(name)
}

/// Why nothing can be learned of this GPU, whatever its readings are. `programs` are those on it now.
pub(super) fn doubt(gpu: &Gpu, programs: Option<&[GpuProcess]>) -> Option<Doubt> {
    match gpu.kind {
        GpuKind::Remote => Some(Doubt::Remote),
        GpuKind::Integrated => Some(Doubt::SharedMemory),
        GpuKind::Discrete => {
            let (before, now) = (gpu.processes.as_deref()?, programs?);
            (!are_same(before, now)).then_some(Doubt::OtherPrograms)
        }
    }
}

/// Whether these are the same programs with the same bytes, in whatever order.
fn are_same(before: &[GpuProcess], now: &[GpuProcess]) -> bool {
    let held = |programs: &[GpuProcess]| {
        let mut held: Vec<_> = programs.iter().map(|one| (one.pid, one.bytes)).collect();
        held.sort_unstable();
        held
    };
    held(before) == held(now)
}

impl Seen {
    /// What driver and pools took, unless something else has changed the readings. `table`: what they are known to
    /// take at the most.
    pub(super) fn learned(&self, workload: &Workload, table: u64) -> Result<LearnedHeadroom, Doubt> {
        let told = |reading: Option<u64>| reading.ok_or(Doubt::NotTold);
        let (before, loaded, used) = (told(self.before)?, told(self.loaded)?, told(self.used)?);
        let expected = before.saturating_sub(told(self.allocated)?);
        let driver = expected.saturating_sub(loaded);
        let growth = loaded.saturating_sub(used).saturating_sub(self.grown);
        let most = table.saturating_mul(MOST_OF_TABLE).saturating_add(JITTER);
        let is_ours = loaded <= expected.saturating_add(JITTER)
            && used <= loaded.saturating_add(JITTER)
            && driver.max(growth) <= most;
        if !is_ours {
            return Err(Doubt::Disturbed);
        }
        let learned = LearnedHeadroom::new(driver, growth, Date::today());
        Ok(learned.work(workload.activations, workload.decoded_matrix))
    }
}

#[cfg(test)]
mod tests {
    use super::{Seen, are_same, doubt};
    use crate::load::Doubt;
    use crate::machine::{Gpu, GpuKind, GpuProcess, mib};
    use crate::memory::Workload;

    /// What drivers and pools are known to take.
    const TABLE: u64 = mib(100);

    const UNTOLD: u64 = u64::MAX;

    #[test]
    fn the_driver_is_what_the_load_took_beside_its_buffers_and_growth_what_came_after() {
        let disturbed = Err(Doubt::Disturbed);
        let untold = Err(Doubt::NotTold);
        let most = 4 * 100 + 64;
        // MiB before, loaded, used, allocated, grown: driver and growth.
        let cases = [
            ([1000, 380, 350, 600, 0], Ok((20, 30))),
            // Of what came after the load some was a buffer that llama.cpp counts.
            ([1000, 380, 350, 600, 5], Ok((20, 25))),
            // A little less than nothing is nothing.
            ([1000, 410, 420, 600, 0], Ok((0, 0))),
            // Another program gave memory back during the load or the warm-up, or took some.
            ([900, 380, 350, 600, 0], disturbed),
            ([1000, 380, 500, 600, 0], disturbed),
            ([4000, 3380, 3380 - most, 600, 0], Ok((20, most))),
            ([4000, 3380, 3379 - most, 600, 0], disturbed),
            ([4000, 2000, 2000, 600, 0], disturbed),
            // What is not told is not learned from.
            ([UNTOLD, 380, 350, 600, 0], untold),
            ([1000, 380, 350, UNTOLD, 0], untold),
        ];
        for (readings, expected) in cases {
            let [before, loaded, used, allocated, grown] = readings;
            let told = |reading| (reading != UNTOLD).then(|| mib(reading));
            let seen = Seen {
                before: told(before),
                loaded: told(loaded),
                used: told(used),
                allocated: told(allocated),
                grown: mib(grown),
            };
            let learned = seen.learned(&Workload::default(), TABLE);
            let parts = learned.map(|learned| (learned.driver, learned.growth));
            let expected = expected.map(|(driver, growth)| (mib(driver), mib(growth)));
            assert_eq!(parts, expected, "{readings:?}");
        }
    }

    #[test]
    fn other_programs_with_other_bytes_are_noticed_in_any_order() {
        let program = |pid, bytes| GpuProcess::new(pid).bytes(mib(bytes));
        let before = [program(1, 50), program(2, 60)];
        assert!(are_same(&before, &[program(2, 60), program(1, 50)]));
        let mut gpu = Gpu::new("card");
        gpu.processes = Some(before.to_vec());
        for now in [vec![program(1, 50)], vec![program(1, 50), program(2, 61)]] {
            assert_eq!(doubt(&gpu, Some(&now)), Some(Doubt::OtherPrograms));
        }
        assert_eq!(doubt(&gpu, Some(&before)), None);
        assert_eq!(doubt(&gpu, None), None);
    }

    #[test]
    fn of_memory_that_is_not_the_cards_own_nothing_is_learned() {
        let of = |kind| doubt(&Gpu::new("card").kind(kind), None);
        assert_eq!(of(GpuKind::Integrated), Some(Doubt::SharedMemory));
        assert_eq!(of(GpuKind::Remote), Some(Doubt::Remote));
        assert_eq!(of(GpuKind::Discrete), None);
    }
}
