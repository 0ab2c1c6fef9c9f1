//! The process that asks for a split, of the library or of llama.cpp's own fit, and computes with it by llama.cpp's own
//! functions: so both are timed, loaded and measured by the same lines.
//!
//! In: a question, on stdin. Out: a line of JSON for each stage.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use autoplace::Model;
use autoplace::memory::{ContextParams, Split};
use autoplace::plan::Request;
use serde::{Deserialize, Serialize};

use crate::fit::Asked;
use crate::job::say;
use crate::plain::Plain;
use crate::rig::{Free, Opened, Rig};

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Ours,
    /// llama.cpp's `common_fit_params`.
    Theirs,
}

/// What is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) side: Side,
    pub(crate) rig: Rig,
    pub(crate) model: PathBuf,
    /// Of so many tokens: ours plans by it, and theirs is given its parameters.
    pub(crate) request: Request,
    pub(crate) n_ctx: u32,
    /// Bytes that theirs is to leave free of each device. Ours has its headroom.
    pub(crate) margin: u64,
    pub(crate) threads: u32,
    /// How often it is asked again in the same process.
    pub(crate) again: usize,
    /// What is computed with the split; without it, nothing is loaded.
    pub(crate) work: Option<Work>,
}

/// What is computed, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Tokens that are generated.
    pub(crate) generated: usize,
    pub(crate) rounds: usize,
}

/// What a stage leaves behind.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The devices are open.
    Opened {
        free: Vec<Free>,
    },
    Asked {
        /// Milliseconds to the split: of the first time, and of those after it.
        milliseconds: Vec<f64>,
        split: Split,
        /// Bytes that are meant to stay free, over all devices.
        headroom: u64,
        context: ContextParams,
    },
    Loaded {
        free: Vec<Free>,
    },
    /// Tokens per second of prompts, and of generation: a pair for each round.
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

/// Reads a question from stdin and writes its stages to stdout. What fails is a stage too.
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
    let mut plain = Plain::load(&question.model, &chosen.devices, &chosen.split, &chosen.context, question.threads)?;
    say(&Stage::Loaded { free: rig.free()? })?;
    // Once unmeasured, as llama-bench does.
    plain.prompt(work.prompt)?;
    plain.generation(1)?;
    let speeds = (0..work.rounds)
        .map(|_| Ok((plain.prompt(work.prompt)?, plain.generation(work.generated)?)))
        .collect::<Result<_>>()?;
    say(&Stage::Measured { speeds })?;
    let depth = plain.fill()?;
    say(&Stage::Full { free: rig.free()?, depth })
}

/// What was chosen, and what it was chosen for.
struct Chosen {
    devices: Vec<String>,
    split: Split,
    headroom: u64,
    context: ContextParams,
}

/// Asks once, and adds how long it took.
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
            let asked = Asked {
                path: &question.model,
                devices: &rig.devices,
                params: &params,
                margins: &margins,
                threads: question.threads,
            };
            let begin = Instant::now();
            let answer = asked.fit()?;
            milliseconds.push(begin.elapsed().as_secs_f64() * 1e3);
            Ok(Chosen {
                devices: rig.devices.clone(),
                split: asked.read(answer)?,
                headroom: question.margin * rig.devices.len() as u64,
                context: params,
            })
        }
    }
}
