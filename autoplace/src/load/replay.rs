//! Follows a saved plan exactly, after checking it against the model, the present machine, and the bytes that llama.cpp
//! counts.

use super::Error;
use super::devices::gpu_of;
use super::lease::Lease;
use super::options::LoadOptions;
use super::progress::Progress;
use crate::gguf::Header;
use crate::machine::{Gpu, Machine};
use crate::plan::{self, MachineChange, Plan, Probe, SavedPlan, SavedPlanError};
use crate::profile::ModelProfile;

/// Checks a saved plan against the model, the present machine, and the bytes that llama.cpp counts. Returns the plan,
/// its machine, and the lease on its GPUs. A plan that does not match is refused.
pub(super) fn follow(
    options: &LoadOptions,
    saved: &SavedPlan,
    header: &Header,
    profile: &ModelProfile,
    progress: &Progress,
) -> Result<(Plan, Machine, Lease), Error> {
    let probe = options.probe(header)?;
    saved.check_model(header)?;
    // The model is the same, so a different number of blocks can only mean that the plan was edited.
    let (blocks, has) = (saved.plan.model.blocks, profile.n_layer());
    if blocks != has {
        return Err(SavedPlanError::Invalid {
            file: None,
            problem: format!("plan.model.blocks is {blocks}, but the model has {has}"),
        }
        .into());
    }
    let (machine, lease) = options.leased_machine(false, progress)?;
    let mut plan = saved.plan.clone();
    let mut changes = saved.changes(&machine);
    // The plan may come from another version of llama.cpp, so the bytes that llama.cpp counts are compared too.
    if changes.is_empty() {
        changes = probed(&plan, &machine, &probe)?;
    }
    if !changes.is_empty() {
        return Err(SavedPlanError::Changed { model: saved.model.name.clone(), changes }.into());
    }
    if let Some(by_depth) = &plan.by_depth {
        let mut changes = by_depth.plan.changes(&machine);
        if changes.is_empty() {
            changes = probed(&by_depth.plan, &machine, &probe)?;
        }
        if !changes.is_empty() {
            let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
            plan.notes.push(format!("the placement does not follow the depth: {}", changes.join("; ")));
            plan.by_depth = None;
        }
    }
    // The model's file may have been moved since the plan was saved.
    plan.model.path.clone_from(&profile.path);
    plan.by_depth.iter_mut().for_each(|by_depth| by_depth.plan.model.path.clone_from(&profile.path));
    Ok((plan, machine, lease))
}

/// The reasons why a placement cannot be followed. They result from the bytes that llama.cpp counts for it on this
/// machine.
fn probed(plan: &Plan, machine: &Machine, probe: &impl Probe) -> Result<Vec<MachineChange>, Error> {
    let gpus: Vec<&Gpu> = plan.gpus().filter_map(|placement| gpu_of(machine, placement)).collect();
    let footprints = probe
        .footprints(&gpus, &plan.context, &plan.split())
        .map_err(|source| plan::Error::Probe { n_gpu_layers: plan.n_gpu_layers, source })?;
    Ok(plan.changes_by(machine, &footprints))
}
