//! A saved plan, followed exactly: checked against the model, the machine as it is, and what llama.cpp says it takes.

use super::adapters;
use super::devices::{detect, gpu_of};
use super::lease::Lease;
use super::recipe::Recipe;
use super::{Error, NativeProbe};
use crate::gguf::Header;
use crate::machine::{Gpu, Host, Machine};
use crate::plan::{self, MachineChange, Plan, Probe, SavedPlan, SavedPlanError};
use crate::profile::ModelProfile;

/// Checks a saved plan against the model, the machine as it is, and what llama.cpp says now. Returns the plan to load
/// by, the machine that it is for, and the lease on its GPUs; a plan that does not match is refused.
pub(super) fn follow(
    recipe: &Recipe,
    saved: &SavedPlan,
    header: &Header,
    profile: &ModelProfile,
) -> Result<(Plan, Machine, Lease), Error> {
    let probe = adapters::probe(&recipe.adapters, header)?;
    saved.check_model(header)?;
    // It is the same model; its layers are then those of the plan, unless the plan was edited.
    let (blocks, has) = (saved.plan.model.blocks, profile.n_layer());
    if blocks != has {
        return Err(SavedPlanError::Invalid {
            file: None,
            problem: format!("plan.model.blocks is {blocks}, and the model has {has}"),
        }
        .into());
    }
    let (machine, lease) = recipe.leases.machine(|| match &recipe.machine {
        Some(machine) => Ok(machine.clone()),
        // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
        None if saved.plan.gpus().next().is_none() => Ok(Machine::new(Host::detect().0)),
        None => detect(),
    })?;
    let changes = changes(saved, &machine, &probe)?;
    if !changes.is_empty() {
        return Err(SavedPlanError::Changed { model: saved.model.name.clone(), changes }.into());
    }
    let mut plan = saved.plan.clone();
    // Where the model is now.
    plan.model.path.clone_from(&profile.path);
    Ok((plan, machine, lease))
}

/// What keeps the plan from being followed: by what it says of itself; if that is nothing, by what llama.cpp says of
/// it, which may be another llama.cpp than the one it was planned with.
fn changes(saved: &SavedPlan, machine: &Machine, probe: &NativeProbe) -> Result<Vec<MachineChange>, Error> {
    let changes = saved.changes(machine);
    if !changes.is_empty() {
        return Ok(changes);
    }
    let plan = &saved.plan;
    let gpus: Vec<&Gpu> = plan.gpus().filter_map(|placement| gpu_of(machine, placement)).collect();
    let footprints = probe
        .footprints(&gpus, &plan.context, &plan.split())
        .map_err(|source| plan::Error::Probe { n_gpu_layers: plan.n_gpu_layers, source })?;
    Ok(saved.changes_by(machine, &footprints))
}
