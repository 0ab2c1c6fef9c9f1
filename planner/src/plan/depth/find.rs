//! Looks for a second placement that is worth moving to. The candidates are the fastest placements at the beginning and
//! at the end of the context.

use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate};
use crate::plan::fit::{CacheGain, Chosen};
use crate::plan::search::Placements;
use crate::plan::speed::{Depths, Rates, Speed, SpeedModel};
use crate::plan::{
    Depth, Error, KvCache, KvPlace, MoeCache, Placement, Plan, Planner, Policy, Probe, Request, Workload, reasons,
};

use super::moving::{measured_seconds, stated_seconds};
use super::{ByDepth, SecondsAtDepth};

/// The minimum speed-up, as a factor, for which the plan mentions another placement and the model moves to it.
const MIN_SPEEDUP: f64 = 1.1;
/// In a conversation that reaches the end of the context, a second placement must save at least this multiple of the
/// time of a move. The reason is that a conversation may end at any depth, and the rule may then lose the time of a
/// second move.
const MOVES_SAVED: f64 = 2.0;
/// The number of intervals between the points of a pair. The times are linear between two points, unless a window ends
/// there.
const STEPS: u32 = 8;
/// A placement with its predicted times.
struct Timed<'m> {
    model: &'m SpeedModel,
    assignment: &'m Assignment,
}

impl Timed<'_> {
    fn token(&self, depth: u32) -> f64 {
        self.model.token_seconds(self.assignment, depth)
    }

    /// Seconds to generate the tokens at all depths from `from` to `to`.
    fn tokens(&self, from: u32, to: u32) -> f64 {
        let mean = self.model.mean_token_seconds(self.assignment, Depths::new(from, to));
        mean * f64::from(to.saturating_sub(from))
    }

    /// The seconds that a workload takes if the model stays in this placement.
    fn seconds(&self, workload: &Workload) -> f64 {
        self.model.seconds(self.assignment, workload)
    }

    /// Seconds of one prompt token in a full ubatch.
    fn prompt_token(&self, depth: u32, n_ubatch: u32) -> f64 {
        self.model.prompt_seconds(self.assignment, &Workload::new(n_ubatch, 0).after(depth)) / f64::from(n_ubatch)
    }
}

/// Two placements whose times cross.
#[derive(Debug, Clone)]
struct Pair {
    /// The depth for which the other placement was searched.
    depth: u32,
    crossing: u32,
    is_deeper: bool,
    /// Seconds that the other placement saves in one conversation, at the depths where it is faster.
    saved: f64,
    seconds: Vec<SecondsAtDepth>,
    workload_seconds: f64,
}

impl Planner<'_> {
    /// Predicted seconds of another plan's workload, by this planner's rates and hits of experts. For a plan that was
    /// made earlier, this gives an up-to-date prediction. `None` for a context that embeds texts, and for a plan with a
    /// GPU that the machine lacks.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the plan is for another model.
    pub fn workload_seconds_of(&self, plan: &Plan) -> Result<Option<f64>, Error> {
        let Some(speed) = &plan.speed else { return Ok(None) };
        let Some((model, assignment)) = self.timed_plan(plan)? else { return Ok(None) };
        let work = speed.workload;
        let here = Timed { model: &model, assignment: &assignment };
        if let Some(by_depth) = &plan.by_depth {
            let Some((model, assignment)) = self.timed_plan(&by_depth.plan)? else { return Ok(None) };
            let there = Timed { model: &model, assignment: &assignment };
            return Ok(Some(whole(&work, (by_depth.crossing, by_depth.is_deeper), [&here, &there])));
        }
        let speed = Speed::predict(&self.profile, &model, (work, &[]), &assignment, &plan.split())?;
        let n_ubatch = plan.context.n_ubatch;
        let speed = plan.paging.map_or_else(|| speed.clone(), |paging| paging.slow_down(speed.clone(), n_ubatch));
        Ok(Some(speed.seconds()))
    }

    /// The speed model and the placement of a plan; `None` if the machine lacks one of its GPUs.
    fn timed_plan(&self, plan: &Plan) -> Result<Option<(SpeedModel, Assignment)>, Error> {
        let find = |placement: &Placement| {
            self.machine.gpus.iter().find(|gpu| gpu.device == placement.device && gpu.name == placement.name)
        };
        let Some(gpus) = plan.gpus().map(find).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let estimate = Estimate::new(&self.profile, &gpus, &plan.context)?.tensor_split(&plan.tensor_split)?;
        let rates = Rates::for_devices(&gpus, &self.machine.host);
        let model = SpeedModel::new(&self.profile, &plan.context, rates).expert_hits(self.hits);
        let model = model.overrides(&self.profile, &plan.overrides)?;
        Ok(Some((model, estimate.assignment(plan.n_gpu_layers))))
    }

    /// The speed model of a chosen placement.
    pub(in crate::plan) fn timed(&self, chosen: &Chosen<'_>, model: &SpeedModel) -> Result<SpeedModel, Error> {
        let rates = Rates::for_devices(&chosen.room.gpus, chosen.room.host);
        let model = model.over(&self.profile, &chosen.params, rates);
        Ok(model.overrides(&self.profile, &chosen.split.overrides)?)
    }

    /// Whether the request lets the placement follow the depth.
    fn follows_depth(&self) -> bool {
        let request = &self.request;
        request.depth == Depth::Follow && request.workload.is_none() && !request.allow_paging
    }

    /// A second placement for the chosen one, confirmed by the probe; `None` if a single placement is as good. If the
    /// request allows only a single placement, adds a note with the depths at which another placement would be faster.
    pub(in crate::plan) fn by_depth(
        &self,
        chosen: &mut Chosen<'_>,
        model: &SpeedModel,
        probe: Option<&dyn Probe>,
    ) -> Result<Option<ByDepth>, Error> {
        // With a cache of experts and no layer on the host, all attention is on GPUs, and no other placement is faster
        // in deep contexts.
        let has_cache = chosen.params.moe_cache_size > 0;
        let all_on_gpus = chosen.split.n_gpu_layers == self.profile.full_offload();
        let is_best_at_every_depth = all_on_gpus && (chosen.split_blocks == 0 || has_cache);
        if self.machine.gpus.is_empty() || is_best_at_every_depth || self.request.embeds() {
            return Ok(None);
        }
        let now = &*chosen;
        let here = self.timed(now, model)?;
        let mut best: Option<Pair> = None;
        let mut notes = Vec::new();
        let depths = match self.follows_depth() {
            true => Request::whole_depths(now.params.n_ctx).to_vec(),
            false => self.request.depths(now.params.n_ctx),
        };
        // Only the first and the last depth are tried; they may be the same.
        for &depth in depths.iter().step_by((depths.len() - 1).max(1)) {
            let found = self.best_at(depth, (&now.params, model), None, |other| {
                if other.split == now.split {
                    return Ok((None, None));
                }
                let there = self.timed(&other, model)?;
                let [here, there] = [(&here, &now.assignment), (&there, &other.assignment)]
                    .map(|(model, assignment)| Timed { model, assignment });
                let faster = here.token(depth) / there.token(depth);
                let layers = self.profile.full_offload();
                let note = (faster > MIN_SPEEDUP).then(|| reasons::another_is_faster(depth, &other, layers, faster));
                Ok((note, self.pair(now, depth, [&here, &there])))
            })?;
            let (note, pair) = found.unwrap_or_default();
            notes.extend(note);
            best = [best, pair].into_iter().flatten().max_by(|a, b| a.saved.total_cmp(&b.saved));
        }
        if let Some(pair) = best.filter(|_| self.follows_depth())
            && let Some(by_depth) = self.confirmed(now, pair, model, probe)?
        {
            return Ok(Some(by_depth));
        }
        chosen.notes.extend(notes);
        Ok(None)
    }

    /// Calls `then` with the fastest placement at one depth, with all settings as in `params`; `None` if no placement
    /// fits. If `params` has a cache of experts, the placement has a cache of the stated size, or a cache of the best
    /// size at this depth, or no cache.
    fn best_at<T>(
        &self,
        depth: u32,
        (params, model): (&ContextParams, &SpeedModel),
        probe: Option<&dyn Probe>,
        then: impl FnOnce(Chosen<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let mut request = self.request.clone().workload(Workload::new(0, 1).after(depth));
        (request.max_ubatch, request.min_ubatch) = (None, None);
        (request.kv_cache, request.kv_place) = (KvCache::Given, KvPlace::Given);
        let (profile, machine) = (&*self.profile, &*self.machine);
        let without_cache = ContextParams { moe_cache_size: 0, ..params.clone() };
        let plain =
            || Placements::new(profile, machine, &request, (&without_cache, model), Policy::Fastest, probe)?.choose();
        let cached = |cache: MoeCache| match cache {
            MoeCache::Auto => {
                Placements::with_cache(profile, machine, &request, (&without_cache, model), 1.0, probe)?.choose()
            }
            _ => Placements::with_stated_cache(profile, machine, &request, (params, model), probe)?.choose(),
        };
        let found = match (params.moe_cache_size, self.request.asked_moe_cache()) {
            (0, _) => [Some(plain()), None],
            (_, MoeCache::Auto) => [Some(cached(MoeCache::Auto)), Some(plain())],
            (_, stated) => [Some(cached(stated)), None],
        };
        let mut best: Option<(f64, Chosen<'_>)> = None;
        for other in found.into_iter().flatten() {
            let other = match other {
                Err(Error::DoesNotFit { .. } | Error::Probe { .. }) => continue,
                other => other?,
            };
            if other.params.moe_cache_size > 0 && !self.holds_experts(&other)? {
                continue;
            }
            let token = self.timed(&other, model)?.token_seconds(&other.assignment, depth);
            if best.as_ref().is_none_or(|(least, _)| token < *least) {
                best = Some((token, other));
            }
        }
        best.map(|(_, other)| then(other)).transpose()
    }

    /// The chosen placement paired with another one that was found at `depth`; `None` if moving to the other placement
    /// is not worthwhile.
    fn pair(&self, chosen: &Chosen<'_>, depth: u32, [here, there]: [&Timed<'_>; 2]) -> Option<Pair> {
        let n_ctx = chosen.params.n_ctx;
        let n_ubatch = chosen.params.computed().max(1);
        if here.token(depth) < MIN_SPEEDUP * there.token(depth) {
            return None;
        }
        let at = |depth: u32| SecondsAtDepth {
            depth,
            token: [here.token(depth), there.token(depth)],
            prompt_token: [here.prompt_token(depth, n_ubatch), there.prompt_token(depth, n_ubatch)],
        };
        let mut depths: Vec<u32> =
            (0..=STEPS).map(|step| (u64::from(n_ctx) * u64::from(step) / u64::from(STEPS)) as u32).collect();
        depths.dedup();
        let seconds: Vec<SecondsAtDepth> = depths.into_iter().map(at).collect();
        let is_deeper = depth >= n_ctx / 2;
        let crossing = crossing(&seconds)?;
        let (from, to) = if is_deeper { (crossing, n_ctx) } else { (0, crossing) };
        let saved = here.tokens(from, to) - there.tokens(from, to);
        let workload_seconds = whole(&self.request.work(&self.profile), (crossing, is_deeper), [here, there]);
        Some(Pair { depth, crossing, is_deeper, saved, seconds, workload_seconds })
    }

    /// The pair as a part of the plan, if moves are worthwhile and the probe confirms the other placement.
    fn confirmed(
        &self,
        chosen: &Chosen<'_>,
        pair: Pair,
        model: &SpeedModel,
        probe: Option<&dyn Probe>,
    ) -> Result<Option<ByDepth>, Error> {
        let here = self.timed(chosen, model)?;
        let confirmed = self.best_at(pair.depth, (&chosen.params, model), probe, |mut other| {
            // The probe may have corrected the placement.
            let there = self.timed(&other, model)?;
            let assignment = other.assignment.clone();
            let [here, there] = [(&here, &chosen.assignment), (&there, &assignment)]
                .map(|(model, assignment)| Timed { model, assignment });
            let is_other = other.split != chosen.split;
            let pair = if is_other { self.pair(chosen, pair.depth, [&here, &there]) } else { None };
            let Some(pair) = pair else { return Ok(None) };
            let stated = stated_seconds(&other, pair.crossing);
            other.cache = chosen.cache.filter(|_| other.params.moe_cache_size > 0).map(|gain| {
                let work = self.request.work(&self.profile);
                let faster = here.seconds(&work) / there.seconds(&work);
                CacheGain { speedup: gain.speedup * faster, ..gain }
            });
            let plan = self.finish(other, model)?;
            let (moving_seconds, moving_measured) = match measured_seconds(&plan, pair.crossing, &self.moves) {
                Some((seconds, conditions)) => (seconds, Some(conditions)),
                None => (stated, None),
            };
            if pair.saved < MOVES_SAVED * moving_seconds {
                return Ok(None);
            }
            Ok(Some(ByDepth {
                crossing: pair.crossing,
                is_deeper: pair.is_deeper,
                plan: Plan { by_depth: None, ..plan },
                seconds: pair.seconds,
                moving_seconds,
                moving_measured,
                workload_seconds: pair.workload_seconds,
            }))
        })?;
        Ok(confirmed.flatten())
    }
}

/// Seconds of a whole conversation that moves between two placements at their crossing. `is_deeper` is true if the
/// second placement is used above the crossing. The prompt is computed in the first placement.
fn whole(workload: &Workload, (crossing, is_deeper): (u32, bool), [here, there]: [&Timed<'_>; 2]) -> f64 {
    let begin = workload.before.saturating_add(workload.prompt);
    let end = workload.tokens().max(begin.saturating_add(1));
    let at_crossing = crossing.clamp(begin, end);
    let (shallow, deep) = if is_deeper { (here, there) } else { (there, here) };
    let tokens = shallow.tokens(begin, at_crossing) + deep.tokens(at_crossing, end);
    let prompt = here.model.prompt_seconds(here.assignment, workload);
    prompt + tokens / f64::from(end - begin) * f64::from(workload.reply)
}

/// The depth at which two placements are equally fast, interpolated between the points; `None` if neither of them
/// becomes the faster one between two points.
fn crossing(points: &[SecondsAtDepth]) -> Option<u32> {
    let more = |point: &SecondsAtDepth| point.token[0] - point.token[1];
    points.windows(2).find_map(|pair| {
        let ([a, b], [before, after]) = ([&pair[0], &pair[1]], [more(&pair[0]), more(&pair[1])]);
        let crosses = before != after && (before <= 0.0) != (after <= 0.0);
        let share = before / (before - after);
        crosses.then(|| a.depth + (f64::from(b.depth - a.depth) * share).round() as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::{SecondsAtDepth, crossing};

    #[test]
    fn placements_cross_where_their_times_are_equal_unless_one_is_always_faster() {
        let at = |depth, here, there| SecondsAtDepth { depth, token: [here, there], prompt_token: [1.0; 2] };
        assert_eq!(crossing(&[at(0, 1.0, 2.0), at(1000, 2.0, 2.0), at(2000, 3.0, 2.0)]), Some(1000));
        assert_eq!(crossing(&[at(0, 1.0, 2.0), at(1000, 5.0, 2.0)]), Some(250));
        assert_eq!(crossing(&[at(0, 2.0, 1.0), at(1000, 2.0, 5.0)]), Some(250));
        assert_eq!(crossing(&[at(0, 1.0, 2.0), at(1000, 1.5, 2.0)]), None);
        assert_eq!(crossing(&[at(0, 1.0, 1.0), at(1000, 1.0, 1.0)]), None);
    }
}
