//! A process that compares the library with llama.cpp's own functions, which know no worker.
//!
//! In: a question on stdin. Out: a line of JSON for each stage. A question about a split lets the library or
//! llama.cpp's own fit determine it, and computes with it through llama.cpp's own functions. So the same code times,
//! loads and measures both sides. A question about turns lets the library and llama.cpp's own loop compute in turns on
//! the same split.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use autoplace::Model;
use autoplace::generate::Prompt;
use autoplace::llama_sys::Token;
use autoplace::memory::{ContextParams, Split};
use autoplace::plan::Request;
use autoplace_measure::FreeBytes;
use bare_llama::{Bare, FitRequest, in_turns};
use serde::{Deserialize, Serialize};

use crate::rig::{Opened, Rig};

/// The side that determines the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Ours,
    /// llama.cpp's `common_fit_params`.
    Theirs,
}

/// A question, and what it is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) rig: Rig,
    pub(crate) model: PathBuf,
    pub(crate) threads: u32,
    pub(crate) about: About,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum About {
    Split(SplitQuestion),
    /// The library and llama.cpp's own loop compute in turns on the split of the plan for this request. The weights are
    /// loaded twice, once for each side.
    Turns {
        request: Request,
        work: Work,
    },
}

/// A question to one side for a split.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SplitQuestion {
    pub(crate) side: Side,
    /// The request. Our side plans for this request, and llama.cpp's fit gets the request's parameters.
    pub(crate) request: Request,
    pub(crate) n_ctx: u32,
    /// Bytes that llama.cpp's fit should leave free on each device. Our side uses its own headroom.
    pub(crate) margin: u64,
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
        free: Vec<FreeBytes>,
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
        free: Vec<FreeBytes>,
    },
    /// Tokens per second of each round, first of the prompt, then of the generation.
    Measured {
        speeds: Vec<(f64, f64)>,
    },
    /// Tokens per second of each round of turns, first of the prompt, then of the generation: the library's, and those
    /// of llama.cpp's own loop.
    Turned {
        ours: Vec<(f64, f64)>,
        theirs: Vec<(f64, f64)>,
    },
    /// The context is full.
    Full {
        free: Vec<FreeBytes>,
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

/// Reports to the parent by a line on stdout.
fn say(stage: &Stage) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, stage)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn answer(question: &Question) -> Result<()> {
    let Question { rig, model, threads, about } = question;
    let rig = rig.open()?;
    match about {
        About::Split(asked) => split(&rig, model, *threads, asked),
        About::Turns { request, work } => turns(&rig, model, *threads, request, *work),
    }
}

/// Determines a split, and computes with it through llama.cpp's own functions.
fn split(rig: &Opened, model: &Path, threads: u32, asked: &SplitQuestion) -> Result<()> {
    say(&Stage::Opened { free: rig.free()? })?;
    let mut milliseconds = Vec::new();
    let mut chosen = ask(asked, model, threads, rig, &mut milliseconds)?;
    for _ in 0..asked.again {
        chosen = ask(asked, model, threads, rig, &mut milliseconds)?;
    }
    say(&Stage::Asked {
        milliseconds,
        split: chosen.split.clone(),
        headroom: chosen.headroom,
        context: chosen.context.clone(),
    })?;
    let Some(work) = asked.work else {
        return Ok(());
    };
    let mut bare = Bare::with_split(model, &chosen.devices, &chosen.split, &chosen.context, threads)?;
    say(&Stage::Loaded { free: rig.free()? })?;
    // The first round is not measured, as in llama-bench.
    bare.prompt(work.prompt)?;
    bare.generation(1)?;
    let speeds = (0..work.rounds).map(|_| plain(&mut bare, work)).collect::<Result<_>>()?;
    say(&Stage::Measured { speeds })?;
    let depth = bare.fill()?;
    say(&Stage::Full { free: rig.free()?, depth })
}

/// Computes in turns with the library and with llama.cpp's own loop.
fn turns(rig: &Opened, path: &Path, threads: u32, request: &Request, work: Work) -> Result<()> {
    let builder = Model::builder(path).request(request.clone()).machine(rig.machine()?).n_threads(threads);
    let model = builder.load()?;
    let plan = model.placement();
    let devices: Vec<String> = plan.gpus().filter_map(|gpu| gpu.device.clone()).collect();
    let mut bare = Bare::with_split(path, &devices, &plan.split(), &plan.context, threads)?;
    // The first round is not measured, as in llama-bench.
    ours(&model, work)?;
    plain(&mut bare, work)?;
    let pairs = in_turns(&mut bare, |round| round < work.rounds, |_| ours(&model, work), |bare| plain(bare, work))?;
    let (ours, theirs) = pairs.into_iter().unzip();
    say(&Stage::Turned { ours, theirs })
}

/// The library's speed of a prompt and of a generation, each in an empty context, in tokens per second. Sampling is
/// greedy.
fn ours(model: &Model, work: Work) -> Result<(f64, f64)> {
    let n_vocab = model.native()?.vocab().n_tokens() as usize;
    let run = |prompt: usize, tokens: usize| {
        let prompt: Vec<Token> = (0..prompt).map(|index| ((index * 7919 + 13) % n_vocab) as Token).collect();
        let request = model.generate(Prompt::tokens(prompt)).temp(0.0).cache_prompt(false).ignore_eos();
        anyhow::Ok(request.max_tokens(tokens).stream()?.into_text()?.1)
    };
    let of_prompt = run(work.prompt, 1)?.prompt_tokens_per_second();
    // The first token is computed with the prompt, so it does not count.
    let of_text = run(1, work.generated + 1)?.tokens_per_second();
    Ok((of_prompt, of_text))
}

/// The speed of a prompt and of a generation in llama.cpp's own loop, in tokens per second.
fn plain(bare: &mut Bare, work: Work) -> Result<(f64, f64)> {
    Ok((bare.prompt(work.prompt)?, bare.generation(work.generated)?))
}

/// A chosen split, with its devices and context.
struct Chosen {
    devices: Vec<String>,
    split: Split,
    headroom: u64,
    context: ContextParams,
}

/// Asks for the split once, and appends the duration.
fn ask(asked: &SplitQuestion, model: &Path, threads: u32, rig: &Opened, milliseconds: &mut Vec<f64>) -> Result<Chosen> {
    let mut params = asked.request.params.clone();
    params.n_ctx = asked.n_ctx;
    match asked.side {
        Side::Ours => {
            let request = asked.request.clone();
            let begin = Instant::now();
            let plan = Model::builder(model)
                .request(request.n_ctx(asked.n_ctx))
                .machine(rig.machine()?)
                .n_threads(threads)
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
            let margins = vec![asked.margin; rig.devices.len()];
            let request =
                FitRequest { path: model, devices: &rig.devices, params: &params, margins: &margins, threads };
            let begin = Instant::now();
            let fit = request.fit()?;
            milliseconds.push(begin.elapsed().as_secs_f64() * 1e3);
            Ok(Chosen {
                devices: rig.devices.clone(),
                split: request.read(fit)?,
                headroom: asked.margin * rig.devices.len() as u64,
                context: params,
            })
        }
    }
}
