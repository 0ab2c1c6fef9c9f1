//! Measures the memory that a load took in addition to llama.cpp's buffers. In: the free bytes before the load, after
//! the load, and after the warm-up. Out: the bytes of driver and pools, which the user's cache keeps for the next plan.

use std::collections::BTreeSet;
use std::sync::Mutex;

use llama_sys::Device;

use super::devices::{build_name, free, gpu_of, is_simulated};
use super::leases::Folder;
use super::options::Verify;
use super::placed::Prepared;
use super::report::{GpuReport, NotLearnedReason};
use super::warm_up::WarmedUp;
use crate::machine::{Gpu, GpuKind, GpuProcess, LearnedHeadroom, mib, nvidia};
use crate::memory::{ContextSizes, Footprint, Headroom, PeakSizes};
use crate::profile::ModelProfile;
use crate::sync::lock;

/// The reports of the plan's GPUs, in order. Also stores the bytes of driver and pools in `learn`.
pub(super) fn gpu_reports(prepared: &Prepared, before: &[Reading], run: &WarmedUp, learn: &Folder) -> Vec<GpuReport> {
    let Prepared { plan, machine, work } = prepared;
    let has_nvidia = machine.gpus.iter().any(|gpu| gpu.nvml.is_some());
    let cards = if has_nvidia { nvidia::detect(None).0 } else { Vec::new() };
    // The last GPU has the output layer (llama-model.cpp, load_tensors).
    let last = plan.gpus().count().saturating_sub(1);
    let reports = plan.gpus().zip(before).enumerate().map(|(index, (placement, before))| {
        let gpu = gpu_of(machine, placement);
        let footprints = [&run.at_first, &run.reserved, &run.allocated];
        let [at_first, reserved, allocated] = footprints.map(|footprint| footprint.gpus.get(index).copied());
        let [loaded, used] = [&run.loaded, &run.used].map(|readings| readings.get(index).copied().flatten());
        let unreliable = gpu.and_then(|gpu| {
            let card = cards.iter().find(|card| card.gpu.pci_id == gpu.pci_id);
            unreliable(gpu, card.and_then(|card| card.gpu.processes.as_deref()))
        });
        let learned = match (unreliable, gpu) {
            (Some(unreliable), _) => Err(unreliable),
            _ if run.warm_up.verify == Verify::Off => Err(NotLearnedReason::NotComputed),
            _ if run.warm_up.skipped.is_some() => Err(NotLearnedReason::NotGenerative),
            _ if !before.is_first => Err(NotLearnedReason::NotFirst),
            _ if placement.layers < 2 => Err(NotLearnedReason::OneLayer),
            (None, None) => Err(NotLearnedReason::NotReported),
            (None, Some(gpu)) => {
                let work = if index == last { &work.with_output } else { &work.blocks };
                let [reserved, allocated] =
                    [reserved, allocated].map(|account| account.map(|footprint| footprint.total()));
                learned(gpu, work, machine.wsl, [before.free, loaded, used, reserved, allocated])
            }
        };
        if let (Some(gpu), Ok(learned)) = (gpu, learned) {
            keep(gpu, learned, learn);
        }
        let total = |footprint: Option<Footprint>| footprint.unwrap_or_default().total();
        GpuReport {
            device: placement.device.clone().unwrap_or_default(),
            name: placement.name.clone(),
            layers: placement.layers,
            planned: placement.footprint,
            headroom: placement.headroom,
            withheld: gpu.map_or(0, |gpu| gpu.free.saturating_sub(placement.free)),
            allocated,
            grown: total(allocated).saturating_sub(total(at_first)),
            before: before.free,
            loaded,
            used,
            unreliable: unreliable
                .or((before.free.is_none() || used.is_none()).then_some(NotLearnedReason::NotReported)),
            learned,
        }
    });
    reports.collect()
}

/// The bytes of driver and pools on a GPU with this workload, from its [readings](of_readings).
fn learned(
    gpu: &Gpu,
    work: &PeakSizes,
    wsl: bool,
    readings: [Option<u64>; 5],
) -> Result<LearnedHeadroom, NotLearnedReason> {
    let mut unknown = gpu.clone();
    unknown.learned = None;
    let table = Headroom::Tight.of_gpu(&unknown, work, 0, wsl);
    of_readings(readings, work, table.driver.saturating_add(table.growth))
}

/// Stores the measurement unless the cache already covers it.
fn keep(gpu: &Gpu, learned: LearnedHeadroom, learn: &Folder) {
    let Some(cache) = learn.cache(gpu.device.as_deref().is_some_and(is_simulated)) else { return };
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

/// A change of free memory up to this size counts as noise: desktops redraw, and Windows moves memory. The size equals
/// the smallest margin of [`Headroom::Default`](crate::memory::Headroom::Default).
const JITTER: u64 = mib(64);

/// If a load seems to take more than this multiple of the bytes that drivers and pools are known to take, another
/// program must have taken the memory.
const MAX_OF_TABLE: u64 = 4;

/// A reading of a device before a load.
#[derive(Debug)]
pub(super) struct Reading {
    /// Whether the model is the first of this process on the device.
    is_first: bool,
    free: Option<u64>,
}

impl Reading {
    /// Takes the readings. Must be called right before the load.
    pub(super) fn now(devices: &[Device]) -> Vec<Self> {
        devices.iter().zip(free(devices)).map(|(device, free)| Self { is_first: is_first(device), free }).collect()
    }
}

/// How large the computations of a GPU become: of a GPU that has only blocks, and of the last GPU, which has the output
/// layer too.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) blocks: PeakSizes,
    pub(super) with_output: PeakSizes,
}

impl Work {
    pub(super) fn new(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let mut without_output = *sizes;
        without_output.n_outputs = 0;
        Self { blocks: PeakSizes::new(profile, &without_output), with_output: PeakSizes::new(profile, sizes) }
    }
}

/// Whether no model of this process has used this device before. Simulated devices load no code, so every model counts
/// as their first.
fn is_first(device: &Device) -> bool {
    static USED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let name = device.name();
    is_simulated(&name) || lock(&USED).insert(name)
}

/// The reason why this GPU cannot be measured at all. `programs` are the programs that use it now.
fn unreliable(gpu: &Gpu, programs: Option<&[GpuProcess]>) -> Option<NotLearnedReason> {
    match gpu.kind {
        GpuKind::Remote => Some(NotLearnedReason::Remote),
        GpuKind::Integrated => Some(NotLearnedReason::SharedMemory),
        GpuKind::Discrete => {
            let (before, now) = (gpu.processes.as_deref()?, programs?);
            let all_in = |some: &[GpuProcess], others: &[GpuProcess]| {
                some.iter().all(|one| others.iter().any(|other| (other.pid, other.bytes) == (one.pid, one.bytes)))
            };
            (!all_in(before, now) || !all_in(now, before)).then_some(NotLearnedReason::OtherPrograms)
        }
    }
}

/// The bytes of driver and pools, unless something else has changed the readings. The readings, in order, are the bytes
/// that were free before the load, free after the reservation, free after the warm-up, allocated after the reservation,
/// and allocated after the warm-up. `table` is the maximum that drivers and pools are known to take.
fn of_readings(readings: [Option<u64>; 5], work: &PeakSizes, table: u64) -> Result<LearnedHeadroom, NotLearnedReason> {
    let [Some(before), Some(loaded), Some(used), Some(reserved), Some(allocated)] = readings else {
        return Err(NotLearnedReason::NotReported);
    };
    let expected = before.saturating_sub(reserved);
    let driver = expected.saturating_sub(loaded);
    let growth = loaded.saturating_sub(used).saturating_sub(allocated.saturating_sub(reserved));
    let most = table.saturating_mul(MAX_OF_TABLE).saturating_add(JITTER);
    let is_ours = loaded <= expected.saturating_add(JITTER)
        && used <= loaded.saturating_add(JITTER)
        && driver.max(growth) <= most;
    if !is_ours {
        return Err(NotLearnedReason::Disturbed);
    }
    Ok(LearnedHeadroom::new(driver, growth).work(work.activations, work.decoded_matrix))
}

#[cfg(test)]
mod tests {
    use super::{of_readings, unreliable};
    use crate::load::NotLearnedReason;
    use crate::machine::{Gpu, GpuKind, GpuProcess, mib};
    use crate::memory::PeakSizes;

    /// Maximum bytes that drivers and pools are known to take.
    const TABLE: u64 = mib(100);

    const MISSING: u64 = u64::MAX;

    #[test]
    fn driver_bytes_come_with_the_load_and_growth_comes_after_it() {
        let disturbed = Err(NotLearnedReason::Disturbed);
        let missing = Err(NotLearnedReason::NotReported);
        let most = 4 * 100 + 64;
        // Each case has the readings in MiB (free before, after the reservation, after the warm-up; allocated after the
        // reservation, after the warm-up), and then the expected MiB of the driver and of the growth.
        let cases = [
            ([1000, 380, 350, 600, 600], Ok((20, 30))),
            // A part of the growth is a buffer that llama.cpp counts.
            ([1000, 380, 350, 600, 605], Ok((20, 25))),
            // A slightly negative number counts as 0.
            ([1000, 410, 420, 600, 600], Ok((0, 0))),
            // Another program released or took memory during the load or the warm-up.
            ([900, 380, 350, 600, 600], disturbed),
            ([1000, 380, 500, 600, 600], disturbed),
            ([4000, 3380, 3380 - most, 600, 600], Ok((20, most))),
            ([4000, 3380, 3379 - most, 600, 600], disturbed),
            ([4000, 2000, 2000, 600, 600], disturbed),
            // A missing reading yields no measurement.
            ([MISSING, 380, 350, 600, 600], missing),
            ([1000, 380, 350, MISSING, MISSING], missing),
        ];
        for (readings, expected) in cases {
            let reported = readings.map(|reading| (reading != MISSING).then(|| mib(reading)));
            let learned = of_readings(reported, &PeakSizes::default(), TABLE);
            let parts = learned.map(|learned| (learned.driver, learned.growth));
            let expected = expected.map(|(driver, growth)| (mib(driver), mib(growth)));
            assert_eq!(parts, expected, "{readings:?}");
        }
    }

    #[test]
    fn nothing_is_learned_beside_other_programs_or_from_shared_memory() {
        let program = |pid, bytes| GpuProcess::new(pid).bytes(mib(bytes));
        let mut gpu = Gpu::new("card");
        gpu.processes = Some(vec![program(1, 50), program(2, 60)]);
        let others = Some(NotLearnedReason::OtherPrograms);
        for (kind, now, expected) in [
            (GpuKind::Discrete, None, None),
            (GpuKind::Discrete, Some(vec![program(2, 60), program(1, 50)]), None),
            (GpuKind::Discrete, Some(vec![program(1, 50)]), others),
            (GpuKind::Discrete, Some(vec![program(1, 50), program(2, 61)]), others),
            (GpuKind::Integrated, None, Some(NotLearnedReason::SharedMemory)),
            (GpuKind::Remote, None, Some(NotLearnedReason::Remote)),
        ] {
            assert_eq!(unreliable(&gpu.clone().kind(kind), now.as_deref()), expected, "{now:?}");
        }
    }
}
