//! The time of a token, a prompt or a workload on a placement: the sum over the layers, each at its device's rates.

use std::sync::Arc;

use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Error, KvType, OverrideRules, Place, TensorOverride};
use crate::plan::Workload;
use crate::profile::ModelProfile;

use super::rates::Rate;
use super::work::{LayerWork, Matrices, matrices};
use super::{Depths, Rates};

/// From this many tokens on, a GPU computes with weights of the host, which are copied to it each time (`offload_op` of
/// ggml's backends).
const MIN_OFFLOADED_TOKENS: u32 = 32;

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
    /// For each layer, the weights that lie apart from it.
    pub(super) moved: Vec<Vec<(Place, Vec<Matrices>)>>,
}

impl SpeedModel {
    /// The model in a context with these parameters, on devices with these rates.
    pub fn new(profile: &ModelProfile, params: &ContextParams, rates: Rates) -> Self {
        Self::with_work(LayerWork::for_model(profile, params), params, rates)
    }

    /// The same model on other devices and in another context, with no weights moved. `profile` must be this model's;
    /// the work of its layers is computed again if the cache types differ.
    pub(in crate::plan) fn over(&self, profile: &ModelProfile, params: &ContextParams, rates: Rates) -> Self {
        let work = match self.kv_types == (params.type_k, params.type_v) {
            true => Arc::clone(&self.work),
            false => LayerWork::for_model(profile, params),
        };
        Self::with_work(work, params, rates)
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
        }
    }

    /// The same model on devices with other rates.
    pub fn with_rates(mut self, rates: Rates) -> Self {
        self.rates = rates;
        self
    }

    /// Moves weights apart from their layer. Only the weights of blocks count; the output layer moves as a whole.
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
        Ok(self)
    }

    /// Seconds of a generated token with `depth` tokens before it.
    pub fn token_seconds(&self, assignment: &Assignment, depth: u32) -> f64 {
        self.mean_token_seconds(assignment, depth.into())
    }

    /// Mean seconds of a generated token over these depths.
    pub(in crate::plan) fn mean_token_seconds(&self, assignment: &Assignment, depths: Depths) -> f64 {
        let layer = |layer, place| self.layer_token(layer, place, depths);
        let moved = |matrices: &[Matrices], place, other| self.moved_token(matrices, place, other);
        self.sum_of_layers(assignment, 1.0, layer, moved)
    }

    /// Generated tokens per second at this depth.
    pub fn tokens_per_second(&self, assignment: &Assignment, depth: u32) -> f64 {
        1.0 / self.token_seconds(assignment, depth)
    }

    /// Generated tokens per second under each assignment. Each layer's time is computed once for each device.
    pub(super) fn curve(&self, assignments: impl Iterator<Item = Assignment>, depths: Depths) -> Vec<f64> {
        let on = |place| (0..self.layers()).map(|il| self.layer_token(il, place, depths)).collect();
        let on_gpus: Vec<Vec<f64>> = (0..self.rates.gpus.len()).map(|gpu| on(Place::Gpu(gpu))).collect();
        let on_host: Vec<f64> = on(Place::Host);
        let layer = |il: usize, place| match place {
            Place::Gpu(gpu) => on_gpus[gpu][il],
            Place::Host => on_host[il],
        };
        let moved = |matrices: &[Matrices], place, other| self.moved_token(matrices, place, other);
        assignments.map(|assignment| 1.0 / self.sum_of_layers(&assignment, 1.0, layer, moved)).collect()
    }

    /// Seconds of a workload's prompt.
    pub fn prompt_seconds(&self, assignment: &Assignment, workload: &Workload) -> f64 {
        let gpus = assignment.layers().filter_map(|place| match place {
            Place::Gpu(gpu) => Some(gpu),
            Place::Host => None,
        });
        // The first device computes with the host's weights, even if no layer is on it.
        let first = gpus.min().or((!self.rates.gpus.is_empty()).then_some(0));
        let layer = |layer, place| self.layer_prompt(layer, place, first, workload);
        let moved = |matrices: &[Matrices], place, other| self.moved_prompt(matrices, place, other, first, workload);
        self.sum_of_layers(assignment, self.computations(workload), layer, moved)
    }

    /// Seconds of all layers and of the weights moved out of them. `crossings` counts the transfers over each border
    /// between devices.
    fn sum_of_layers(
        &self,
        assignment: &Assignment,
        crossings: f64,
        in_layer: impl Fn(usize, Place) -> f64,
        moved: impl Fn(&[Matrices], Place, Place) -> f64,
    ) -> f64 {
        // The token's embedding comes from the host.
        let mut at = Place::Host;
        let mut seconds = 0.0;
        for (layer, place) in assignment.layers().enumerate() {
            seconds += in_layer(layer, place);
            let elsewhere = self.moved.get(layer).into_iter().flatten().filter(|(other, _)| *other != place);
            for &(other, ref matrices) in elsewhere {
                seconds += moved(matrices, place, other) + self.there_and_back(place, other) * crossings;
            }
            if place != at {
                seconds += self.rate(at).crossing.max(self.rate(place).crossing) * crossings;
                at = place;
            }
        }
        seconds
    }

    /// Seconds of a workload: its prompt, and each token of its reply at the mean over the [workload's](Workload)
    /// depths.
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
    pub(in crate::plan) fn moved_token(&self, matrices: &[Matrices], place: Place, other: Place) -> f64 {
        let of = |rate: &Rate| matrices.iter().map(|matrix| rate.token(matrix)).sum::<f64>();
        of(self.rate(other)) - of(self.rate(place))
    }

    /// Seconds of a token's transfer to another device and back, and of that device's start.
    pub(in crate::plan) fn there_and_back(&self, place: Place, other: Place) -> f64 {
        2.0 * self.rate(place).crossing.max(self.rate(other).crossing) + self.rate(other).wake_up
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
    pub(in crate::plan) fn moved_prompt(
        &self,
        matrices: &[Matrices],
        place: Place,
        other: Place,
        first: Option<usize>,
        workload: &Workload,
    ) -> f64 {
        let of = |n_tokens: u32| {
            self.compute(matrices, other, first, n_tokens) - self.compute(matrices, place, first, n_tokens)
        };
        self.sum_of_computations(workload, of) + self.last_token(matrices, other) - self.last_token(matrices, place)
    }

    /// Seconds in which `n_tokens` tokens pass these weights. If a GPU borrows the weights from the host, their upload
    /// is included.
    pub(super) fn compute(&self, matrices: &[Matrices], place: Place, first: Option<usize>, n_tokens: u32) -> f64 {
        let borrower = self.borrower(place, first, n_tokens);
        let all = matrices.iter().filter(|it| !it.last_token);
        all.map(|it| match borrower {
            Some(gpu) => it.bytes(n_tokens) / gpu.upload + gpu.prompt(it, n_tokens),
            None => self.rate(place).prompt(it, n_tokens),
        })
        .sum()
    }

    /// Seconds in which the last token of a prompt passes the weights that only it passes.
    fn last_token(&self, matrices: &[Matrices], place: Place) -> f64 {
        let rate = self.rate(place);
        matrices.iter().filter(|it| it.last_token).map(|it| rate.token(it)).sum()
    }

    /// The GPU that computes with the host's weights, if one does.
    fn borrower(&self, place: Place, first: Option<usize>, n_tokens: u32) -> Option<&Rate> {
        let borrows = place == Place::Host && self.op_offload && n_tokens >= MIN_OFFLOADED_TOKENS;
        let first = first.filter(|_| borrows)?;
        self.rates.gpus.get(first)
    }

    /// Whether a layer on a GPU copies its keys and values from the host.
    fn is_carried(&self, work: &LayerWork, place: Place) -> bool {
        self.kv_on_host && place != Place::Host && !work.caches.is_empty()
    }

    /// Sum of `of` over the prompt's computations: full ubatches and the rest.
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

/// Seconds in which a layer's keys and values are copied to a device.
fn carry_cache(work: &LayerWork, rate: &Rate, depths: Depths) -> f64 {
    work.caches.iter().map(|cache| cache.bytes(depths)).sum::<f64>() / rate.upload
}
