//! The process that measures a sweep over `n_gpu_layers`, with `autoplace_measure`. Each placement is loaded in its own
//! worker, so a crash of a driver becomes a point without a speed.
//!
//! In: a [`Sweep`] on stdin. Out: the measurement, as a line of JSON.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use autoplace::machine::{Bandwidth, BandwidthSource, Machine};
use autoplace::plan::Request;
use autoplace::{Isolation, ModelBuilder, WorkerProcess};
use autoplace_measure::{Measure, Measurement, Steps};
use serde::{Deserialize, Serialize};

use crate::job::say;
use crate::rig::{Opened, Rig};

/// The variable that contains the simulated cards of the parent process, for a worker.
const CARDS: &str = "GPU_CHECK_CARDS";

/// The texts at each placement. They are computed in this order. Each text is repeated or cut so that it has the
/// prompt's length.
const TEXTS: [&str; 3] = [
    "The placement of a model decides how fast it answers, and a layer too many on the host costs most.",
    "Once upon a time a card had room for all layers but one, and nobody knew why the model was slow.",
    "What a plan predicts stands beside what was measured, and where they differ the plan has to learn.",
];

/// Assumed read bandwidth of a host that computes for a simulated card, in bytes per second.
const SIMULATED: u64 = 20_000_000_000;

/// A sweep to measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) rig: Rig,
    pub(crate) model: PathBuf,
    pub(crate) request: Request,
    /// Tokens of each prompt.
    pub(crate) n_prompt: u32,
    /// Tokens to generate after each prompt.
    pub(crate) n_gen: u32,
    /// Whether every number of layers is measured. Otherwise only the numbers of [`Steps::Edge`] are, most of them near
    /// the largest number that fits.
    pub(crate) is_full: bool,
    pub(crate) threads: Option<u32>,
    /// Seconds after which no further placement begins. Two placements are always measured.
    pub(crate) seconds: Option<f64>,
    /// Maximum number of placements.
    pub(crate) cases: Option<usize>,
}

/// The answer of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one of them exists at a time")]
pub(crate) enum Stage {
    Measured {
        measurement: Measurement,
        /// The placements that were loaded. The others were refused, or there was no time left.
        tried: BTreeSet<String>,
    },
    Failed {
        error: String,
    },
}

/// Reads a sweep from stdin and writes its measurement to stdout. A failure is also an answer.
pub(crate) fn main() -> Result<()> {
    let sweep: Sweep = serde_json::from_reader(std::io::stdin().lock()).context("no sweep on stdin")?;
    match measured(&sweep) {
        Ok(stage) => say(&stage),
        Err(error) => say(&Stage::Failed { error: format!("{error:#}") }),
    }
}

/// In a worker, adds the simulated cards of the parent process. The cards exist as long as the returned value.
pub(crate) fn cards_of_worker() -> Result<Option<Opened>> {
    let Some(cards) = std::env::var_os(CARDS) else { return Ok(None) };
    let rig: Rig = serde_json::from_str(&cards.to_string_lossy()).context(CARDS)?;
    rig.open().map(Some)
}

fn measured(sweep: &Sweep) -> Result<Stage> {
    let rig = sweep.rig.open()?;
    let mut machine = rig.machine()?;
    let mut worker = WorkerProcess::own_executable();
    if matches!(sweep.rig, Rig::Simulated(_)) {
        worker = worker.env(CARDS, serde_json::to_string(&sweep.rig)?);
        as_fast_as_the_host(&mut machine);
    }
    let begin = Instant::now();
    let late = sweep.seconds.map(Duration::from_secs_f64);
    let mut tried = BTreeSet::new();
    let measure = Measure::new(&sweep.model)
        .request(sweep.request.clone())
        .protocol(|usual| {
            let texts = TEXTS.map(str::to_owned);
            usual.n_prompt(sweep.n_prompt).n_gen(sweep.n_gen).depths([0]).rounds(1).prompts(texts)
        })
        .load_with(|builder| {
            let builder = builder.machine(machine.clone()).isolation(Isolation::Process(worker.clone()));
            sweep.threads.into_iter().fold(builder, ModelBuilder::n_threads)
        })
        .progress(|progress| {
            if !tried.contains(progress.name) {
                let is_late = tried.len() > 1 && late.is_some_and(|late| begin.elapsed() >= late);
                if is_late || sweep.cases.is_some_and(|cases| tried.len() >= cases) {
                    return false;
                }
                tried.insert(progress.name.to_owned());
            }
            true
        });
    let measurement = measure.sweep(if sweep.is_full { Steps::Full } else { Steps::Edge })?;
    Ok(Stage::Measured { measurement, tried })
}

/// Gives simulated cards the read speed of the host, because the host computes for them.
fn as_fast_as_the_host(machine: &mut Machine) {
    machine.host = machine.host.clone().bandwidth(SIMULATED);
    for gpu in &mut machine.gpus {
        gpu.bandwidth = Some(Bandwidth::new(SIMULATED, BandwidthSource::Stated));
    }
}
