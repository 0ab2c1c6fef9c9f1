//! Trial plans with changes to the model, the machine or the request, and the gain of these plans.

use std::borrow::Cow;

use crate::machine::Gpu;
use crate::memory::ContextParams;
use crate::plan::{HostParts, KvCache, Plan, Planner, Workload};
use crate::profile::Weight;

use super::list::WORTH;
use super::{Change, ChangeKind, Effect, Outcome};

impl Planner<'_> {
    /// The plan for this workload. If the context is too short for the workload, the plan for a typical workload.
    fn plan_for(mut self, workload: Workload) -> Option<Plan> {
        let most = self.request.tokens(&self.profile);
        let workload = if workload.tokens() > most { Workload::typical(most) } else { workload };
        self.request = self.request.workload(workload);
        self.plan().ok()
    }

    /// The same planner after a change to its model, machine or request.
    pub(super) fn with(mut self, change: &ChangeKind) -> Self {
        match change {
            ChangeKind::KvType(ty) => self.request = self.request.kv_cache(KvCache::Given).kv_types(*ty, *ty),
            ChangeKind::Context(tokens) => self.request = self.request.n_ctx(*tokens),
            ChangeKind::SwaFull(full) => self.request = self.request.swa_full(*full),
            ChangeKind::Ubatch(tokens) => self.request = self.request.n_ubatch(*tokens),
            ChangeKind::CloseProcess { gpu, bytes, .. } => {
                if let Some(gpu) = self.machine.to_mut().gpus.get_mut(*gpu) {
                    gpu.free = gpu.free.saturating_add(*bytes).min(gpu.total);
                }
            }
            ChangeKind::AnotherCard { name, gpu, .. } => {
                let place = self.machine.to_mut().gpus.get_mut(*gpu);
                if let (Some(place), Ok(card)) = (place, Gpu::named(name)) {
                    let backend = std::mem::take(&mut place.backend);
                    *place = card.backend(backend);
                }
            }
            ChangeKind::SecondCard { gpu, .. } => {
                let gpus = &mut self.machine.to_mut().gpus;
                if let Some(other) = gpus.get(*gpu).map(Gpu::another) {
                    gpus.push(other);
                }
            }
            ChangeKind::FirstCard { name } => self.machine.to_mut().gpus.extend(Gpu::named(name)),
            ChangeKind::Quantisation { to, .. } => self.profile = Cow::Owned(self.profile.quantised(*to)),
        }
        self
    }

    /// Whether the GPUs have enough free bytes for all weights that would go there.
    pub(super) fn has_room_for_weights(&self) -> bool {
        let free = self.machine.gpus.iter().map(|gpu| gpu.free).fold(0, u64::saturating_add);
        let weights = &self.profile.weights;
        weights.blocks_bytes().saturating_add(Weight::sum(&weights.output)) <= free
    }
}

/// The planner and the plan that trials begin with.
pub(super) struct Trials<'a> {
    /// The planner without a change.
    pub(super) planner: Planner<'a>,
    pub(super) workload: Workload,
    /// The plan without a change; `None` if it does not fit.
    pub(super) before: Option<&'a Plan>,
}

impl<'a> Trials<'a> {
    /// The parameters of the plan without a change; without a plan, the requested parameters.
    pub(super) fn params(&self) -> &ContextParams {
        self.before.map_or(&self.planner.request.params, |plan| &plan.context)
    }

    /// Whether a plan satisfies the user completely. If the request states an exact number of layers, this number is
    /// enough. Without a GPU, it is enough that the model can be loaded.
    pub(super) fn is_enough(&self, outcome: &Outcome) -> bool {
        outcome.full || !self.wants_all()
    }

    /// Whether the user wants every layer on GPUs.
    fn wants_all(&self) -> bool {
        let exactly = self.planner.request.gpu_layers.is_exact();
        !exactly && !self.planner.machine.gpus.is_empty()
    }

    /// The plan with these changes, whether or not it is better; `None` if it does not fit.
    pub(super) fn attempt(&self, kinds: &[ChangeKind]) -> Option<Change> {
        let planner = kinds.iter().fold(self.planner.clone(), Planner::with);
        let outcome = Outcome::from(&planner.plan_for(self.workload)?);
        let effect = if self.is_enough(&outcome) {
            Effect::Fits
        } else if self.before.is_none() {
            Effect::Loads
        } else {
            Effect::More
        };
        let before = self.before.and_then(|plan| Outcome::from(plan).tokens_per_second);
        let speeds = outcome.tokens_per_second.zip(before);
        let speedup = speeds.map(|(after, before)| after / before);
        Some(Change { kinds: kinds.to_vec(), effect, outcome, speedup })
    }

    /// Whether everything fits with these changes. If everything fits, no part of a block stays on the host. So this
    /// search does not try to split blocks, which makes it many times faster.
    fn fits(&self, kinds: &[ChangeKind]) -> bool {
        let mut planner = kinds.iter().fold(self.planner.clone(), Planner::with);
        if self.wants_all() && !planner.has_room_for_weights() {
            return false;
        }
        planner.request.host_parts = HostParts::None;
        let plan = planner.plan_for(self.workload);
        plan.is_some_and(|plan| self.is_enough(&Outcome::from(&plan)))
    }

    /// The first of these changes, which are in ascending order, with which everything fits.
    pub(super) fn first_that_fits(&self, changes: &[Vec<ChangeKind>]) -> Option<Change> {
        let (last, others) = changes.split_last()?;
        if !self.fits(last) {
            return None;
        }
        let first = others.partition_point(|kinds| !self.fits(kinds));
        self.attempt(&changes[first]).filter(|attempt| attempt.effect == Effect::Fits)
    }

    /// The first of these changes, which are in ascending order, with which everything fits. If there is none, the
    /// first change with which a model loads that did not load before, or else the first worthwhile change, because
    /// each later change costs more quality.
    pub(super) fn least(&self, changes: &[Vec<ChangeKind>]) -> Option<Change> {
        if let Some(first) = self.first_that_fits(changes) {
            return Some(first);
        }
        if self.before.is_some() {
            return changes.iter().find_map(|kinds| self.worthwhile(kinds));
        }
        let (last, others) = changes.split_last()?;
        let greatest = self.attempt(last)?;
        let first = others.partition_point(|kinds| self.attempt(kinds).is_none());
        others.get(first).map_or(Some(greatest), |kinds| self.attempt(kinds))
    }

    /// The change, if it is worth it: everything fits, or more of the model is on GPUs and generation is faster by a
    /// tenth. Without known speeds, it is enough that more of the model is on GPUs.
    pub(super) fn worthwhile(&self, kinds: &[ChangeKind]) -> Option<Change> {
        self.attempt(kinds).filter(|change| {
            let more = self.before.is_none_or(|before| change.outcome.placed() > Outcome::from(before).placed());
            change.effect != Effect::More || (more && change.speedup.is_none_or(|speedup| speedup >= WORTH))
        })
    }
}
