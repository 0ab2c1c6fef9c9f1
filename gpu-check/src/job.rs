//! What a process of its own is asked to do with a model, and what it says of it: a line of JSON for each stage, so
//! that what was seen before it died is not lost with it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use autoplace::load::{LoadReport, OnDifference};
use autoplace::plan::Request;
use serde::{Deserialize, Serialize};

use crate::rig::{Free, Rig};

/// A model to be loaded and computed with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) rig: Rig,
    pub(crate) model: PathBuf,
    pub(crate) request: Request,
    /// How often a load may be tried; with 1 it never falls back on a smaller plan.
    pub(crate) attempts: u32,
    /// What a load does that took more than its plan had left for it.
    pub(crate) on_difference: OnDifference,
    /// Whether the load computes to verify itself, as it does by default.
    pub(crate) warm_up: bool,
    /// What is done with the loaded model, in this order.
    pub(crate) steps: Vec<Step>,
    /// Threads of the CPU; `None` leaves it to the library.
    pub(crate) threads: Option<u32>,
}

/// Something that is computed with a loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// A prompt as long as what the graph takes at once, and its first token.
    Ubatch,
    /// So many tokens more.
    Decode(usize),
    /// A prompt that fills the context but for a few tokens, and those.
    ToTheEnd,
    /// A prompt of so many tokens, then so many generated, so many times: how fast. Once before, unmeasured.
    Speed { prompt: usize, generated: usize, rounds: usize },
    /// The same beside llama.cpp's own loop on the same split, in turns: a prompt into an empty context, then a
    /// generation into an empty one. The weights are loaded a second time for it.
    Beside { prompt: usize, generated: usize, rounds: usize },
    /// The likeliest text after these words, of so many tokens.
    Greedy { prompt: String, tokens: usize },
}

/// What a stage leaves behind.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "a few of them exist at a time")]
pub(crate) enum Stage {
    /// The devices are open, nothing is loaded.
    Opened {
        free: Vec<Free>,
    },
    Loaded {
        report: LoadReport,
        free: Vec<Free>,
    },
    /// A step is done.
    Done {
        step: Step,
        free: Vec<Free>,
        /// The tokens in the context when it was done.
        depth: usize,
        /// Tokens per second of prompts, and of generation: a pair for each measured round.
        speeds: Vec<(f64, f64)>,
        /// The same of llama.cpp's own loop, in the same rounds.
        plain: Vec<(f64, f64)>,
        /// The tokens of a greedy text.
        tokens: Vec<i32>,
    },
    /// The load, or a step, was refused or failed.
    Failed {
        error: String,
        /// Memory was lacking where the library had said that there was enough.
        out_of_memory: bool,
        /// No plan was found: nothing was tried.
        refused: bool,
    },
}

/// Answers the process that has asked: a line on stdout.
pub(crate) fn say(stage: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, stage)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
