//! Real use corrects the rates of a device: what a text or a prompt took flows in, beside what was predicted; the
//! rates of its weights, of its attention or of its prompts flow out, changed by what the difference says.
//!
//! A token's time has several parts, and use shows their sum. The difference is put down to the part that takes the
//! most time, on the device that takes the most: at shallow depths to the weights, at deep ones to attention.

use crate::machine::{AttentionRate, MeasuredRates, UsedRate};
use crate::memory::Place;
use crate::memory::estimate::Assignment;
use crate::plan::Workload;

use super::SpeedModel;
use super::work::{Cache, LayerWork, Matrices};

/// A device is corrected where it takes this share of the predicted time or more.
const DOMINANT: f64 = 0.7;
/// A rate is changed at most by this factor at once: beyond it something else is wrong than the rate.
const MOST: f64 = 16.0;
/// Tokens of earlier use that later use is weighed against at most: so a machine that has changed is believed soon.
const REMEMBERED: u64 = 2_000;

/// What real use has shown: seconds of tokens, or of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InUse {
    /// Generated tokens: the mean seconds of one, with so many tokens before it.
    #[allow(missing_docs, reason = "the line above names them")]
    Generation { depth: u32, seconds: f64 },
    /// A prompt: all of its seconds.
    #[allow(missing_docs, reason = "the line above names them")]
    Prompt { workload: Workload, seconds: f64 },
}

/// What a rate is changed by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// The device.
    pub place: Place,
    kind: Kind,
    /// How much faster than it was taken to be.
    pub factor: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Weights,
    Attention,
    Prompts { n_tokens: u32 },
}

impl InUse {
    /// The seconds that were seen.
    pub const fn seconds(&self) -> f64 {
        match self {
            Self::Generation { seconds, .. } | Self::Prompt { seconds, .. } => *seconds,
        }
    }

    /// The seconds that the model of speed predicts for it.
    pub fn predicted(&self, model: &SpeedModel, assignment: &Assignment) -> f64 {
        match self {
            Self::Generation { depth, .. } => model.token_seconds(assignment, *depth),
            Self::Prompt { workload, .. } => model.prompt_seconds(assignment, workload),
        }
    }

    /// What it says of the rates that were predicted with; `None` where no device takes most of the time, or the
    /// difference is larger than its parts.
    pub fn correction(&self, model: &SpeedModel, assignment: &Assignment) -> Option<Correction> {
        let (seen, predicted) = (self.seconds(), self.predicted(model, assignment));
        let is_usable = seen > 0.0 && predicted > 0.0 && seen.is_finite() && predicted.is_finite();
        let (place, kind, part) = is_usable.then(|| self.dominant(model, assignment, predicted))??;
        // The part, as long as it must be for the sum to be what was seen.
        let must_be = (part + seen - predicted).max(part / MOST);
        let factor = (part / must_be).clamp(1.0 / MOST, MOST);
        factor.is_finite().then_some(Correction { place, kind, factor })
    }

    /// The part that takes the most: its device, its kind, and its predicted seconds.
    fn dominant(&self, model: &SpeedModel, assignment: &Assignment, predicted: f64) -> Option<(Place, Kind, f64)> {
        let mut places: Vec<Place> = assignment.layers().chain(moved_to(model)).collect();
        places.sort_unstable();
        places.dedup();
        match *self {
            Self::Generation { depth, .. } => {
                let parts = places.into_iter().map(|place| (place, token_parts(model, assignment, place, depth)));
                let most = parts.max_by(|a, b| (a.1.0 + a.1.1).total_cmp(&(b.1.0 + b.1.1)))?;
                let (place, (weights, attention)) = most;
                let kind = if weights >= attention { Kind::Weights } else { Kind::Attention };
                (weights + attention >= DOMINANT * predicted).then(|| (place, kind, weights.max(attention)))
            }
            Self::Prompt { workload, .. } => {
                // With several devices a prompt's weights are carried from one to the other too.
                let &[place] = places.as_slice() else { return None };
                let n_tokens = workload.prompt.min(model.n_ubatch);
                let first = match place {
                    Place::Gpu(gpu) => Some(gpu),
                    Place::Host => None,
                };
                let of_layer = |layer: &LayerWork| model.compute(&layer.matrices, place, first, n_tokens);
                // The output layer computes the last token alone.
                let blocks = model.layers().saturating_sub(1);
                let each: f64 = model.work().take(blocks).map(of_layer).sum();
                let part = each * f64::from(workload.prompt) / f64::from(n_tokens.max(1));
                (part > 0.0).then_some((place, Kind::Prompts { n_tokens }, part))
            }
        }
    }
}

/// Where parts of layers lie that are elsewhere than their layer.
fn moved_to(model: &SpeedModel) -> impl Iterator<Item = Place> {
    model.moved.iter().flatten().map(|(place, _)| *place)
}

/// Seconds of a token on one device: those of weights, and those of attention.
fn token_parts(model: &SpeedModel, assignment: &Assignment, place: Place, depth: u32) -> (f64, f64) {
    let rate = model.rate(place);
    let passes = |matrices: &[Matrices]| matrices.iter().map(|it| rate.token(it)).sum::<f64>();
    let (mut weights, mut attention) = (0.0, 0.0);
    for (index, (layer, at)) in model.work().zip(assignment.layers()).enumerate() {
        if at == place {
            weights += passes(&layer.matrices);
            attention += layer.caches.iter().map(|cache| rate.attend(cache, depth)).sum::<f64>();
        }
        for (other, matrices) in model.moved.get(index).into_iter().flatten().filter(|(other, _)| *other != at) {
            if *other == place {
                weights += passes(matrices);
            } else if at == place {
                weights -= passes(matrices);
            }
        }
    }
    (weights, attention)
}

impl Correction {
    /// Changes the rates of its device that this model was predicted with: those of its types of weights, of its
    /// cache, or of its prompts. `tokens`: how many it was seen with; `at`: when, in seconds since 1970 (UTC). Earlier
    /// use is weighed against it by its tokens, unless it `refutes` what was predicted from that.
    pub fn apply(&self, model: &SpeedModel, rates: &mut MeasuredRates, tokens: u64, at: u64, refutes: bool) {
        let rate = model.rate(self.place);
        let learn = |used: &mut Option<UsedRate>, measured: u64| {
            let before = used.filter(|_| !refutes).map_or(0, |used| used.tokens.min(REMEMBERED));
            let weight = tokens as f64 / (before + tokens).max(1) as f64;
            let now = used.map_or(measured, |used| used.per_second) as f64;
            let per_second = (now * self.factor.powf(weight)).round().max(1.0) as u64;
            *used = Some(UsedRate { per_second, tokens: (before + tokens).min(REMEMBERED), at });
        };
        let matrices = || model.work().flat_map(|layer| &layer.matrices);
        match self.kind {
            Kind::Weights => {
                let mut known: Vec<_> = matrices().filter_map(|it| rate.weight_rate(it)).collect();
                known.dedup();
                for it in &mut rates.weights {
                    let is_it = known.iter().any(|known| {
                        (known.tensor_type, known.experts, known.shape) == (it.tensor_type, it.experts, it.shape)
                    });
                    if is_it {
                        learn(&mut it.used, it.bytes_per_second);
                    }
                }
            }
            Kind::Prompts { n_tokens } => {
                let known: Vec<_> = matrices().filter_map(|it| rate.prompt_rate(it, n_tokens)).collect();
                for it in &mut rates.prompts {
                    let of =
                        |rate: &crate::machine::PromptRate| (rate.tensor_type, rate.experts, rate.shape, rate.n_tokens);
                    if known.iter().any(|known| of(known) == of(it)) {
                        learn(&mut it.used, it.flops);
                    }
                }
            }
            Kind::Attention => {
                let caches = || model.work().flat_map(|layer| &layer.caches);
                let of_type = |cache: &Cache| {
                    let (k, v) = cache.types;
                    [k, v].map(|ty| rate.nearest_attention(ty.tensor_type(), cache))
                };
                let known: Vec<_> = caches().flat_map(of_type).flatten().collect();
                let of = |rate: &AttentionRate| (rate.kv_type, rate.head_size, rate.n_gqa, rate.n_head_kv);
                for it in &mut rates.attention {
                    if known.iter().any(|known| of(known) == of(it)) {
                        learn(&mut it.used, it.bytes_per_second);
                    }
                }
            }
        }
    }
}
