//! What a load took beside the buffers that llama.cpp counts. Free bytes before the load, after it and after the
//! warm-up flow in; what driver and pools took flows out, and into the user's cache for the next plan.

mod readings;

use serde::{Deserialize, Serialize};

use super::Verify;
use super::devices::{build_name, is_simulated};
use super::terms::Learn;
use super::warm_up::WarmedUp;
use crate::machine::{Gpu, LearnedHeadroom, Machine, nvidia};
use crate::memory::{Footprint, Headroom};
use crate::plan::Plan;

use readings::Seen;
pub(super) use readings::{LoadReadings, Work, free};

/// Why nothing is learned of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Doubt {
    /// Its backend does not tell its free memory, or llama.cpp not what it has allocated there.
    #[error("nothing tells how much of it is free, or allocated")]
    NotTold,
    /// A model of this process was on it before: what that made the driver load is there already, and would be missing
    /// from the measurement.
    #[error("an earlier model of this process has used it")]
    NotFirst,
    /// It has one layer, which may be the output layer alone: the work of a whole block was not seen.
    #[error("it has a single layer, whose work says nothing of others")]
    OneLayer,
    /// It uses the host's memory, which everything else on the machine changes too.
    #[error("its memory is the host's, which others change meanwhile")]
    SharedMemory,
    /// It is on another machine, whose driver is not known here.
    #[error("it is on another machine, whose driver is not known")]
    Remote,
    /// NVIDIA's driver lists other programs, or other bytes of theirs, than before the load. In a container the list
    /// may name this process as another.
    #[error("other programs took or gave back memory meanwhile")]
    OtherPrograms,
    /// Its free memory changed by what this model cannot have done: more became free, or several times as much was
    /// taken as any driver and pools are known to take. Another program, or another model of this process.
    #[error("its free memory changed meanwhile by what this model did not do")]
    Disturbed,
    /// The model does not generate, and was not loaded to embed: no batch of it was computed.
    #[error("the model does not generate, and nothing was computed")]
    NotGenerative,
    /// Nothing was computed, because nobody wanted that ([`Verify::Off`]).
    #[error("nothing was computed")]
    NotComputed,
}

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

/// The readings of one device.
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
