//! How fast a placement computes prompts and generates, predicted: every token passes its layers one device after the
//! other, at the rates of those devices.
//!
//! That is Amdahl's law, and the reason for the cliff: while any layer is on the host, its bytes pass at a tenth of the
//! GPU's speed, its attention slower still, and no layer more on the GPU makes that part shorter. `docs/speed-model.md`
//! compares it with measurements.

mod in_use;
mod model;
mod rates;
mod work;

use serde::{Deserialize, Serialize};

use crate::memory::estimate::{Assignment, split_points};
use crate::memory::{Error, Place, Split};
use crate::profile::ModelProfile;

use super::Workload;

pub use in_use::{Correction, InUse};
pub use model::SpeedModel;
pub use rates::{Basis, Rate, Rates};
pub(super) use work::{Matrices, matrices};

/// How fast a plan is, predicted. Speeds in tokens per second of one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Speed {
    /// The source of the devices' speeds; with several devices, the least certain one.
    pub basis: Basis,
    /// Of prompts.
    pub prompt: PromptSpeed,
    /// Of generation, by rising depths.
    pub generation: Vec<GenerationSpeed>,
    /// What the plan was made for.
    pub workload: Workload,
    /// Of generation in the middle of the workload's reply.
    pub tokens_per_second: f64,
    /// The tokens before that.
    pub depth: u32,
    /// The same with every layer on the host.
    pub all_on_host: f64,
    /// The same with every layer on the plan's GPUs, as if they had room; `None` without GPUs.
    pub all_on_gpus: Option<f64>,
    /// Of whole layers by `n_gpu_layers`, from 0 to all, on the plan's GPUs, whether or not they fit;
    /// empty without GPUs.
    pub curve: Vec<f64>,
    /// Bytes of weights per second that each of the plan's GPUs is taken to read while it generates.
    pub gpu_rates: Vec<f64>,
    /// The same of the host.
    pub host_rate: f64,
}

/// How fast prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PromptSpeed {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Its tokens per second.
    pub tokens_per_second: f64,
}

/// How fast a plan generates at one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GenerationSpeed {
    /// The tokens before the one that is generated.
    pub depth: u32,
    /// Tokens per second.
    pub tokens_per_second: f64,
}

impl Speed {
    /// Of a placement of this model on these devices; generation at these depths, too.
    pub(super) fn of(
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
        let depth = workload.depth();
        // By the plan's own shares.
        let mut points = split_points(&split.tensor_split).unwrap_or_default();
        if points.is_empty() {
            points.push(1.0);
        }
        let by_layers = (0..=profile.full_offload()).map(|n| Assignment::new(profile.n_layer(), n, &points));
        let curve: Vec<f64> = match n_gpus {
            0 => Vec::new(),
            _ => plain.curve(by_layers, depth).into_iter().map(rounded).collect(),
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
            tokens_per_second: speed_at(depth),
            depth,
            all_on_host: rounded(plain.tokens_per_second(&host, depth)),
            all_on_gpus: curve.last().copied(),
            curve,
            gpu_rates,
            host_rate,
        })
    }

    /// The same as real use has shown it, so many times as fast as predicted: generation, and prompts.
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

/// With four decimals: a prediction has no more, and so few are read back from text unchanged.
fn rounded(speed: f64) -> f64 {
    (speed * 1e4).round() / 1e4
}
