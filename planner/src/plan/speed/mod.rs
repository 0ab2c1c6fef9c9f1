//! The predicted speed of a placement, for prompts and for generation. Every token passes the layers device by device,
//! at each device's rates.
//!
//! So, by Amdahl's law, the speed falls off a cliff when the first layers move to the host. While any layer is on the
//! host, its bytes are read at a tenth of the GPU's speed, and its attention is even slower. Moving other layers to the
//! GPU does not shorten that time. `docs/speed-model.md` compares predictions with measurements.

mod depths;
mod hits;
mod in_use;
mod model;
mod rates;
mod work;

use serde::{Deserialize, Serialize};

use crate::memory::estimate::{Assignment, split_points};
use crate::memory::{Error, Place, Split};
use crate::profile::ModelProfile;

use super::Workload;

pub(super) use depths::Depths;
pub use hits::ExpertHits;
pub use in_use::{Correction, InUse};
pub use model::SpeedModel;
pub(super) use model::{Cached, MAX_CACHED_TOKENS, Moved};
pub use rates::{Basis, Rate, Rates};
pub(super) use work::{Matrices, matrices};

/// The predicted speed of a plan. Speeds are tokens per second of one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Speed {
    /// The source of the devices' rates; if several devices are used, the least reliable of their sources.
    pub basis: Basis,
    /// The speed of prompts.
    pub prompt: PromptSpeed,
    /// The speed of generation at ascending depths.
    pub generation: Vec<GenerationSpeed>,
    /// The workload that the plan is optimised for.
    pub workload: Workload,
    /// The speed of the workload's generation: its tokens divided by their seconds.
    pub tokens_per_second: f64,
    /// The depth in the middle of this generation, in tokens.
    pub depth: u32,
    /// `tokens_per_second` with every layer on the host.
    pub all_on_host: f64,
    /// `tokens_per_second` with every layer on the plan's GPUs, whether or not they fit; `None` without GPUs.
    pub all_on_gpus: Option<f64>,
    /// `tokens_per_second` for every `n_gpu_layers` from 0 to all, with whole layers on the plan's GPUs, whether or not
    /// they fit; empty without GPUs.
    pub curve: Vec<f64>,
    /// Bytes of weights per second that each GPU of the plan is assumed to read during generation.
    pub gpu_rates: Vec<f64>,
    /// Bytes of weights per second that the host is assumed to read during generation.
    pub host_rate: f64,
}

/// The speed of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PromptSpeed {
    /// The number of tokens of the prompt.
    pub tokens: u32,
    /// Tokens per second.
    pub tokens_per_second: f64,
}

/// The speed of generation at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GenerationSpeed {
    /// The number of tokens in the context before the generated one.
    pub depth: u32,
    /// Tokens per second.
    pub tokens_per_second: f64,
}

impl Speed {
    /// The speed of this model's placement on these devices. Generation is also predicted at the depths `at`.
    pub(super) fn predict(
        profile: &ModelProfile,
        plain: &SpeedModel,
        (workload, at): (Workload, &[u32]),
        assignment: &Assignment,
        split: &Split,
    ) -> Result<Self, Error> {
        let rates = &plain.rates;
        let read = |rate: &Rate| rate.bytes_per_second.round();
        let (gpu_rates, host_rate) = (rates.gpus.iter().map(read).collect(), read(&rates.host));
        let n_gpus = rates.gpus.len();
        let on_host = assignment.layers().any(|place| place == Place::Host);
        let on_host = (on_host || !split.overrides.is_empty()).then_some(&rates.host);
        let basis = rates.gpus.iter().chain(on_host).map(|rate| rate.basis_of(plain.work())).max();
        let basis = basis.unwrap_or_else(|| rates.host.basis_of(plain.work()));
        let depths = workload.depths();
        // In the curve, the layers are divided among the GPUs as in the plan.
        let mut points = split_points(&split.tensor_split).unwrap_or_default();
        if points.is_empty() {
            points.push(1.0);
        }
        let by_layers = (0..=profile.full_offload()).map(|n| Assignment::new(profile.n_layer(), n, &points));
        let curve: Vec<f64> = match n_gpus {
            0 => Vec::new(),
            _ => plain.curve(by_layers, depths).into_iter().map(rounded).collect(),
        };
        let host = Assignment::new(profile.n_layer(), 0, &[]);
        let placed = plain.clone().overrides(profile, &split.overrides)?;
        let speed_at = |depth| rounded(placed.tokens_per_second(assignment, depth));
        let prompt = placed.prompt_seconds(assignment, &workload);
        let generation = |&depth: &u32| GenerationSpeed { depth, tokens_per_second: speed_at(depth) };
        Ok(Self {
            basis,
            prompt: PromptSpeed {
                tokens: workload.prompt,
                tokens_per_second: match workload.prompt {
                    0 => 0.0,
                    tokens => rounded(f64::from(tokens) / prompt),
                },
            },
            generation: at.iter().map(generation).collect(),
            workload,
            tokens_per_second: rounded(1.0 / placed.mean_token_seconds(assignment, depths)),
            depth: workload.depth(),
            all_on_host: rounded(1.0 / plain.mean_token_seconds(&host, depths)),
            all_on_gpus: curve.last().copied(),
            curve,
            gpu_rates,
            host_rate,
        })
    }

    /// The same speed, corrected by real use: `generation` and `prompt` are factors on the predicted speeds.
    #[must_use]
    pub fn corrected(mut self, generation: f64, prompt: f64) -> Self {
        for at in &mut self.generation {
            at.tokens_per_second = rounded(at.tokens_per_second * generation);
        }
        self.tokens_per_second = rounded(self.tokens_per_second * generation);
        self.prompt.tokens_per_second = rounded(self.prompt.tokens_per_second * prompt);
        self.basis = Basis::Used;
        self
    }

    /// Seconds of the workload.
    pub fn seconds(&self) -> f64 {
        let prompt = match self.prompt.tokens {
            0 => 0.0,
            tokens => f64::from(tokens) / self.prompt.tokens_per_second,
        };
        prompt + f64::from(self.workload.reply.max(1)) / self.tokens_per_second
    }
}

/// Rounds to four decimals, which is enough for a prediction and survives a round trip through text.
fn rounded(speed: f64) -> f64 {
    (speed * 1e4).round() / 1e4
}
