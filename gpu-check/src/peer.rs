//! A process that determines a split, with the library or with llama.cpp's own fit, and computes with the split through
//! llama.cpp's own functions. So the same code times, loads and measures both sides.
//!
//! In: a question on stdin. Out: a line of JSON for each stage.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use autoplace::Model;
use autoplace::memory::{ContextParams, Split};
use autoplace::plan::Request;
use bare_llama::{Bare, FitRequest};
use serde::{Deserialize, Serialize};

use crate::job::say;
use crate::rig::{Free, Opened, Rig};

/// The side that determines the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Ours,
    /// llama.cpp's `common_fit_params`.
    Theirs,
}

/// A question to one side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) side: Side,
    pub(crate) rig: Rig,
    pub(crate) model: PathBuf,
    /// The request. Our side plans for this request, and llama.cpp's fit gets the request's parameters.
    pub(crate) request: Request,
    pub(crate) n_ctx: u32,
    /// Bytes that llama.cpp's fit should leave free on each device. Our side uses its own headroom.
    pub(crate) margin: u64,
    pub(crate) threads: u32,
    /// Number of repetitions in the same process.
    pub(crate) again: usize,
    /// The work to do with the split; if `None`, nothing is loaded.
    pub(crate) work: Option<Work>,
}

/// The amount of work, and the number of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Tokens to generate.
    pub(crate) generated: usize,
    pub(crate) rounds: usize,
}

/// The report of a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The devices are open.
    Opened {
        free: Vec<Free>,
    },
    Asked {
        /// Milliseconds to determine the split: the first time, then the repetitions.
        milliseconds: Vec<f64>,
        split: Split,
        /// Planned free memory over all devices, in bytes.
        headroom: u64,
        context: ContextParams,
    },
    Loaded {
        free: Vec<Free>,
    },
    /// Tokens per second of each round, first of the prompt, then of the generation.
    Measured {
        speeds: Vec<(f64, f64)>,
    },
    /// The context is full.
    Full {
        free: Vec<Free>,
        depth: usize,
    },
    Failed {
        error: String,
    },
}

/// Reads a question from stdin and writes its stages to stdout. A failure is also a stage.
pub(crate) fn main() -> Result<()> {
    let question: Question = serde_json::from_reader(std::io::stdin().lock()).context("no question on stdin")?;
    if let Err(error) = answer(&question) {
        say(&Stage::Failed { error: format!("{error:#}") })?;
    }
    Ok(())
}

fn answer(question: &Question) -> Result<()> {
    let rig = question.rig.open()?;
    say(&Stage::Opened { free: rig.free()? })?;
    let mut milliseconds = Vec::new();
    let mut chosen = ask(question, &rig, &mut milliseconds)?;
    for _ in 0..question.again {
        chosen = ask(question, &rig, &mut milliseconds)?;
    }
    say(&Stage::Asked {
        milliseconds,
        split: chosen.split.clone(),
        headroom: chosen.headroom,
        context: chosen.context.clone(),
    })?;
    let Some(work) = question.work else {
        return Ok(());
    };
    let mut bare =
        Bare::with_split(&question.model, &chosen.devices, &chosen.split, &chosen.context, question.threads)?;
    say(&Stage::Loaded { free: rig.free()? })?;
    // The first round is not measured, as in llama-bench.
    bare.prompt(work.prompt)?;
    bare.generation(1)?;
    let speeds = (0..work.rounds)
        .map(|_| Ok((bare.prompt(work.prompt)?, bare.generation(work.generated)?)))
        .collect::<Result<_>>()?;
    say(&Stage::Measured { speeds })?;
    let depth = bare.fill()?;
    say(&Stage::Full { free: rig.free()?, depth })
}

/// A chosen split, with its devices and context.
struct Chosen {
    devices: Vec<String>,
    split: Split,
    headroom: u64,
    context: ContextParams,
}

/// Asks for the split once, and appends the duration.
fn ask(question: &Question, rig: &Opened, milliseconds: &mut Vec<f64>) -> Result<Chosen> {
    let mut params = question.request.params.clone();
    params.n_ctx = question.n_ctx;
    match question.side {
        Side::Ours => {
            let request = question.request.clone();
            let begin = Instant::now();
            let plan = Model::builder(&question.model)
                .request(request.n_ctx(question.n_ctx))
                .machine(rig.machine()?)
                .n_threads(question.threads)
                .plan()?;
            milliseconds.push(begin.elapsed().as_secs_f64() * 1e3);
            Ok(Chosen {
                devices: plan.gpus().filter_map(|gpu| gpu.device.clone()).collect(),
                split: plan.split(),
                headroom: plan.gpus().map(|gpu| gpu.headroom.total()).sum(),
                context: plan.context,
            })
        }
        Side::Theirs => {
            let margins = vec![question.margin; rig.devices.len()];
            let request = FitRequest {
                path: &question.model,
                devices: &rig.devices,
                params: &params,
                margins: &margins,
                threads: question.threads,
            };
            let begin = Instant::now();
            let fit = request.fit()?;
            milliseconds.push(begin.elapsed().as_secs_f64() * 1e3);
            Ok(Chosen {
                devices: rig.devices.clone(),
                split: request.read(fit)?,
                headroom: question.margin * rig.devices.len() as u64,
                context: params,
            })
        }
    }
}
