//! The placements of one model from the fastest to the smallest, as the planner makes them for ever fewer free bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use autoplace::Plan;
use autoplace::machine::Machine;
use autoplace::plan::{self, Context, Depth, Request};

use crate::held::{Held, Room, limit};

/// The shares of a GPU's free bytes that a rung is planned for, in eighths.
const EIGHTHS: [u64; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

/// With more GPUs than these, rungs use one of them or all.
const MAX_SUBSETS: usize = 2;

/// A placement of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rung {
    /// The plan, made for as many free bytes as the rung may take.
    pub plan: Arc<Plan>,
    /// The bytes that it takes.
    pub held: Held,
}

impl Rung {
    /// The rung of this plan on this machine.
    pub fn new(plan: Plan, machine: &Machine) -> Self {
        Self { held: Held::of(&plan, machine), plan: Arc::new(plan) }
    }
}

/// The placements of a model that are worth a choice: none takes as much as another one and is slower.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ladder {
    rungs: Vec<Rung>,
    request: Request,
}

impl Ladder {
    /// The rungs of a model on a machine on which no model of the pool is loaded. `plan` plans the model by a request
    /// for a machine: by the estimate, or by probes.
    ///
    /// The context is settled first. A context [that may grow](Context::may_grow) has the length that the model gets
    /// alone on the machine, in every rung: a text that fits once fits wherever the model goes.
    ///
    /// # Errors
    ///
    /// The planner's error where the model fits nowhere on the machine.
    pub fn new(
        machine: &Machine,
        request: &Request,
        mut plan: impl FnMut(&Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Result<Self, plan::Error> {
        let mut request = request.clone();
        if request.depth == Depth::Follow {
            // The other placement by depth needs bytes that another model may have.
            request.depth = Depth::All;
        }
        let alone = plan(&request, machine)?;
        if request.context.may_grow() && request.params.n_ctx == 0 {
            request.context = Context::Tokens(alone.context.n_ctx);
        }
        let mut rungs = vec![Rung::new(alone, machine)];
        for allowance in allowances(machine) {
            if let Ok(plan) = plan(&request, &allowance) {
                rungs.push(Rung::new(plan, machine));
            }
        }
        Ok(Self { rungs: worth_a_choice(rungs), request })
    }

    /// The rungs, the fastest first.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// The request that every rung was planned by.
    pub fn request(&self) -> &Request {
        &self.request
    }
}

/// The machine with fewer free bytes on its GPUs: every subset of them, each GPU with the same share.
fn allowances(machine: &Machine) -> Vec<Machine> {
    let count = machine.gpus.len();
    let all: Vec<usize> = (0..count).collect();
    let mut subsets: Vec<Vec<usize>> = match count {
        0..=MAX_SUBSETS => {
            let chosen = |mask: u32| all.iter().copied().filter(|gpu| mask >> gpu & 1 == 1).collect();
            (1..1_u32 << count).map(chosen).collect()
        }
        _ => all.iter().map(|&gpu| vec![gpu]).chain([all.clone()]).collect(),
    };
    subsets.sort_by_key(|subset| std::cmp::Reverse(subset.len()));
    let with = |subset: &[usize], eighths: u64| {
        let mut machine = machine.clone();
        for (index, gpu) in machine.gpus.iter_mut().enumerate() {
            let share = if subset.contains(&index) { eighths } else { 0 };
            limit(gpu, gpu.free / 8 * share);
        }
        machine
    };
    let shares = subsets.iter().flat_map(|subset| EIGHTHS.map(|eighths| with(subset, eighths)));
    shares.chain([with(&[], 0)]).collect()
}

/// The seconds of a plan's workload, or the share of layers that are not on GPUs where no speed is predicted.
pub(crate) fn slowness(plan: &Plan) -> f64 {
    let share = f64::from(plan.layers() - plan.n_gpu_layers.min(plan.layers())) / f64::from(plan.layers().max(1));
    plan.speed.as_ref().map_or(share, plan::Speed::seconds)
}

/// Leaves out rungs that take as much as another one of every device and are no faster.
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
        let found = Rung::new(plan(&self.of(machine)).ok()?, machine);
        (slowness(&found.plan) < slowness(&rung.plan) && self.with(&found.held).is_some()).then_some(found)
    }
}
