//! Correction of a device's rates by real use. In: the measured and the predicted time of a text or a prompt. Out:
//! corrected rates for the device's weights, attention or prompts.
//!
//! Real use shows only the total time of a token. Only the device that takes most of the time is corrected. The whole
//! difference is attributed to the longest part of that device's work: usually to the weights at shallow depths, and to
//! attention at deep ones.

use crate::machine::{AttentionRate, MeasuredRates, UsedRate};
use crate::memory::Place;
use crate::memory::estimate::Assignment;
use crate::plan::Workload;

use super::SpeedModel;
use super::work::{Cache, LayerWork, Matrices};

/// A device is corrected only if it takes at least this share of the predicted time.
const MIN_DOMINANT_SHARE: f64 = 0.7;
/// The largest factor of one correction. If the difference is larger, its cause is not the rate.
const MAX_FACTOR: f64 = 16.0;
/// Earlier use counts as at most this many tokens in a correction, so that a change of the machine soon shows.
const MAX_REMEMBERED_TOKENS: u64 = 2_000;

/// A time observed in real use: of generated tokens, or of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InUse {
    /// The mean seconds of a generated token, with `depth` tokens before it.
    #[allow(missing_docs, reason = "the variant's doc covers them")]
    Generation { depth: u32, seconds: f64 },
    /// The seconds of a whole prompt.
    #[allow(missing_docs, reason = "the variant's doc covers them")]
    Prompt { workload: Workload, seconds: f64 },
}

/// A correction of one rate of one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// The device.
    pub place: Place,
    kind: Kind,
    /// The real speed of the device as a multiple of the speed that its rate predicts.
    pub factor: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Weights,
    Attention,
    Prompts { n_tokens: u32 },
}

impl InUse {
    /// The observed seconds.
    pub const fn seconds(&self) -> f64 {
        match self {
            Self::Generation { seconds, .. } | Self::Prompt { seconds, .. } => *seconds,
        }
    }

    /// The seconds that the speed model predicts for the same work.
    pub fn predicted(&self, model: &SpeedModel, assignment: &Assignment) -> f64 {
        match self {
            Self::Generation { depth, .. } => model.token_seconds(assignment, *depth),
            Self::Prompt { workload, .. } => model.prompt_seconds(assignment, workload),
        }
    }

    /// The correction of the rates that follows from this use. `None` if no device takes most of the time, or if the
    /// times are not positive numbers.
    pub fn correction(&self, model: &SpeedModel, assignment: &Assignment) -> Option<Correction> {
        let (seen, predicted) = (self.seconds(), self.predicted(model, assignment));
        let is_usable = seen > 0.0 && predicted > 0.0 && seen.is_finite() && predicted.is_finite();
        let (place, kind, part) = is_usable.then(|| self.dominant(model, assignment, predicted))??;
        // If the part took this time, the sum would equal the measured time.
        let must_be = (part + seen - predicted).max(part / MAX_FACTOR);
        let factor = (part / must_be).clamp(1.0 / MAX_FACTOR, MAX_FACTOR);
        factor.is_finite().then_some(Correction { place, kind, factor })
    }

    /// The longest part of the predicted time: its device, its kind and its seconds.
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
                (weights + attention >= MIN_DOMINANT_SHARE * predicted).then(|| (place, kind, weights.max(attention)))
            }
            Self::Prompt { workload, .. } => {
                // On several devices the time of a prompt includes moving weights between them.
                let &[place] = places.as_slice() else { return None };
                let n_tokens = workload.prompt.min(model.n_ubatch);
                let first = match place {
                    Place::Gpu(gpu) => Some(gpu),
                    Place::Host => None,
                };
                let of_layer = |layer: &LayerWork| model.compute(&layer.matrices, place, first, n_tokens);
                // The output layer is not counted, because it computes only the last token.
                let blocks = model.layers().saturating_sub(1);
                let each: f64 = model.work().take(blocks).map(of_layer).sum();
                let part = each * f64::from(workload.prompt) / f64::from(n_tokens.max(1));
                (part > 0.0).then_some((place, Kind::Prompts { n_tokens }, part))
            }
        }
    }
}

/// The places of weights that are placed apart from their layer.
fn moved_to(model: &SpeedModel) -> impl Iterator<Item = Place> {
    model.moved.iter().flatten().map(|(place, _)| *place)
}

/// Seconds that one device spends on a token: on weights, and on attention.
fn token_parts(model: &SpeedModel, assignment: &Assignment, place: Place, depth: u32) -> (f64, f64) {
    let rate = model.rate(place);
    let passes = |matrices: &[Matrices]| matrices.iter().map(|matrix| rate.token(matrix)).sum::<f64>();
    let (mut weights, mut attention) = (0.0, 0.0);
    for (index, (layer, at)) in model.work().zip(assignment.layers()).enumerate() {
        if at == place {
            weights += passes(&layer.matrices);
            attention += layer.caches.iter().map(|cache| rate.attend(cache, depth.into())).sum::<f64>();
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
    /// Corrects the device's rates that `model` used for the prediction: the rates of its weight types, of its cache or
    /// of its prompts. `tokens` is the number of observed tokens, and `at` is the time in seconds since 1970 (UTC).
    /// Earlier use is weighted by its number of tokens, but is not counted if the new use `refutes` the earlier
    /// correction.
    pub fn apply(&self, model: &SpeedModel, rates: &mut MeasuredRates, tokens: u64, at: u64, refutes: bool) {
        let rate = model.rate(self.place);
        let learn = |used: &mut Option<UsedRate>, measured: u64| {
            let before = used.filter(|_| !refutes).map_or(0, |used| used.tokens.min(MAX_REMEMBERED_TOKENS));
            let weight = tokens as f64 / (before + tokens).max(1) as f64;
            let now = used.map_or(measured, |used| used.per_second) as f64;
            let per_second = (now * self.factor.powf(weight)).round().max(1.0) as u64;
            *used = Some(UsedRate { per_second, tokens: (before + tokens).min(MAX_REMEMBERED_TOKENS), at });
        };
        let matrices = || model.work().flat_map(|layer| &layer.matrices);
        match self.kind {
            Kind::Weights => {
                let mut known: Vec<_> = matrices().filter_map(|matrix| rate.weight_rate(matrix)).collect();
                known.dedup();
                for figure in &mut rates.weights {
                    let is_it = known.iter().any(|known| {
                        (known.tensor_type, known.experts, known.shape)
                            == (figure.tensor_type, figure.experts, figure.shape)
                    });
                    if is_it {
                        learn(&mut figure.used, figure.bytes_per_second);
                    }
                }
            }
            Kind::Prompts { n_tokens } => {
                let known: Vec<_> = matrices().filter_map(|matrix| rate.prompt_rate(matrix, n_tokens)).collect();
                for figure in &mut rates.prompts {
                    let of =
                        |rate: &crate::machine::PromptRate| (rate.tensor_type, rate.experts, rate.shape, rate.n_tokens);
                    if known.iter().any(|known| of(known) == of(figure)) {
                        learn(&mut figure.used, figure.flops);
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
                for figure in &mut rates.attention {
                    if known.iter().any(|known| of(known) == of(figure)) {
                        learn(&mut figure.used, figure.bytes_per_second);
                    }
                }
            }
        }
    }
}
