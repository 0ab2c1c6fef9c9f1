//! Whether a placement holds: the same work again and again, at the end of its context, while the machine is watched.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::conditions::{Conditions, Observer};
use super::measurement::{Measured, Row, Sample, Speed};
use super::run::{Arm, Measure, Progress, now, text};
use super::{Error, Point, Protocol};
use crate::gguf::Header;
use crate::load::{self, Model};
use crate::machine::Bytes;
use crate::plan::{Context, GpuLayers, Plan, Request, SavedPlan};

/// Percent of ten seconds in which a thread may have waited for a core, and for memory.
const MOST_CPU_PRESSURE: f32 = 25.0;
const MOST_MEMORY_PRESSURE: f32 = 5.0;
/// Placements that are tried, each smaller than the one before.
const MOST_TRIALS: usize = 8;
/// A context that is halved no further.
const LEAST_CONTEXT: u32 = 512;

/// How a placement is tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ready {
    /// How often the same work is done; at least twice.
    pub runs: u32,
    /// The time that the runs are spread over.
    pub over: Duration,
    /// The share by which the last runs may be slower or faster than the first.
    pub drift: f64,
}

impl Default for Ready {
    /// Ten runs in ten minutes, and 5 %.
    fn default() -> Self {
        Self { runs: 10, over: Duration::from_secs(600), drift: 0.05 }
    }
}

/// What came of a [readiness check](Measure::ready).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Readiness {
    /// The placements that were tried, at most eight, each smaller than the one before.
    pub trials: Vec<Trial>,
    /// The plan that passed, to be followed ([`ModelBuilder::follow`](crate::ModelBuilder::follow)).
    pub plan: Option<SavedPlan>,
    /// What else there is to say, for people.
    pub notes: Vec<String>,
}

/// One placement, run again and again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trial {
    /// Where the model was.
    pub placement: Measured,
    /// The generations, a sample for each run.
    pub runs: Row,
    /// How the machine was meanwhile.
    pub conditions: Conditions,
    /// What was judged.
    pub checks: Vec<Check>,
}

/// One thing that was judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Check {
    /// What.
    pub aspect: Aspect,
    /// Whether it is as it must be. What nothing tells does not fail.
    pub passed: bool,
    /// What was found, and what it is held against.
    pub found: String,
}

/// What is judged of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Aspect {
    /// The last runs are as fast as the first.
    #[error("drift")]
    Drift,
    /// The plan's margin is still free on each GPU.
    #[error("headroom")]
    Headroom,
    /// Nothing but a power limit holds clocks down.
    #[error("clocks")]
    Clocks,
    /// Nothing is swapped.
    #[error("swap")]
    Swap,
    /// Threads wait for memory in at most 5 % of the time.
    #[error("memory")]
    Memory,
    /// Threads wait for a core in at most 25 % of the time.
    #[error("processor")]
    Processor,
}

impl Trial {
    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    fn fails(&self, aspects: &[Aspect]) -> bool {
        self.checks.iter().any(|check| !check.passed && aspects.contains(&check.aspect))
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed { "pass" } else { "FAIL" };
        write!(f, "{verdict}  {:<9}  {}", self.aspect.to_string(), self.found)
    }
}

impl Measure<'_> {
    /// Whether the placement of the request holds: run again and again, at the end of the context.
    ///
    /// A placement whose GPUs fail (headroom, clocks, drift) is tried again with fewer layers on them, one for which
    /// the host's memory is short (swap, pressure) with half of the context, until one passes. A processor that others
    /// keep busy no placement mends: there it ends, as with the smallest placement.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn ready(mut self, ready: &Ready) -> Result<Readiness, Error> {
        let header = Header::open(&self.path).map_err(load::Error::from)?;
        let mut request = self.request.clone();
        let mut readiness = Readiness { trials: Vec::new(), plan: None, notes: Vec::new() };
        loop {
            let tried = readiness.trials.len();
            if tried == MOST_TRIALS {
                readiness.notes.push(format!("{MOST_TRIALS} placements were tried, and no more are"));
                break;
            }
            let model = match self.builder(&Arm::asked("", request.clone())).load() {
                Ok(model) => model,
                Err(error) if tried == 0 => return Err(error.into()),
                Err(error) => {
                    readiness.notes.push(format!("nothing smaller can be loaded: {error}"));
                    break;
                }
            };
            let plan = model.placement();
            let Some(trial) = self.trial(&model, ready, tried)? else {
                readiness.notes.push("stopped before it was known".to_owned());
                break;
            };
            let passed = trial.passed();
            let next = smaller(&request, &plan, &trial);
            readiness.trials.push(trial);
            if passed {
                let saved = SavedPlan::new(Plan::clone(&plan), request, &header);
                readiness.plan = Some(saved.map_err(load::Error::from)?);
                break;
            }
            match next {
                Some(next) => request = next,
                None => {
                    readiness.notes.push("no smaller placement would mend that".to_owned());
                    break;
                }
            }
        }
        Ok(readiness)
    }

    /// `None`: stopped.
    fn trial(&mut self, model: &Model, ready: &Ready, tried: usize) -> Result<Option<Trial>, Error> {
        let (plan, runs) = (model.placement(), ready.runs.max(2));
        let n_ctx = plan.context.n_ctx_seq();
        let protocol = (self.protocol)(Protocol::new(n_ctx)).depths([0]).rounds(1);
        protocol.check()?;
        let tokens = protocol.tokens(model, n_ctx)?;
        let deepest = n_ctx - protocol.n_gen - 1 - tokens.longest() as u32;
        let name = format!("ngl {}, trial {}", plan.n_gpu_layers, tried + 1);
        let mut point = Point::new(&name);
        // Apart: it fills the context, and finds everything cold.
        text(model, &tokens, (0, deepest), protocol.n_gen)?;
        let mut observer = Observer::new(model, &self.system);
        observer.look(&mut point.conditions);
        let begin = Instant::now();
        for run in 0..runs {
            let share = f64::from(run) / f64::from(runs - 1);
            let due = Duration::try_from_secs_f64(ready.over.as_secs_f64() * share).unwrap_or(Duration::MAX);
            loop {
                let done = f64::from(run) / f64::from(runs);
                if !(self.progress)(&Progress { name: &name, done }) {
                    return Ok(None);
                }
                let Some(left) = due.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                    break;
                };
                thread::sleep(left.min(Duration::from_secs(1)));
            }
            let begun = now();
            let which = run as usize % tokens.prompts.len();
            let [_, generation] = text(model, &tokens, (which, deepest), protocol.n_gen)?;
            let shape = [0, protocol.n_gen, deepest + tokens.prompts[which].len() as u32];
            point.add(shape, Sample { round: run, ns: generation }, &begun, None);
            observer.look(&mut point.conditions);
        }
        let Point { mut rows, conditions, .. } = point;
        // Of prompts of different lengths each has a row; as the depths go they are one.
        let mut row = rows.swap_remove(0);
        row.samples.extend(rows.into_iter().flat_map(|row| row.samples));
        row.samples.sort_by_key(|sample| sample.round);
        row.speed = Speed::of(row.speeds());
        let free = observer.least_free();
        let checks = checks(&plan, (&row, ready.drift), &conditions, free);
        let placement = Measured::of(&model.report());
        Ok(Some(Trial { placement, runs: row, conditions, checks }))
    }
}

/// What is asked for next, where this failed.
fn smaller(request: &Request, plan: &Plan, trial: &Trial) -> Option<Request> {
    let on_gpu = [Aspect::Headroom, Aspect::Clocks, Aspect::Drift];
    if trial.fails(&[Aspect::Processor]) {
        None
    } else if trial.fails(&[Aspect::Swap, Aspect::Memory]) {
        let half = plan.context.n_ctx / 2;
        (half >= LEAST_CONTEXT).then(|| request.clone().context(Context::Tokens(half)))
    } else if trial.fails(&on_gpu) && plan.n_gpu_layers > 0 {
        let fewer = plan.n_gpu_layers - (plan.n_gpu_layers / 8).max(1);
        Some(request.clone().n_gpu_layers(GpuLayers::AtMost(fewer)))
    } else {
        None
    }
}

fn checks(plan: &Plan, (runs, most): (&Row, f64), conditions: &Conditions, free: &[Option<u64>]) -> Vec<Check> {
    let check = |aspect, passed, found| Check { aspect, passed, found };
    let share = drift(runs);
    let drifted = format!(
        "{:+.1} % from the first third to the last, {:.0} % at most; {:.1} tok/s",
        share * 100.0,
        most * 100.0,
        runs.speed.median
    );
    let mut checks = vec![check(Aspect::Drift, share.abs() <= most, drifted)];
    if plan.gpus().next().is_some() {
        let told = plan.gpus().zip(free).filter_map(|(gpu, free)| {
            let (free, margin) = ((*free)?, gpu.headroom.margin);
            let told = format!("{} of {} free, {} at least", Bytes(free), gpu.name, Bytes(margin));
            Some((told, free >= margin))
        });
        let (found, passed): (Vec<String>, Vec<bool>) = told.unzip();
        let found = if found.is_empty() { "not told".to_owned() } else { found.join("; ") };
        checks.push(check(Aspect::Headroom, passed.iter().all(|passed| *passed), found));
        let held = conditions.throttle.iter().filter(|reason| reason.is_fault());
        let held: Vec<String> = held.map(ToString::to_string).collect();
        let clock = conditions.clock_mhz.map_or(String::new(), |it| format!(", {it} MHz at least"));
        let celsius = conditions.temperature.map_or(String::new(), |it| format!(", {it} °C"));
        let found =
            if held.is_empty() { "not held down".to_owned() } else { format!("held down by {}", held.join(", ")) };
        checks.push(check(Aspect::Clocks, held.is_empty(), format!("{found}{clock}{celsius}")));
    }
    let told = |told: Option<String>| told.unwrap_or_else(|| "not told".to_owned());
    let pages_out = conditions.swapped_out.unwrap_or(0);
    let swapped = conditions.swapped_in.map(|pages_in| format!("{pages_in} pages in, {pages_out} out, 0 at most"));
    let is_quiet = conditions.swapped_in.unwrap_or(0).max(pages_out) == 0;
    checks.push(check(Aspect::Swap, is_quiet, told(swapped)));
    let pressure = |aspect, found: Option<f32>, most: f32| {
        let waited = found.map(|found| format!("waited for {found:.1} % of the time, {most:.0} % at most"));
        check(aspect, found.is_none_or(|found| found <= most), told(waited))
    };
    checks.push(pressure(Aspect::Memory, conditions.memory_pressure, MOST_MEMORY_PRESSURE));
    checks.push(pressure(Aspect::Processor, conditions.cpu_pressure, MOST_CPU_PRESSURE));
    checks
}

/// By how much the last third of the runs is faster than the first, by the medians.
fn drift(runs: &Row) -> f64 {
    let speeds: Vec<f64> = runs.speeds().collect();
    let third = (speeds.len() / 3).max(1);
    let median = |speeds: &[f64]| Speed::of(speeds.iter().copied()).median;
    let (first, last) = (median(&speeds[..third]), median(&speeds[speeds.len() - third..]));
    last / first.max(f64::MIN_POSITIVE) - 1.0
}
