//! Where the model would go if it were loaded now: what is free, and what it holds itself, against where it is.

use super::{Error, Model};
use crate::gguf::Header;
use crate::machine::Machine;
use crate::memory::companion::Role;
use crate::memory::{CompanionBytes, Footprint};
use crate::plan::Plan;

/// A plan that is better than the one that a model is loaded by, and by how much.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BetterPlan {
    /// The plan.
    pub plan: Plan,
    /// See [`gain`](Self::gain).
    gain: f64,
}

impl BetterPlan {
    /// By how much it is better than what is loaded: 0.25 is a quarter more predicted tokens per second. Where nothing
    /// predicts those, layers more on GPUs, as a share of the model's layers.
    pub const fn gain(&self) -> f64 {
        self.gain
    }
}

impl Model {
    /// The plan that the model would be loaded by if it were released now, from the request that it was loaded with:
    /// for what is free, and what it holds itself. Of a machine that was handed to the builder, no GPU counts with more
    /// free bytes than were stated.
    ///
    /// # Errors
    ///
    /// As [`ModelBuilder::plan`](super::ModelBuilder::plan).
    pub fn plan_anew(&self) -> Result<Plan, Error> {
        let recipe = self.recipe();
        let header = Header::open(&recipe.path)?;
        let profile = recipe.profile(&header)?;
        let mut machine = self.once_released(recipe.machine(true)?);
        if let Some(stated) = &recipe.machine {
            machine.host.available = stated.host.available;
            for (gpu, stated) in machine.gpus.iter_mut().zip(&stated.gpus) {
                gpu.free = gpu.free.min(stated.free);
            }
        }
        recipe.plan(&header, &profile, &machine)
    }

    /// The plan that the model would be loaded by now, if that is better than the one that it is loaded by.
    ///
    /// # Errors
    ///
    /// As [`plan_anew`](Self::plan_anew).
    pub fn better_plan(&self) -> Result<Option<BetterPlan>, Error> {
        let plan = self.plan_anew()?;
        let gain = gain(&self.placement(), &plan);
        Ok((gain > 0.0).then_some(BetterPlan { plan, gain }))
    }

    /// The machine with what this model holds of it counted as free.
    fn once_released(&self, mut machine: Machine) -> Machine {
        if !self.is_elsewhere() && self.native().is_err() {
            return machine;
        }
        let (plan, allocated) = (self.placement(), self.allocated());
        let draft = self.draft_bytes(&plan);
        for (placement, held) in plan.gpus().zip(&allocated.gpus) {
            let beside = if placement.companions > 0 {
                draft.gpu.total()
            } else {
                0
            };
            let gpu = machine
                .gpus
                .iter_mut()
                .find(|gpu| gpu.device == placement.device);
            if let Some(gpu) = gpu {
                let held = held.total().saturating_add(beside);
                gpu.free = with(gpu.free, held, gpu.total);
                if let Some(pools) = &mut gpu.pools {
                    pools.own.free = pools.own.total.min(pools.own.free.saturating_add(held));
                }
            }
        }
        // A mapped file is in the page cache, which counts as available already.
        let mapped = plan.context.mmap;
        let unmapped = |held: Footprint| {
            Footprint::new(if mapped { 0 } else { held.weights }, held.kv, held.compute)
        };
        let held = unmapped(allocated.host);
        let host = &mut machine.host;
        let held = held.total().saturating_add(unmapped(draft.host).total());
        host.available = with(host.available, held, host.total);
        machine
    }

    /// What the draft takes that is loaded beside this model, by its plan.
    fn draft_bytes(&self, plan: &Plan) -> CompanionBytes {
        let is_loaded = self.recipe().draft.is_some();
        let drafts = plan
            .companions
            .iter()
            .filter(|one| is_loaded && one.role == Role::Draft);
        drafts.map(|draft| draft.bytes).next().unwrap_or_default()
    }
}

/// Free bytes with those that are held; a total of 0 is unknown.
const fn with(free: u64, held: u64, total: u64) -> u64 {
    let sum = free.saturating_add(held);
    if total > 0 && sum > total { total } else { sum }
}

fn gain(loaded: &Plan, other: &Plan) -> f64 {
    match (&loaded.speed, &other.speed) {
        (Some(now), Some(then)) if then.seconds() > 0.0 => now.seconds() / then.seconds() - 1.0,
        _ => {
            let more = f64::from(other.n_gpu_layers) - f64::from(loaded.n_gpu_layers);
            more / f64::from(loaded.layers())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{gain, with};
    use crate::load::test_plan::plan;

    #[test]
    fn a_plan_is_as_much_better_as_it_is_predicted_to_be_faster() {
        let (loaded, mut other) = (plan(), plan());
        let faster = 1.25 * loaded.speed.as_ref().unwrap().tokens_per_second;
        other.speed.as_mut().unwrap().tokens_per_second = faster;
        assert!((gain(&loaded, &other) - 0.25).abs() < 1e-9);
        assert!(gain(&other, &loaded) < 0.0);
        assert!(gain(&loaded, &loaded) <= 0.0);
    }

    #[test]
    fn where_no_speed_is_predicted_layers_count() {
        let (loaded, mut other) = (plan(), plan());
        (other.speed, other.n_gpu_layers) = (None, loaded.n_gpu_layers + 11);
        assert!((gain(&loaded, &other) - 11.0 / 33.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_has_more_free_than_it_has() {
        assert_eq!((with(3, 4, 10), with(8, 4, 10), with(8, 4, 0)), (7, 10, 12));
    }
}
