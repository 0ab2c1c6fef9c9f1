//! The placements of one model from the fastest to the smallest, planned for fewer and fewer free bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use autoplace::Plan;
use autoplace::machine::Machine;
use autoplace::plan::{self, Context, Depth, Request};

use crate::held::{HeldBytes, Room, limit};

/// The shares that a rung is planned for of what the model takes of a GPU that it has to itself, in eighths. A small
/// model has as many rungs as a large one.
const EIGHTHS: [u64; 7] = [7, 6, 5, 4, 3, 2, 1];

/// Up to this number of GPUs, rungs are planned for every subset of them; with more, for each one and for all.
const MAX_SUBSETS: usize = 2;

/// A placement of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rung {
    /// The plan, made for the free bytes that the rung may take.
    pub plan: Arc<Plan>,
    /// The bytes that it takes.
    pub held: HeldBytes,
}

impl Rung {
    /// The rung of this plan on this machine.
    pub fn new(plan: Plan, machine: &Machine) -> Self {
        Self { held: HeldBytes::from_plan(&plan, machine), plan: Arc::new(plan) }
    }
}

/// The placements of a model among which a pool chooses: a slower one always takes fewer bytes of some device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ladder {
    rungs: Vec<Rung>,
    request: Request,
}

impl Ladder {
    /// Makes the rungs of a model, on a machine on which no model of the pool is loaded. `plan` makes a plan of the
    /// model for a request and a machine, by the estimate or by probes.
    ///
    /// All rungs have the same context, so a text that fits in one rung fits in all. A context [that may
    /// grow](Context::may_grow) gets the length that it has when the model is alone on the machine.
    ///
    /// # Errors
    ///
    /// The planner's error if the model does not fit on the machine even alone.
    pub fn new(
        machine: &Machine,
        request: &Request,
        mut plan: impl FnMut(&Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Result<Self, plan::Error> {
        let mut request = request.clone();
        if request.depth == Depth::Follow {
            // A second placement by depth needs bytes that another model may take.
            request.depth = Depth::All;
        }
        let alone = plan(&request, machine)?;
        if request.context.may_grow() && request.params.n_ctx == 0 {
            request.context = Context::Tokens(alone.context.n_ctx);
        }
        let mut rungs = vec![Rung::new(alone, machine)];
        let mut planned = |free: &dyn Fn(usize) -> u64| {
            let plan = plan(&request, &with_free(machine, free)).ok()?;
            rungs.push(Rung::new(plan, machine));
            rungs.last().map(|rung| rung.held.clone())
        };
        for subset in subsets(machine.gpus.len()) {
            let is_in = |index: usize| subset.contains(&index);
            let Some(held) = planned(&|index| if is_in(index) { u64::MAX } else { 0 }) else { continue };
            for eighths in EIGHTHS {
                let whole = |index: usize| held.gpus[index].saturating_add(held.gpu_margins[index]);
                planned(&|index| if is_in(index) { whole(index) / 8 * eighths } else { 0 });
            }
        }
        planned(&|_| 0);
        Ok(Self { rungs: worth_a_choice(rungs), request })
    }

    /// The rungs, the fastest first.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// The request that every rung was planned for.
    pub fn request(&self) -> &Request {
        &self.request
    }
}

/// The sets of GPUs that rungs are planned for, the largest first.
fn subsets(count: usize) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..count).collect();
    let mut subsets: Vec<Vec<usize>> = match count {
        0..=MAX_SUBSETS => {
            let chosen = |mask: u32| all.iter().copied().filter(|gpu| mask >> gpu & 1 == 1).collect();
            (1..1_u32 << count).map(chosen).collect()
        }
        _ => all.iter().map(|&gpu| vec![gpu]).chain([all.clone()]).collect(),
    };
    subsets.sort_by_key(|subset| std::cmp::Reverse(subset.len()));
    subsets
}

/// The machine with at most these free bytes on each GPU.
fn with_free(machine: &Machine, free: impl Fn(usize) -> u64) -> Machine {
    let mut machine = machine.clone();
    for (index, gpu) in machine.gpus.iter_mut().enumerate() {
        limit(gpu, free(index));
    }
    machine
}

/// The predicted seconds of a plan's workload; without a predicted speed, the share of layers on the host.
pub(crate) fn slowness(plan: &Plan) -> f64 {
    let share = f64::from(plan.layers() - plan.n_gpu_layers.min(plan.layers())) / f64::from(plan.layers().max(1));
    plan.speed.as_ref().map_or(share, plan::Speed::seconds)
}

/// Drops each rung that is not faster than another one and takes at least as many bytes of every device.
fn worth_a_choice(mut rungs: Vec<Rung>) -> Vec<Rung> {
    rungs.sort_by(|one, other| {
        let by_speed = slowness(&one.plan).total_cmp(&slowness(&other.plan));
        by_speed.then(one.held.total().cmp(&other.held.total()))
    });
    let mut worth: Vec<Rung> = Vec::new();
    for rung in rungs {
        if !worth.iter().any(|faster| faster.held.is_within(&rung.held)) {
            worth.push(rung);
        }
    }
    worth
}

impl Room {
    /// The plan for what is left in this room, if it is faster than `rung` and fits.
    pub(crate) fn better(
        &self,
        machine: &Machine,
        rung: &Rung,
        plan: impl FnOnce(&Machine) -> Result<Plan, plan::Error>,
    ) -> Option<Rung> {
        let found = Rung::new(plan(&self.limit(machine)).ok()?, machine);
        (slowness(&found.plan) < slowness(&rung.plan) && self.with(&found.held).is_some()).then_some(found)
    }
}
