//! The time of a token, a prompt or a workload on a placement: the sum over the layers, each at the rates of its
//! device.

use std::sync::Arc;

use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Error, KvType, OverrideRules, Place, TensorOverride};
use crate::plan::Workload;
use crate::profile::{ModelProfile, Weight, WeightRole};

use super::hits::ExpertHits;
use super::rates::Rate;
use super::work::{LayerWork, Matrices, matrices};
use super::{Depths, Rates};

/// From this many tokens on, a GPU computes with weights that are on the host. The weights are copied to the GPU for
/// each computation (`offload_op` of ggml's backends).
const MIN_OFFLOADED_TOKENS: u32 = 32;

/// The largest number of tokens of a computation with a cache of experts (llama-moe-cache.cpp, `max_batch`).
pub(in crate::plan) const MAX_CACHED_TOKENS: u32 = 32;

/// A copy within a GPU's memory reads and writes each byte.
const COPY_PASSES: f64 = 2.0;

/// Predicts the seconds of tokens and prompts of one sequence from the rates of the devices.
#[derive(Debug, Clone)]
#[must_use]
pub struct SpeedModel {
    /// The work of each block, and of the output layer as the last entry.
    work: Arc<[LayerWork]>,
    /// The types of keys and values that `work` was computed for.
    kv_types: (KvType, KvType),
    pub(super) rates: Rates,
    pub(super) n_ubatch: u32,
    kv_on_host: bool,
    op_offload: bool,
    /// For each layer, its weights that are placed apart from it.
    pub(super) moved: Vec<Vec<(Place, Vec<Matrices>)>>,
    /// For each layer, the bytes of its experts if all of them are on the host; otherwise 0.
    host_experts: Vec<u64>,
    /// Bytes of the cache of experts over all GPUs; 0 for none.
    moe_cache_size: u64,
    /// How often the cache of experts holds the expert that a token uses.
    hits: ExpertHits,
}

/// The share of a layer's experts that a cache on its GPU holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::plan) struct Cached {
    pub(in crate::plan) share: f64,
}

impl SpeedModel {
    /// The model in a context with these parameters, on devices with these rates.
    pub fn new(profile: &ModelProfile, params: &ContextParams, rates: Rates) -> Self {
        Self::with_work(LayerWork::for_model(profile, params), params, rates)
    }

    /// The same model on other devices and in another context, with no weights moved. `profile` must belong to this
    /// model. The work of its layers is computed again if the cache types differ.
    pub(in crate::plan) fn over(&self, profile: &ModelProfile, params: &ContextParams, rates: Rates) -> Self {
        let work = match self.kv_types == (params.type_k, params.type_v) {
            true => Arc::clone(&self.work),
            false => LayerWork::for_model(profile, params),
        };
        Self::with_work(work, params, rates).expert_hits(self.hits)
    }

    /// Sets how often a cache of experts holds the expert that a token uses. The default is [`ExpertHits::default`].
    pub const fn expert_hits(mut self, hits: ExpertHits) -> Self {
        self.hits = hits;
        self
    }

    fn with_work(work: Arc<[LayerWork]>, params: &ContextParams, rates: Rates) -> Self {
        Self {
            work,
            kv_types: (params.type_k, params.type_v),
            rates,
            n_ubatch: params.computed().max(1),
            kv_on_host: !params.offload_kqv,
            op_offload: params.op_offload,
            moved: Vec::new(),
            host_experts: Vec::new(),
            moe_cache_size: params.moe_cache_size,
            hits: ExpertHits::default(),
        }
    }

    /// The same model on devices with other rates.
    pub fn with_rates(mut self, rates: Rates) -> Self {
        self.rates = rates;
        self
    }

    /// Moves weights apart from their layer. Only weights of blocks are considered, because the output layer moves as a
    /// whole.
    ///
    /// # Errors
    ///
    /// [`Error::Override`] for an invalid pattern or a GPU that does not exist.
    pub fn overrides(mut self, profile: &ModelProfile, overrides: &[TensorOverride]) -> Result<Self, Error> {
        let rules = OverrideRules::new(overrides, self.rates.gpus.len())?;
        let blocks = profile.weights.blocks.iter().map(|block| {
            let mut places: Vec<(Place, Vec<_>)> = Vec::new();
            for weight in block {
                let Some(place) = rules.place(&weight.name) else {
                    continue;
                };
                match places.iter_mut().find(|(known, _)| *known == place) {
                    Some((_, weights)) => weights.push(weight),
                    None => places.push((place, vec![weight])),
                }
            }
            places.into_iter().map(|(place, weights)| (place, matrices(profile, weights))).collect()
        });
        self.moved = blocks.collect();
        let on_host = |block: &Vec<Weight>| {
            let experts = || block.iter().filter(|weight| weight.role == WeightRole::Experts && weight.is_matrix());
            let all = experts().all(|weight| rules.place(&weight.name) == Some(Place::Host));
            if all { Weight::sum(experts()) } else { 0 }
        };
        self.host_experts = profile.weights.blocks.iter().map(on_host).collect();
        Ok(self)
    }

    /// The share of the experts on the host that each GPU's cache holds. llama.cpp divides the bytes of the cache like
    /// the layers. `None` for a GPU that holds no part of the cache.
    pub(in crate::plan) fn cached_shares(&self, assignment: &Assignment) -> Vec<Option<Cached>> {
        let mut layers = vec![0.0; self.rates.gpus.len()];
        let mut bytes = vec![0_u64; layers.len()];
        for (layer, place) in assignment.layers().enumerate() {
            if let Place::Gpu(gpu) = place
                && gpu < layers.len()
            {
                layers[gpu] += 1.0;
                bytes[gpu] = bytes[gpu].saturating_add(self.host_experts.get(layer).copied().unwrap_or(0));
            }
        }
        let split = |gpu: usize| if bytes[gpu] > 0 { layers[gpu] } else { 0.0 };
        let all: f64 = (0..layers.len()).map(split).sum();
        let share = |gpu: usize| {
            let part = self.moe_cache_size as f64 * split(gpu) / all;
            Some(Cached { share: (part / bytes[gpu] as f64).min(1.0) }).filter(|cached| cached.share > 0.0)
        };
        (0..layers.len()).map(share).collect()
    }

    /// The share of the uses of experts that the cache is expected to serve, over all layers that use the cache; `None`
    /// without a cache.
    pub fn expected_hits(&self, assignment: &Assignment) -> Option<f64> {
        let shares = self.cached_shares(assignment);
        let of = |(layer, place): (usize, Place)| {
            let cached = self.cached(layer, place, Place::Host, &shares)?;
            let experts = self.work.get(layer)?.matrices.iter().find_map(|matrix| matrix.experts)?;
            Some(1.0 - self.hits.misses(cached.share, experts))
        };
        let all: Vec<f64> = assignment.layers().enumerate().filter_map(of).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// The cache for a layer's experts that lie in another place than the layer.
    fn cached(&self, layer: usize, place: Place, other: Place, shares: &[Option<Cached>]) -> Option<Cached> {
        let Place::Gpu(gpu) = place else { return None };
        let is_cached = other == Place::Host && self.host_experts.get(layer).is_some_and(|&bytes| bytes > 0);
        shares.get(gpu).copied().flatten().filter(|_| is_cached)
    }

    /// Seconds of a generated token with `depth` tokens before it.
    pub fn token_seconds(&self, assignment: &Assignment, depth: u32) -> f64 {
        self.mean_token_seconds(assignment, depth.into())
    }

    /// Mean seconds of a generated token over these depths.
    pub(in crate::plan) fn mean_token_seconds(&self, assignment: &Assignment, depths: Depths) -> f64 {
        let layer = |layer, place| self.layer_token(layer, place, depths);
        self.sum_of_layers(assignment, 1.0, layer, |moved| self.moved_token(moved))
    }

    /// Generated tokens per second at this depth.
    pub fn tokens_per_second(&self, assignment: &Assignment, depth: u32) -> f64 {
        1.0 / self.token_seconds(assignment, depth)
    }

    /// Generated tokens per second under each assignment. The time of each layer is computed only once for each device.
    pub(super) fn curve(&self, assignments: impl Iterator<Item = Assignment>, depths: Depths) -> Vec<f64> {
        let on = |place| (0..self.layers()).map(|il| self.layer_token(il, place, depths)).collect();
        let on_gpus: Vec<Vec<f64>> = (0..self.rates.gpus.len()).map(|gpu| on(Place::Gpu(gpu))).collect();
        let on_host: Vec<f64> = on(Place::Host);
        let layer = |il: usize, place| match place {
            Place::Gpu(gpu) => on_gpus[gpu][il],
            Place::Host => on_host[il],
        };
        let token =
            |assignment: Assignment| self.sum_of_layers(&assignment, 1.0, layer, |moved| self.moved_token(moved));
        assignments.map(|assignment| 1.0 / token(assignment)).collect()
    }

    /// Seconds of a workload's prompt.
    pub fn prompt_seconds(&self, assignment: &Assignment, workload: &Workload) -> f64 {
        let gpus = assignment.layers().filter_map(|place| match place {
            Place::Gpu(gpu) => Some(gpu),
            Place::Host => None,
        });
        // The first GPU computes with the host's weights even if it has no layer.
        let first = gpus.min().or((!self.rates.gpus.is_empty()).then_some(0));
        let layer = |layer, place| self.layer_prompt(layer, place, first, workload);
        let moved = |moved: Moved<'_>| self.moved_prompt(moved, first, workload);
        self.sum_of_layers(assignment, self.computations(workload), layer, moved)
    }

    /// Seconds of all layers and of the weights moved out of them. `crossings` is the number of transfers over each
    /// border between devices.
    fn sum_of_layers(
        &self,
        assignment: &Assignment,
        crossings: f64,
        in_layer: impl Fn(usize, Place) -> f64,
        moved: impl Fn(Moved<'_>) -> f64,
    ) -> f64 {
        let shares = if self.moe_cache_size > 0 { self.cached_shares(assignment) } else { Vec::new() };
        // The token's embedding comes from the host.
        let mut at = Place::Host;
        let mut seconds = 0.0;
        for (layer, place) in assignment.layers().enumerate() {
            seconds += in_layer(layer, place);
            let elsewhere = self.moved.get(layer).into_iter().flatten().filter(|(other, _)| *other != place);
            for &(other, ref matrices) in elsewhere {
                let cached = self.cached(layer, place, other, &shares);
                let apart = Moved { matrices, place, other, cached };
                seconds += moved(apart) + self.way_of(apart) * crossings;
            }
            if place != at {
                seconds += self.rate(at).crossing.max(self.rate(place).crossing) * crossings;
                at = place;
            }
        }
        seconds
    }

    /// Seconds of a workload: the prompt, and the reply at the mean time of a token over the depths of the
    /// [workload](Workload).
    pub fn seconds(&self, assignment: &Assignment, workload: &Workload) -> f64 {
        let token = self.mean_token_seconds(assignment, workload.depths());
        self.prompt_seconds(assignment, workload) + token * f64::from(workload.reply)
    }

    /// Mean seconds of a token over these depths, in a layer with no weights moved, without the transfer to its device.
    pub(in crate::plan) fn layer_token(&self, layer: usize, place: Place, depths: Depths) -> f64 {
        let Some(work) = self.work.get(layer) else {
            return 0.0;
        };
        let rate = self.rate(place);
        let weights: f64 = work.matrices.iter().map(|matrix| rate.token(matrix)).sum();
        let caches = work.caches.iter();
        let attention: f64 = caches.map(|cache| rate.attend(cache, depths)).sum();
        let carried =
            if self.is_carried(work, place) { carry_cache(work, rate, depths) + 2.0 * rate.crossing } else { 0.0 };
        let state = work.state as f64 / rate.bytes_per_second;
        weights + attention + carried + state + rate.constant(work)
    }

    /// Extra seconds of a token if a layer's weights move, without the transfer of activations.
    pub(in crate::plan) fn moved_token(&self, moved: Moved<'_>) -> f64 {
        let (here, there) = (self.rate(moved.place), self.rate(moved.other));
        if moved.cached.is_none() {
            let of = |rate: &Rate| moved.matrices.iter().map(|matrix| rate.token(matrix)).sum::<f64>();
            return of(there) - of(here);
        }
        let of = |matrix: &Matrices| match moved.cached_experts(matrix) {
            Some(cached) => self.missed(matrix, here, cached, 1),
            None => there.token(matrix) - here.token(matrix),
        };
        moved.matrices.iter().map(of).sum()
    }

    /// Extra seconds of a computation of few tokens whose experts a GPU caches. An expert that is not in the cache is
    /// uploaded with one copy for each of its tensors. A copy takes half as long as a transfer there and back.
    fn missed(&self, matrices: &Matrices, rate: &Rate, cached: Cached, n_tokens: u32) -> f64 {
        let Some(experts) = matrices.experts else { return 0.0 };
        let misses = self.hits.misses(cached.share, experts);
        let bytes = matrices.bytes(n_tokens);
        let copies = matrices.copies(n_tokens);
        misses * (bytes / rate.upload + copies * rate.crossing / 2.0)
    }

    /// Seconds to transfer a token to another device and back, and to start work on that device. With a cache, only the
    /// numbers of the token's experts go to the host, and the numbers of their slots come back.
    pub(in crate::plan) fn way_of(&self, moved: Moved<'_>) -> f64 {
        let other = self.rate(moved.other);
        let crossing = self.rate(moved.place).crossing.max(other.crossing);
        if moved.cached.is_some() { crossing } else { 2.0 * crossing + other.wake_up }
    }

    /// Seconds of a workload's prompt in a layer with no weights moved. `first` is the GPU that computes with the
    /// host's weights.
    pub(in crate::plan) fn layer_prompt(
        &self,
        layer: usize,
        place: Place,
        first: Option<usize>,
        workload: &Workload,
    ) -> f64 {
        let Some(work) = self.work.get(layer) else {
            return 0.0;
        };
        let depth = Depths::from(workload.prompt_depth());
        if layer + 1 == self.layers() {
            // Only the last token has logits.
            return self.layer_token(layer, place, depth);
        }
        let of = |n_tokens: u32| {
            let borrows = self.borrower(place, first, n_tokens);
            let rate = borrows.unwrap_or_else(|| self.rate(place));
            let weights = self.compute(&work.matrices, place, first, n_tokens);
            let caches = work.caches.iter();
            let attention: f64 = caches.map(|cache| rate.prompt_attend(cache, n_tokens, depth)).sum();
            let carried =
                if borrows.is_some() || self.is_carried(work, place) { carry_cache(work, rate, depth) } else { 0.0 };
            let rest = rate.prompt_rest(&work.matrices, n_tokens);
            weights + attention + carried + rest + rate.constant(work)
        };
        self.sum_of_computations(workload, of) + self.last_token(&work.matrices, place)
    }

    /// Extra seconds of a workload's prompt if a layer's weights move, without the transfer of activations.
    pub(in crate::plan) fn moved_prompt(&self, moved: Moved<'_>, first: Option<usize>, workload: &Workload) -> f64 {
        let Moved { matrices, place, other, .. } = moved;
        if moved.cached.is_none() {
            let of = |n_tokens: u32| {
                self.compute(matrices, other, first, n_tokens) - self.compute(matrices, place, first, n_tokens)
            };
            return self.sum_of_computations(workload, of) + self.last_token(matrices, other)
                - self.last_token(matrices, place);
        }
        let all = matrices.iter().filter(|matrix| !matrix.last_token);
        let of = |n_tokens: u32| {
            let of = |matrix: &Matrices| match moved.cached_experts(matrix) {
                None => {
                    let one = std::slice::from_ref(matrix);
                    self.compute(one, other, first, n_tokens) - self.compute(one, place, first, n_tokens)
                }
                Some(cached) if n_tokens <= MAX_CACHED_TOKENS => {
                    self.missed(matrix, self.rate(place), cached, n_tokens)
                }
                Some(cached) => self.computed_beside_cache(matrix, (place, other), first, n_tokens, cached),
            };
            all.clone().map(of).sum()
        };
        // The token with logits is computed with the cache.
        let last = Moved { matrices: &last_only(matrices), ..moved };
        self.sum_of_computations(workload, of) + self.moved_token(last)
    }

    /// Extra seconds of many tokens with experts that lie on the host. The GPU that computes with them uploads the
    /// experts. If the cache is on the same GPU, the cached experts are copied within its memory.
    fn computed_beside_cache(
        &self,
        matrices: &Matrices,
        (place, other): (Place, Place),
        first: Option<usize>,
        n_tokens: u32,
        cached: Cached,
    ) -> f64 {
        let one = std::slice::from_ref(matrices);
        let more = self.compute(one, other, first, n_tokens) - self.compute(one, place, first, n_tokens);
        let is_own = first.map(Place::Gpu) == Some(place);
        match self.borrower(other, first, n_tokens).filter(|_| is_own) {
            Some(gpu) => {
                let bytes = matrices.bytes(n_tokens) * cached.share;
                more - bytes / gpu.upload + COPY_PASSES * bytes / gpu.bytes_per_second
            }
            None => more,
        }
    }

    /// Seconds of `n_tokens` tokens with these weights. If a GPU borrows the weights from the host, the upload is
    /// included.
    pub(super) fn compute(&self, matrices: &[Matrices], place: Place, first: Option<usize>, n_tokens: u32) -> f64 {
        let borrower = self.borrower(place, first, n_tokens);
        let all = matrices.iter().filter(|matrix| !matrix.last_token);
        all.map(|matrix| match borrower {
            Some(gpu) => matrix.bytes(n_tokens) / gpu.upload + gpu.prompt(matrix, n_tokens),
            None => self.rate(place).prompt(matrix, n_tokens),
        })
        .sum()
    }

    /// Seconds of the last token of a prompt with the weights that only this token uses.
    fn last_token(&self, matrices: &[Matrices], place: Place) -> f64 {
        let rate = self.rate(place);
        matrices.iter().filter(|matrix| matrix.last_token).map(|matrix| rate.token(matrix)).sum()
    }

    /// The GPU that computes with the host's weights; `None` if no GPU does.
    fn borrower(&self, place: Place, first: Option<usize>, n_tokens: u32) -> Option<&Rate> {
        let borrows = place == Place::Host && self.op_offload && n_tokens >= MIN_OFFLOADED_TOKENS;
        let first = first.filter(|_| borrows)?;
        self.rates.gpus.get(first)
    }

    /// Whether a layer on a GPU copies its keys and values from the host for each token.
    fn is_carried(&self, work: &LayerWork, place: Place) -> bool {
        self.kv_on_host && place != Place::Host && !work.caches.is_empty()
    }

    /// The sum of `of` over the prompt's computations: the full ubatches, and the last one with the remaining tokens.
    fn sum_of_computations(&self, workload: &Workload, of: impl Fn(u32) -> f64) -> f64 {
        let (n, prompt) = (self.n_ubatch, workload.prompt);
        let whole = if prompt >= n { f64::from(prompt / n) * of(n) } else { 0.0 };
        let rest = if prompt.is_multiple_of(n) { 0.0 } else { of(prompt % n) };
        whole + rest
    }

    /// Number of computations (ubatches) of a prompt.
    pub(in crate::plan) fn computations(&self, workload: &Workload) -> f64 {
        f64::from(workload.prompt.div_ceil(self.n_ubatch))
    }

    /// The work of each layer, the output layer last.
    pub(super) fn work(&self) -> impl Iterator<Item = &LayerWork> {
        self.work.iter()
    }

    /// Number of layers, the output layer included.
    pub(in crate::plan) fn layers(&self) -> usize {
        self.work.len()
    }

    pub(in crate::plan) fn rate(&self, place: Place) -> &Rate {
        match place {
            Place::Gpu(gpu) => self.rates.gpus.get(gpu).unwrap_or(&self.rates.host),
            Place::Host => &self.rates.host,
        }
    }
}

/// Weights of a layer that lie apart from it, and the cache for the experts among these weights.
#[derive(Debug, Clone, Copy)]
pub(in crate::plan) struct Moved<'m> {
    pub(in crate::plan) matrices: &'m [Matrices],
    pub(in crate::plan) place: Place,
    pub(in crate::plan) other: Place,
    pub(in crate::plan) cached: Option<Cached>,
}

impl Moved<'_> {
    /// The cache, if these matrices are experts and the cache has room for the experts of one token.
    fn cached_experts(&self, matrices: &Matrices) -> Option<Cached> {
        self.cached.filter(|cached| matrices.experts.is_some_and(|experts| ExpertHits::holds(cached.share, experts)))
    }
}

/// The matrices through which only the token with logits passes.
fn last_only(matrices: &[Matrices]) -> Vec<Matrices> {
    matrices.iter().filter(|matrix| matrix.last_token).copied().collect()
}

/// Seconds to copy a layer's keys and values to a device.
fn carry_cache(work: &LayerWork, rate: &Rate, depths: Depths) -> f64 {
    work.caches.iter().map(|cache| cache.bytes(depths)).sum::<f64>() / rate.upload
}
