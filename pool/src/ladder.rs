//! The placements of one model from the fastest to the smallest, planned for fewer and fewer free bytes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use autoplace::Plan;
use autoplace::machine::Machine;
use autoplace::plan::{self, Context, Depth, Request, Workload};

use crate::held::{HeldBytes, Room, limit};

/// Rungs are planned for these eighths of the bytes that the model takes of a GPU when it is alone there. A small model
/// has as many rungs as a large one.
const EIGHTHS: [u64; 7] = [7, 6, 5, 4, 3, 2, 1];

/// The shares of rungs for fewer texts at once, in eighths. They are fewer, because each of them exists for several
/// numbers of texts.
const EIGHTHS_OF_FEWER: [u64; 3] = [6, 4, 2];

/// The rungs for fewer texts are planned for the number of texts at once, divided by each of these.
const DIVISORS: [u32; 3] = [2, 4, 8];

/// The divisors if each plan is a probe. There are fewer, because the first load waits for all probes.
const DIVISORS_OF_PROBES: [u32; 1] = [2];

/// Up to this number of GPUs, rungs are planned for every subset of the GPUs. With more GPUs, rungs are planned for
/// each GPU alone, and for all together.
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

    /// How many texts it computes at once.
    pub fn sequences(&self) -> u32 {
        self.plan.context.n_seq_max.max(1)
    }
}

/// The placements of a model among which a pool chooses: a slower one, or one for fewer texts at once, always takes
/// fewer bytes of some device.
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
    /// Each text has the same context in all rungs, so a text that fits in one rung fits in all. A context [that may
    /// grow](Context::may_grow) gets the length that it has when the model is alone on the machine. A model for several
    /// texts at once also has rungs for half of them, for a quarter, and for an eighth, which need less memory for the
    /// context.
    ///
    /// # Errors
    ///
    /// The planner's error if the model does not fit on the machine even alone.
    pub fn new(
        machine: &Machine,
        request: &Request,
        plan: impl FnMut(&Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Result<Self, plan::Error> {
        Self::with_fewer_texts(machine, request, &DIVISORS, plan)
    }

    /// As [`new`](Self::new), but for a `plan` that takes long. Of the rungs for fewer texts at once, it makes only
    /// those for half of the texts.
    pub(crate) fn by_probes(
        machine: &Machine,
        request: &Request,
        plan: impl FnMut(&Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Result<Self, plan::Error> {
        Self::with_fewer_texts(machine, request, &DIVISORS_OF_PROBES, plan)
    }

    fn with_fewer_texts(
        machine: &Machine,
        request: &Request,
        divisors: &[u32],
        mut plan: impl FnMut(&Request, &Machine) -> Result<Plan, plan::Error>,
    ) -> Result<Self, plan::Error> {
        let mut request = for_one_of_several(request);
        if request.depth == Depth::Follow {
            // A second placement by depth needs bytes that another model may take.
            request.depth = Depth::All;
        }
        let mut alone = plan(&request, machine)?;
        if is_planned_again(&request, &alone) {
            request.workload = Some(Workload::typical(alone.context.n_ctx_seq()));
            alone = plan(&request, machine)?;
        }
        if request.context.may_grow() && request.params.n_ctx == 0 {
            request.context = Context::Tokens(alone.context.n_ctx);
        }
        let fewer = fewer_texts(&request, &alone, divisors);
        let mut rungs = vec![Rung::new(alone, machine)];
        let mut planned = |request: &Request, free: &dyn Fn(usize) -> u64| {
            let plan = plan(request, &with_free(machine, free)).ok()?;
            rungs.push(Rung::new(plan, machine));
            rungs.last().map(|rung| rung.held.clone())
        };
        let with_all = (&request, &EIGHTHS[..]);
        let with_fewer = fewer.iter().map(|request| (request, &EIGHTHS_OF_FEWER[..]));
        for (request, shares) in [with_all].into_iter().chain(with_fewer) {
            for subset in subsets(machine.gpus.len()) {
                let is_in = |index: usize| subset.contains(&index);
                let held = planned(request, &|index| if is_in(index) { u64::MAX } else { 0 });
                let Some(held) = held else { continue };
                for &eighths in shares {
                    let whole = |index: usize| held.gpus[index].saturating_add(held.gpu_margins[index]);
                    planned(request, &|index| if is_in(index) { whole(index) / 8 * eighths } else { 0 });
                }
            }
            planned(request, &|_| 0);
        }
        Ok(Self { rungs: worth_a_choice(rungs), request })
    }

    /// The rungs. The fastest comes first.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// The request of the rungs for the most texts at once.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The request of a rung with this plan: that of the ladder, for as many texts at once as the plan has.
    pub fn request_for(&self, plan: &Plan) -> Request {
        let sequences = plan.context.n_seq_max;
        match sequences < self.request.params.n_seq_max && is_divided(&self.request) {
            true => for_texts(&self.request, sequences, plan.context.n_ctx_seq()),
            false => self.request.clone(),
        }
    }
}

/// Returns the request. If it states no workload, adds the workload of one of several texts: the text has only a part
/// of the context, and is not slowed down by the parts of the others.
pub(crate) fn for_one_of_several(request: &Request) -> Request {
    /// The minimum number of tokens that a default context has for each text.
    const LEAST: u32 = 4096;
    let mut request = request.clone();
    let sequences = request.params.n_seq_max;
    let each = match (request.context, request.params.n_ctx) {
        (Context::Tokens(all) | Context::AtLeast(all), _) | (Context::Default, all @ 1..) => {
            Some(all / sequences.max(1))
        }
        (Context::Default | Context::Auto, _) => Some(LEAST),
        _ => None,
    };
    if let Some(each) = each.filter(|_| sequences > 1 && request.workload.is_none() && is_divided(&request)) {
        request.workload = Some(Workload::typical(each));
    }
    request
}

/// Whether the fastest rung is planned a second time: with several texts, the context of one text, on which its
/// workload depends, may be known only from the first plan.
pub(crate) fn is_planned_again(request: &Request, first: &Plan) -> bool {
    request.workload.is_none() && first.context.n_seq_max > 1 && is_divided(request)
}

/// Whether each text of this request has its own part of the context.
fn is_divided(request: &Request) -> bool {
    request.params.embeddings.is_none() && !request.params.kv_unified
}

/// The request for `sequences` texts at once, each with a context of `n_ctx` tokens.
fn for_texts(request: &Request, sequences: u32, n_ctx: u32) -> Request {
    let mut fewer = request.clone().n_seq_max(sequences).context(Context::Tokens(sequences.saturating_mul(n_ctx)));
    fewer.params.n_ctx = 0;
    fewer
}

/// The requests for the number of texts at once divided by each of these divisors. `alone` is the plan for all texts.
fn fewer_texts(request: &Request, alone: &Plan, divisors: &[u32]) -> Vec<Request> {
    let all = alone.context.n_seq_max;
    let mut counts: Vec<u32> = divisors.iter().map(|divisor| all / divisor).filter(|&count| count > 0).collect();
    counts.dedup();
    let each = alone.context.n_ctx_seq();
    counts.into_iter().filter(|_| is_divided(request)).map(|count| for_texts(request, count, each)).collect()
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

/// Drops each rung that is not faster than another one, has no more texts at once, and takes at least as many bytes of
/// every device.
fn worth_a_choice(mut rungs: Vec<Rung>) -> Vec<Rung> {
    rungs.sort_by(|one, other| {
        let by_speed = slowness(&one.plan).total_cmp(&slowness(&other.plan));
        let by_texts = other.sequences().cmp(&one.sequences());
        by_speed.then(by_texts).then(one.held.total().cmp(&other.held.total()))
    });
    let mut worth: Vec<Rung> = Vec::new();
    for rung in rungs {
        let is_no_worse = |faster: &Rung| faster.sequences() >= rung.sequences() && faster.held.is_within(&rung.held);
        if !worth.iter().any(is_no_worse) {
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

#[cfg(test)]
mod tests {
    use autoplace::machine::{Gpu, Host};
    use autoplace::plan::Planner;
    use autoplace::profile::ModelProfile;
    use test_support::synthetic;

    use super::*;

    #[test]
    fn a_ladder_by_probes_has_one_number_of_fewer_texts() {
        let header = synthetic::named("llama Llama 3.1 8B").builder().header().unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        let host = Host::named("Ryzen 9 7950X", 64 << 30).unwrap();
        let machine = Machine::new(host).with_gpu(Gpu::named("RTX 4090").unwrap().device("CUDA0"));
        let request = Request::new().n_seq_max(8).context(Context::Tokens(8 * 4096));
        let (mut by_estimate, mut by_probes) = (0, 0);
        let planned = |count: &mut u32, request: &Request, machine: &Machine| {
            *count += 1;
            Planner::new(&profile, machine).request(request.clone()).plan()
        };
        Ladder::new(&machine, &request, |request, machine| planned(&mut by_estimate, request, machine)).unwrap();
        let ladder =
            Ladder::by_probes(&machine, &request, |request, machine| planned(&mut by_probes, request, machine))
                .unwrap();
        // One plan for the model alone. Nine for all texts: one with the whole GPU, one for each of the seven
        // `EIGHTHS`, and one on the host. Five for each smaller number of texts: the same, but with the three
        // `EIGHTHS_OF_FEWER`.
        assert_eq!((by_estimate, by_probes), (1 + 9 + 3 * 5, 1 + 9 + 5));
        let mut texts: Vec<u32> = ladder.rungs().iter().map(Rung::sequences).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts, [4, 8]);
    }

    #[test]
    fn the_workload_of_a_ladder_is_that_of_one_of_its_texts() {
        let header = synthetic::named("llama Llama 3.1 8B").builder().header().unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        let host = Host::named("Ryzen 9 7950X", 64 << 30).unwrap();
        let machine = Machine::new(host).with_gpu(Gpu::named("RTX 4090").unwrap().device("CUDA0"));
        let ladder = |request: Request| {
            let plan =
                |request: &Request, machine: &Machine| Planner::new(&profile, machine).request(request.clone()).plan();
            Ladder::new(&machine, &request, plan).unwrap()
        };
        // The context of the model is known only from its file.
        let contexts =
            [(Context::Model, 131_072), (Context::AtLeast(32_768), 32_768), (Context::Tokens(16_384), 16_384)];
        for (context, all) in contexts {
            let eight = ladder(Request::new().n_seq_max(8).context(context));
            assert_eq!(eight.request().workload, Some(Workload::typical(all / 8)), "{context:?}");
        }
        // One text has the whole context, and a workload that is stated stays.
        assert_eq!(ladder(Request::new().context(Context::Tokens(16_384))).request().workload, None);
        let stated = Request::new().n_seq_max(8).context(Context::Tokens(16_384)).workload(Workload::new(100, 20));
        assert_eq!(ladder(stated).request().workload, Some(Workload::new(100, 20)));
    }
}
