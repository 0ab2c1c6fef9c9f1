//! The work that a child process does with a model, and the reports of the process. Each stage is a line of JSON, so a
//! crash does not lose earlier stages.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use autoplace::load::{LoadReport, OnDifference};
use autoplace::plan::Request;
use serde::{Deserialize, Serialize};

use crate::rig::{Free, Rig};

/// A model to load, and the computations with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) rig: Rig,
    pub(crate) model: PathBuf,
    pub(crate) request: Request,
    /// Maximum number of load attempts. With 1, a load does not fall back to a smaller plan.
    pub(crate) attempts: u32,
    /// The reaction to a load that takes more memory than its plan allows.
    pub(crate) on_difference: OnDifference,
    /// Whether the load verifies itself by a computation, which is the default.
    pub(crate) warm_up: bool,
    /// The steps for the loaded model, in order.
    pub(crate) steps: Vec<Step>,
    /// CPU threads; `None` leaves the number to the library.
    pub(crate) threads: Option<u32>,
}

/// A computation with a loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// A prompt that fills one ubatch, and the first token after it.
    Ubatch,
    /// The generation of this many more tokens.
    Decode(usize),
    /// A prompt that fills the context except for a few tokens, and the generation of those tokens.
    ToTheEnd,
    /// Measures prompts and generations of these lengths in this many rounds, after one unmeasured round. Each round
    /// has a prompt in an empty context and a generation in an empty context. The library and llama.cpp's own loop take
    /// turns on the same split, for which the weights are loaded a second time.
    Beside { prompt: usize, generated: usize, rounds: usize },
    /// The greedy text of this many tokens after a prompt.
    Greedy { prompt: String, tokens: usize },
}

/// The report of a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "a few of them exist at a time")]
pub(crate) enum Stage {
    /// The devices are open, and nothing is loaded.
    Opened {
        free: Vec<Free>,
    },
    Loaded {
        report: LoadReport,
        free: Vec<Free>,
    },
    /// A step has ended.
    Done {
        step: Step,
        free: Vec<Free>,
        /// The tokens in the context after the step.
        depth: usize,
        /// Tokens per second of each measured round, first of the prompt, then of the generation.
        speeds: Vec<(f64, f64)>,
        /// Tokens per second of llama.cpp's own loop in the same rounds.
        plain: Vec<(f64, f64)>,
        /// The tokens of a greedy text.
        tokens: Vec<i32>,
    },
    /// The load or a step was refused, or failed.
    Failed {
        error: String,
        /// Memory ran out although the library had promised enough.
        out_of_memory: bool,
        /// No plan was found, so nothing was tried.
        refused: bool,
    },
}

/// Reports to the parent by a line on stdout.
pub(crate) fn say(stage: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, stage)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
