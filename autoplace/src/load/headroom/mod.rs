//! What a load took beside the buffers that llama.cpp counts. Free bytes before the load, after it and after the
//! warm-up flow in; what driver and pools took flows out, and into the user's cache for the next plan.

mod readings;

use super::devices::{build_name, is_simulated};
use super::report::Doubt;
use super::terms::{Learn, Verify};
use super::warm_up::WarmedUp;
use crate::machine::{Gpu, LearnedHeadroom, Machine, nvidia};
use crate::memory::{Footprint, Headroom};
use crate::plan::Plan;

use readings::Seen;
pub(super) use readings::{LoadReadings, Work};

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
    let cards = if has_nvidia {
        nvidia::detect().gpus
    } else {
        Vec::new()
    };
    let count = readings.devices.len();
    let judged = plan
        .gpus()
        .take(count)
        .enumerate()
        .map(|(index, placement)| {
            let device = placement.device.clone().unwrap_or_default();
            let has_name = |gpu: &&Gpu| gpu.device.as_ref() == Some(&device);
            let gpu = machine.gpus.iter().find(has_name);
            let doubt = gpu.and_then(|gpu| {
                let card = cards.iter().find(|card| card.pci_id == gpu.pci_id);
                readings::doubt(gpu, card.and_then(|card| card.processes.as_deref()))
            });
            let seen = seen(index, readings, run);
            // The last GPU has the output layer (llama-model.cpp, load_tensors).
            let work = if index + 1 == count {
                &readings.work.with_output
            } else {
                &readings.work.blocks
            };
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
    let is_known = cache.get(gpu, &build).is_some_and(|known| {
        known.driver >= learned.driver
            && known.growth >= learned.growth
            && known.covers(learned.activations, learned.decoded_matrix)
    });
    if !is_known {
        cache.put(gpu, &build, learned);
    }
}
