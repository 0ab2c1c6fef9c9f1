//! A saved plan, followed exactly: checked against the model, the machine as it is, and what llama.cpp says it takes.

use super::Error;
use super::devices::gpu_of;
use super::lease::Lease;
use super::progress::Progress;
use super::recipe::Recipe;
use crate::gguf::Header;
use crate::machine::{Gpu, Machine};
use crate::plan::{self, Plan, Probe, SavedPlan, SavedPlanError};
use crate::profile::ModelProfile;

/// Checks a saved plan against the model, the machine as it is, and what llama.cpp says now. Returns the plan to load
/// by, the machine that it is for, and the lease on its GPUs; a plan that does not match is refused.
pub(super) fn follow(
    recipe: &Recipe,
    saved: &SavedPlan,
    header: &Header,
    profile: &ModelProfile,
    progress: &Progress,
) -> Result<(Plan, Machine, Lease), Error> {
    let probe = recipe.adapters.probe(header)?;
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
    let (machine, lease) = recipe.leased_machine(false, progress)?;
    let mut plan = saved.plan.clone();
    let mut changes = saved.changes(&machine);
    // Where the plan itself says nothing, llama.cpp does: it may be another than the one that it was planned with.
    if changes.is_empty() {
        let gpus: Vec<&Gpu> = plan.gpus().filter_map(|placement| gpu_of(&machine, placement)).collect();
        let footprints = probe
            .footprints(&gpus, &plan.context, &plan.split())
            .map_err(|source| plan::Error::Probe { n_gpu_layers: plan.n_gpu_layers, source })?;
        changes = saved.changes_by(&machine, &footprints);
    }
    if !changes.is_empty() {
        return Err(SavedPlanError::Changed { model: saved.model.name.clone(), changes }.into());
    }
    // Where the model is now.
    plan.model.path.clone_from(&profile.path);
    Ok((plan, machine, lease))
}
