//! One change, and the plan that it makes possible.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::memory::KvType;
use crate::plan::Plan;
use crate::profile::Quantisation;

/// What to change together, and the plan that results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Change {
    /// What to change: one thing, but for programs that must be closed together, and for what only helps together.
    pub kinds: Vec<ChangeKind>,
    /// How much it changes.
    pub effect: Effect,
    /// The plan that results.
    pub outcome: Outcome,
    /// How many times as fast it generates, where both speeds are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
}

/// One thing to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// Keys and values of this type.
    #[error("keys and values as {0}")]
    KvType(KvType),
    /// So many tokens of context.
    #[error("a context of {0} tokens")]
    Context(u32),
    /// Layers with a sliding window keep the whole context, or what the window takes.
    #[error("{}", if *.0 { "the whole context of sliding windows (swa_full)" } else { "sliding windows only (swa_full off)" })]
    SwaFull(bool),
    /// So many tokens computed at once.
    #[error("{0} tokens computed at once")]
    Ubatch(u32),
    /// A program that holds memory of a GPU is closed.
    #[error(
        "closing {} (process {pid}), which holds {} of {gpu_name}",
        name.as_deref().unwrap_or("a program"), Bytes(*bytes)
    )]
    CloseProcess {
        /// Its program, if the driver reports it.
        name: Option<String>,
        /// Its process id.
        pid: u32,
        /// The GPU, as an index of [`Machine::gpus`](crate::machine::Machine::gpus).
        gpu: usize,
        /// The GPU's name.
        gpu_name: String,
        /// Bytes that it holds there.
        bytes: u64,
    },
    /// Another card in place of one, driven by the same backend.
    #[error("{name} in place of {gpu_name}")]
    AnotherCard {
        /// Its name, for [`Gpu::named`](crate::machine::Gpu::named).
        name: String,
        /// The GPU that it replaces, as an index of [`Machine::gpus`](crate::machine::Machine::gpus).
        gpu: usize,
        /// The replaced GPU's name.
        gpu_name: String,
    },
    /// One more card like one that is there: [`Gpu::another`](crate::machine::Gpu::another).
    #[error("a second {gpu_name}")]
    SecondCard {
        /// The GPU, as an index of [`Machine::gpus`](crate::machine::Machine::gpus).
        gpu: usize,
        /// Its name.
        gpu_name: String,
    },
    /// A card for a computer without one.
    #[error("a card such as {name}")]
    FirstCard {
        /// Its name, for [`Gpu::named`](crate::machine::Gpu::named).
        name: String,
    },
    /// The same model in another quantisation: a smaller one, or a larger one that the host reads faster.
    #[error("{to} ({})", Bytes(*file_bytes))]
    Quantisation {
        /// Which.
        to: Quantisation,
        /// Bytes of its file.
        file_bytes: u64,
    },
}

/// How much a change changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// Everything fits: every layer on GPUs, or as many as were asked for; without a GPU, the model itself.
    Fits,
    /// The model can be loaded, which it could not, with layers on the host.
    Loads,
    /// More of it is on GPUs, not all.
    More,
    /// Everything can be loaded already and would be faster: in a larger file, of which a part stays on the host, which
    /// reads its types so much faster; or on a card where there is none.
    Faster,
}

/// A plan in short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Layers on GPUs.
    pub n_gpu_layers: u32,
    /// Layers of the model, the output layer counted.
    pub layers: u32,
    /// Blocks on GPUs of which a part stays on the host.
    pub parted_blocks: u32,
    /// Whether everything that can be is on GPUs.
    pub full: bool,
    /// Tokens generated per second, predicted; `None` where nothing says how fast one of its devices reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
}

impl Outcome {
    /// This plan in short.
    pub fn of(plan: &Plan) -> Self {
        Self {
            n_gpu_layers: plan.n_gpu_layers,
            layers: plan.layers(),
            parted_blocks: plan.parted_blocks,
            full: plan.full_offload,
            tokens_per_second: plan.speed.as_ref().map(|speed| speed.tokens_per_second),
        }
    }

    /// Layers that are on GPUs as a whole, then those of which a part is.
    pub(super) const fn placed(&self) -> (u32, u32) {
        let whole = self.n_gpu_layers.saturating_sub(self.parted_blocks);
        (whole, self.n_gpu_layers)
    }
}

/// A speed as it can be trusted: two digits, or one after the point.
pub(super) fn per_second(speed: f64) -> String {
    let digits = usize::from(speed < 9.95);
    format!("{speed:.digits$}")
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, layers, parted) = (self.n_gpu_layers, self.layers, self.parted_blocks);
        match n {
            0 => f.write_str("every layer on the host")?,
            n if n == layers => write!(f, "all {layers} layers")?,
            n => write!(f, "{n} of {layers} layers")?,
        }
        match parted {
            0 => {}
            1 => f.write_str(", a part of 1 block on the host")?,
            parted => write!(f, ", parts of {parted} blocks on the host")?,
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
            Effect::More => "for more",
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
