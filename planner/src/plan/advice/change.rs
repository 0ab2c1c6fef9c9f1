//! A change, and the plan that it makes possible.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::memory::KvType;
use crate::plan::Plan;
use crate::profile::Quantisation;

/// Things that are changed together, and the resulting plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Change {
    /// The things to change, usually only one. There are several if programs must be closed together, or if changes
    /// help only together.
    pub kinds: Vec<ChangeKind>,
    /// The gain.
    pub effect: Effect,
    /// A short form of the resulting plan.
    pub outcome: Outcome,
    /// The factor by which generation gets faster, if both speeds are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
}

/// One thing to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// Use this type for keys and values.
    #[error("keys and values as {0}")]
    KvType(KvType),
    /// Use this many tokens of context.
    #[error("a context of {0} tokens")]
    Context(u32),
    /// Whether layers with a sliding window keep the whole context.
    #[error("{}", if *.0 { "the whole context of sliding windows (swa_full)" } else { "sliding windows only (swa_full off)" })]
    SwaFull(bool),
    /// Compute this many tokens at once (the ubatch).
    #[error("{0} tokens computed at once")]
    Ubatch(u32),
    /// Close a program that uses memory of a GPU.
    #[error(
        "closing {} (process {pid}), which holds {} of {gpu_name}",
        name.as_deref().unwrap_or("a program"), Bytes(*bytes)
    )]
    CloseProcess {
        /// The program's name, if the driver reports it.
        name: Option<String>,
        /// The process id.
        pid: u32,
        /// The GPU, as an index of [`Machine::gpus`](crate::machine::Machine::gpus).
        gpu: usize,
        /// The GPU's name.
        gpu_name: String,
        /// Bytes that the program uses there.
        bytes: u64,
    },
    /// Replace a card by another card that the same backend drives.
    #[error("{name} in place of {gpu_name}")]
    AnotherCard {
        /// The new card's name, for [`Gpu::named`](crate::machine::Gpu::named).
        name: String,
        /// The replaced GPU, as an index of [`Machine::gpus`](crate::machine::Machine::gpus).
        gpu: usize,
        /// The replaced GPU's name.
        gpu_name: String,
    },
    /// Add a card of the same kind as an existing card: [`Gpu::another`](crate::machine::Gpu::another).
    #[error("a second {gpu_name}")]
    SecondCard {
        /// The existing GPU, as an index of [`Machine::gpus`](crate::machine::Machine::gpus).
        gpu: usize,
        /// The existing GPU's name.
        gpu_name: String,
    },
    /// Add a card to a computer that has no card.
    #[error("a card such as {name}")]
    FirstCard {
        /// The card's name, for [`Gpu::named`](crate::machine::Gpu::named).
        name: String,
    },
    /// Use another quantisation of the model: a smaller quantisation, or a larger quantisation that the host reads
    /// faster.
    #[error("{to} ({})", Bytes(*file_bytes))]
    Quantisation {
        /// The quantisation.
        to: Quantisation,
        /// Bytes of the file in this quantisation.
        file_bytes: u64,
    },
}

/// The gain of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// Everything fits: all layers, or the requested number, are on GPUs. Without a GPU, the model fits on the host.
    Fits,
    /// The model could not be loaded before, and now loads with layers on the host.
    Loads,
    /// More of the model is on GPUs, but not all.
    More,
    /// The model already loads, and gets faster: with a larger file whose types the host reads faster, or with a first
    /// card.
    Faster,
}

/// A short form of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The number of layers on GPUs.
    pub n_gpu_layers: u32,
    /// All layers of the model, the output layer included.
    pub layers: u32,
    /// The number of blocks on GPUs that keep some of their weights on the host.
    #[serde(alias = "parted_blocks")]
    pub split_blocks: u32,
    /// Whether all layers are on GPUs as a whole.
    pub full: bool,
    /// Predicted tokens generated per second; `None` if the plan predicts no speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
}

impl From<&Plan> for Outcome {
    /// The short form of a plan.
    fn from(plan: &Plan) -> Self {
        Self {
            n_gpu_layers: plan.n_gpu_layers,
            layers: plan.layers(),
            split_blocks: plan.split_blocks,
            full: plan.full_offload,
            tokens_per_second: plan.speed.as_ref().map(|speed| speed.tokens_per_second),
        }
    }
}

impl Outcome {
    /// The number of layers that are wholly on GPUs, and the number of layers that are at least partly on GPUs.
    pub(super) const fn placed(&self) -> (u32, u32) {
        let whole = self.n_gpu_layers.saturating_sub(self.split_blocks);
        (whole, self.n_gpu_layers)
    }
}

/// Formats a speed with the digits that can be trusted: one decimal below 10, otherwise none.
pub(super) fn per_second(speed: f64) -> String {
    let digits = usize::from(speed < 9.95);
    format!("{speed:.digits$}")
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, layers, split_blocks) = (self.n_gpu_layers, self.layers, self.split_blocks);
        match n {
            0 => f.write_str("every layer on the host")?,
            n if n == layers => write!(f, "all {layers} layers")?,
            n => write!(f, "{n} of {layers} layers")?,
        }
        match split_blocks {
            0 => {}
            1 => f.write_str(", a part of 1 block on the host")?,
            split_blocks => write!(f, ", parts of {split_blocks} blocks on the host")?,
        }
        match self.tokens_per_second {
            Some(speed) => write!(f, ", about {} tok/s", per_second(speed)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aim = match self.effect {
            Effect::Fits => "to fit",
            Effect::Loads => "to load",
            Effect::More => "for more on GPUs",
            Effect::Faster => "for speed",
        };
        let kinds: Vec<String> = self.kinds.iter().map(ToString::to_string).collect();
        write!(f, "{aim}: {}", kinds.join(" and "))?;
        let is_larger = matches!(self.kinds[..], [ChangeKind::Quantisation { .. }]) && self.effect == Effect::Faster;
        if let (true, Some(speedup)) = (is_larger, self.speedup) {
            write!(f, ", which would be larger and {speedup:.1} times as fast here")?;
        }
        write!(f, ": {}", self.outcome)
    }
}
