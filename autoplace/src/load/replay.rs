//! A saved plan, followed exactly: held against the model, the machine as it is, and what llama.cpp says that it takes.

use std::path::PathBuf;

use super::devices::detect;
use super::lease::{Lease, Leases};
use super::{Error, NativeProbe};
use crate::gguf::Header;
use crate::machine::{Gpu, Host, Machine};
use crate::memory::{self, Estimate, Footprint, Footprints};
use crate::plan::{self, MachineChange, Plan, Planner, Probe, Replay, SavedPlan, SavedPlanError};
use crate::profile::ModelProfile;

pub(super) enum Source {
    Here(Box<SavedPlan>),
    File(PathBuf),
}

impl Source {
    /// The plan, checked.
    pub(super) fn read(&self) -> Result<SavedPlan, SavedPlanError> {
        match self {
            Self::Here(saved) => {
                saved.check()?;
                Ok((**saved).clone())
            }
            Self::File(file) => SavedPlan::read(file),
        }
    }
}

/// Follows a saved plan: held against the model, the machine as it is, and what llama.cpp says now, it is followed,
/// refused, or made anew. Returns the plan to load by, the machine that it is for, and the lease on what it takes
/// there. `machine` is the one to believe instead of what is detected.
pub(super) fn follow(
    saved: &SavedPlan,
    replay: Replay,
    (header, profile, probe): (&Header, &ModelProfile, &NativeProbe),
    machine: Option<&Machine>,
    leases: &Leases,
) -> Result<(Plan, Machine, Lease), Error> {
    saved.check_model(header)?;
    // The model is the one; its layers then are those of the plan unless somebody has changed them.
    let (blocks, has) = (saved.plan.model.blocks, profile.n_layer());
    if blocks != has {
        return Err(SavedPlanError::Invalid {
            file: None,
            problem: format!("plan.model.blocks is {blocks}, and the model has {has}"),
        }
        .into());
    }
    let (machine, section) = leases.machine(|| match machine {
        Some(machine) => Ok(machine.clone()),
        // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
        None if saved.plan.gpus().next().is_none() => Ok(Machine::new(Host::detect().0)),
        None => detect(),
    })?;
    let changes = changes(saved, profile, &machine, probe)?;
    if changes.is_empty() {
        let mut plan = saved.plan.clone();
        // Where the model is now.
        plan.model.path.clone_from(&profile.path);
        let lease = section.hold(&plan, &machine);
        return Ok((plan, machine, lease));
    }
    let companions = saved.plan.companions.iter();
    let companions: Vec<String> = companions.map(|one| one.name.clone()).collect();
    if replay == Replay::Refuse || !companions.is_empty() {
        return Err(SavedPlanError::Changed {
            model: saved.model.name.clone(),
            changes,
            companions: match replay {
                Replay::Refuse => Vec::new(),
                _ => companions,
            },
        }
        .into());
    }
    let mut plan = Planner::new(profile, &machine).request(saved.request.clone()).plan_probed(probe)?;
    let changes = MachineChange::list(&changes);
    plan.notes.push(format!("planned anew, as the saved plan cannot be followed: {changes}"));
    let lease = section.hold(&plan, &machine);
    Ok((plan, machine, lease))
}

/// What keeps the plan from being followed: by what it says of itself; if that is nothing, by the bytes of its weights
/// and caches; and last by what llama.cpp says of it, which may be another llama.cpp than the one it was planned with.
/// A file may say anything, and llama.cpp asked about a context of a billion tokens takes memory for each of its cells.
fn changes(
    saved: &SavedPlan,
    profile: &ModelProfile,
    machine: &Machine,
    probe: &NativeProbe,
) -> Result<Vec<MachineChange>, Error> {
    let changes = saved.changes(machine);
    if !changes.is_empty() {
        return Ok(changes);
    }
    let plan = &saved.plan;
    let gpus: Vec<&Gpu> = plan
        .gpus()
        .filter_map(|placement| {
            let has_name = |gpu: &&Gpu| gpu.device == placement.device;
            machine.gpus.iter().find(has_name)
        })
        .collect();
    let stored = stored(plan, profile, &gpus).map_err(plan::Error::from)?;
    let changes = saved.changes_by(machine, &stored);
    if !changes.is_empty() {
        return Ok(changes);
    }
    let footprints = probe
        .footprints(&gpus, &plan.context, &plan.split())
        .map_err(|source| plan::Error::Probe { n_gpu_layers: plan.n_gpu_layers, source })?;
    Ok(saved.changes_by(machine, &footprints))
}

/// What the plan's weights and caches take, and the logits that it makes room for: exact, and known without llama.cpp.
fn stored(plan: &Plan, profile: &ModelProfile, gpus: &[&Gpu]) -> Result<Footprints, memory::Error> {
    let estimate =
        Estimate::new(profile, gpus, &plan.context)?.tensor_split(&plan.tensor_split)?.overrides(&plan.overrides)?;
    let mut stored = estimate.stored(&estimate.assignment(plan.n_gpu_layers));
    let logits = 4_u64.saturating_mul(u64::from(profile.hparams.n_vocab));
    stored.output = logits.saturating_mul(estimate.sizes().output_rows);
    stored.host += Footprint::new(0, 0, stored.output);
    Ok(stored)
}
