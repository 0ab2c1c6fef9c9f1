//! A model, a machine and a request, and the same with changes.

use std::borrow::Cow;

use crate::machine::{Gpu, Machine};
use crate::memory::ContextParams;
use crate::plan::{Context, KvCache, Plan, Planner, Request, Workload};
use crate::profile::{Block, ModelProfile, Weight};

use super::ChangeKind;

/// All that a plan is made of.
#[derive(Debug, Clone)]
pub(super) struct Scene<'a> {
    pub(super) profile: Cow<'a, ModelProfile>,
    pub(super) machine: Cow<'a, Machine>,
    pub(super) request: Request,
}

impl<'a> Scene<'a> {
    pub(super) fn of(planner: &Planner<'a>) -> Self {
        Self {
            profile: Cow::Borrowed(planner.profile),
            machine: Cow::Borrowed(planner.machine),
            request: planner.request.clone(),
        }
    }

    /// The plan for this work, or, in a context that is shorter, for its last tokens.
    pub(super) fn plan(mut self, workload: Workload) -> Option<Plan> {
        let most = self.request.tokens(&self.profile);
        let workload = if workload.tokens() > most {
            Workload::typical(most)
        } else {
            workload
        };
        self.request = self.request.workload(workload);
        let planner = Planner::new(&self.profile, &self.machine);
        planner.request(self.request).plan().ok()
    }

    /// The same with a change.
    pub(super) fn with(mut self, change: &ChangeKind) -> Self {
        match change {
            ChangeKind::KvType(ty) => {
                self.request.kv_cache = KvCache::Given;
                self.request = self.request.kv_types(*ty, *ty);
            }
            ChangeKind::Context(tokens) => {
                self.request = self.request.context(Context::Tokens(*tokens));
            }
            ChangeKind::SwaFull(full) => self.request = self.request.swa_full(*full),
            ChangeKind::Ubatch(tokens) => {
                self.request.min_ubatch = None;
                self.request = self.request.n_ubatch(*tokens);
            }
            ChangeKind::CloseProcess { gpu, bytes, .. } => {
                if let Some(gpu) = self.machine.to_mut().gpus.get_mut(*gpu) {
                    gpu.free = gpu.free.saturating_add(*bytes).min(gpu.total);
                }
            }
            ChangeKind::Quantisation { to, .. } => {
                self.profile = Cow::Owned(self.profile.quantised(*to));
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
        }
        self
    }

    /// Whether the GPUs have more bytes free than all that goes there has.
    pub(super) fn has_room_for_weights(&self) -> bool {
        let free = self.machine.gpus.iter().map(|gpu| gpu.free);
        let free = free.fold(0, u64::saturating_add);
        let weights = &self.profile.weights;
        let blocks = weights.blocks.iter().map(Block::bytes);
        let bytes = blocks.fold(Weight::sum(&weights.output), u64::saturating_add);
        bytes <= free
    }

    /// The parameters that are asked for.
    pub(super) const fn params(&self) -> &ContextParams {
        &self.request.params
    }
}
