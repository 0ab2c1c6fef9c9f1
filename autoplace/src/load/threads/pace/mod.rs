//! Adjusts the threads during generation. In: the duration of each step. Out: the threads of the next step.
//!
//! The rule ([`choose`]) takes the largest number of threads whose measured time is within a tenth of the fastest. A
//! trial measures other numbers of threads, each for some steps, and then the rule decides. If other work shared the
//! processors during the first window, the first trial runs after that window; otherwise it runs after [`QUIET_START`].
//! Trials also run when steps become slow, and while fewer threads than one per core generate. A trial is compared with
//! the window just before it, which has the same depth and the same weights. If a model is slow for another reason, it
//! is just as slow with fewer threads, and the number of threads stays. docs/load-contract.md has the thresholds.

use std::time::Duration;

use super::{ThreadBasis, Threads, choose, ladder};
use crate::machine::ConditionsWatch;

/// Minimum size of a window: `STEPS` steps that last at least `WINDOW`, or `FEW_STEPS` steps that last at least
/// `LONG_WINDOW`.
const STEPS: u32 = 4;
const WINDOW: Duration = Duration::from_millis(100);
const FEW_STEPS: u32 = 2;
const LONG_WINDOW: Duration = Duration::from_millis(200);

/// A window is slow if it takes at least this multiple of the usual time.
const SLOW: f64 = 1.5;
/// The number of slow windows in a row before a trial. A single slow window may be a hiccup.
const PATIENCE: u32 = 2;
/// The number of windows in which a larger number of threads is measured. While other programs run, a single window may
/// be fast by chance.
const WINDOWS_OF_MORE: u32 = 2;
/// If a number of threads takes at least this multiple of the fastest time, it is not measured further.
const HOPELESS: f64 = 2.0;
/// The weight of a new window in the mean from which the usual time results. The usual time grows slowly with the
/// context.
const NEWEST: f64 = 1.0 / 8.0;
/// The weight of a slow window after a trial that found no better number. The weight is small because the trial itself
/// may have shared its core with another program.
const BELIEF: f64 = 1.0 / 4.0;

/// Duration of generation before the first trial on a quiet machine. A short text would gain nothing from a trial.
const QUIET_START: Duration = Duration::from_secs(2);

/// A trial is followed by a pause of a hundred times its cost, within these bounds.
const REPAY: u32 = 100;
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Chooses the number of threads of the next step.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// The number of threads that compute prompts.
    prompt: u32,
    /// The numbers of threads to choose from, in descending order.
    rungs: Vec<u32>,
    at: usize,
    /// Whether a trial has run.
    has_tried: bool,
    company: Company,
    /// The logarithm of the number of tokens per step. Steps of other sizes are not compared.
    size: u32,
    /// The number of seconds that a step of this size usually takes with the present threads.
    usual: Option<f64>,
    window: Window,
    slow_windows: u32,
    trial: Option<Trial>,
    /// The time of all steps so far, and the time before which no further trial begins.
    clock: Duration,
    next_trial: Duration,
    /// The last change of the number of threads.
    change: Option<GeneratingThreads>,
}

/// Whether other work shared the processors during the first window.
#[derive(Debug, Default)]
enum Company {
    /// Nothing was generated yet.
    #[default]
    Unwatched,
    Watched(ConditionsWatch),
    /// There was other work, or the system does not report the necessary counters.
    Possible,
    Absent,
}

impl Company {
    /// Starts watching at the first step.
    fn watch(&mut self) {
        if matches!(self, Self::Unwatched) {
            *self = Self::Watched(ConditionsWatch::begin());
        }
    }

    /// Returns whether no other work ran in the first window. The first call, at the end of that window, decides.
    fn is_absent(&mut self) -> bool {
        if let Self::Watched(watch) = self {
            let seen = watch.so_far();
            let is_reported = seen.waited.is_some() || seen.others.is_some();
            *self = if is_reported && seen.is_quiet() { Self::Absent } else { Self::Possible };
        }
        matches!(self, Self::Absent)
    }
}

/// The number of generating threads after its last change. Speeds are in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{threads} of {most} threads generate: {after:.1} tokens per second instead of {before:.1}")]
pub struct GeneratingThreads {
    /// The number of threads that generate.
    pub threads: u32,
    /// The number of threads on a quiet machine: one per core, or fewer if GPUs compute all layers.
    pub most: u32,
    /// The speed before the change; 0 if the number never changed.
    pub before: f64,
    /// The speed after the change; 0 if the number never changed.
    pub after: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    steps: u32,
    time: Duration,
}

/// A trial of other numbers of threads, one after the other.
#[derive(Debug)]
struct Trial {
    rung: usize,
    /// The rungs that were measured, with their seconds per step. The first entry is the present rung, measured in the
    /// window before the trial.
    seen: Vec<(usize, f64)>,
    /// By how many seconds the steps of the trial were slower than the same number of steps at the present rung.
    cost: f64,
    /// Whether this is the first trial. The first trial does not delay the next one.
    is_first: bool,
}

impl Window {
    fn seconds(self) -> f64 {
        self.time.as_secs_f64() / f64::from(self.steps.max(1))
    }

    /// Whether the window is at least as long as `n` windows.
    fn is_full(self, n: u32) -> bool {
        (self.steps >= n * STEPS && self.time >= n * WINDOW)
            || (self.steps >= n * FEW_STEPS && self.time >= n * LONG_WINDOW)
    }
}

impl Trial {
    fn fastest(&self) -> f64 {
        self.seen.iter().map(|seen| seen.1).fold(f64::INFINITY, f64::min)
    }

    /// Seconds per step in the window before the trial.
    fn before(&self) -> f64 {
        self.seen[0].1
    }
}

impl Pacer {
    pub(in crate::load) fn new(chosen: &Threads) -> Self {
        let Threads { generation, prompt, basis, .. } = *chosen;
        let rungs = match basis {
            ThreadBasis::Asked => vec![generation],
            ThreadBasis::FullOffload | ThreadBasis::PerCore | ThreadBasis::TimeLimit => ladder(generation),
        };
        Self { prompt, rungs, ..Self::default() }
    }

    /// The number of threads for a step that generates.
    pub(crate) fn threads(&self) -> u32 {
        self.rungs[self.trial.as_ref().map_or(self.at, |trial| trial.rung)]
    }

    pub(crate) fn prompt(&self) -> u32 {
        self.prompt
    }

    /// The current number of threads, and the change that led to it.
    pub(crate) fn generating(&self) -> GeneratingThreads {
        let unchanged =
            GeneratingThreads { threads: self.rungs[self.at], most: self.rungs[0], before: 0.0, after: 0.0 };
        self.change.unwrap_or(unchanged)
    }

    /// Records a step with `tokens` generated tokens, none of them a draft token. Returns a change of the threads.
    pub(crate) fn step(&mut self, tokens: usize, took: Duration) -> Option<GeneratingThreads> {
        if self.rungs.len() > 1 {
            self.company.watch();
        }
        let size = tokens.max(1).ilog2();
        if size != self.size {
            (self.size, self.usual, self.trial, self.slow_windows) = (size, None, None, 0);
            self.window = Window::default();
        }
        self.clock += took;
        self.window.steps += 1;
        self.window.time += took;
        match self.trial.take() {
            Some(trial) => self.go_on(trial, tokens),
            None => {
                if self.window.is_full(1) {
                    let seen = std::mem::take(&mut self.window).seconds();
                    self.judge(seen);
                }
                None
            }
        }
    }

    /// After a window with the chosen number of threads, decides whether to try other numbers.
    fn judge(&mut self, seen: f64) {
        let is_slow = self.usual.is_some_and(|usual| seen > SLOW * usual);
        self.slow_windows = if is_slow { self.slow_windows + 1 } else { 0 };
        if !is_slow {
            let usual = self.usual.unwrap_or(seen);
            self.usual = Some(usual + (seen - usual) * NEWEST);
        }
        if self.rungs.len() < 2 {
            return;
        }
        let is_first = !self.has_tried;
        let begins = if is_first {
            let is_put_off = self.company.is_absent() && self.clock < QUIET_START;
            !is_put_off || self.slow_windows >= PATIENCE
        } else {
            (self.at > 0 || self.slow_windows >= PATIENCE) && self.clock >= self.next_trial
        };
        if begins {
            (self.has_tried, self.slow_windows) = (true, 0);
            let rung = usize::from(self.at == 0);
            self.trial = Some(Trial { rung, seen: vec![(self.at, seen)], cost: 0.0, is_first });
        }
    }

    /// Continues a trial after a step. The trial ends after the last number of threads. It also ends if a number below
    /// the present one is hopeless, because even fewer threads would take even longer.
    fn go_on(&mut self, mut trial: Trial, tokens: usize) -> Option<GeneratingThreads> {
        let Window { steps, .. } = self.window;
        let seconds = self.window.seconds();
        let is_fewer = trial.rung > self.at;
        let is_hopeless = steps >= FEW_STEPS && seconds > HOPELESS * trial.fastest();
        if !is_hopeless && !self.window.is_full(if is_fewer { 1 } else { WINDOWS_OF_MORE }) {
            self.trial = Some(trial);
            return None;
        }
        self.window = Window::default();
        trial.cost += (seconds - trial.before()) * f64::from(steps);
        trial.seen.push((trial.rung, seconds));
        trial.rung += 1;
        if trial.rung == self.at {
            trial.rung += 1;
        }
        if trial.rung < self.rungs.len() && !(is_fewer && is_hopeless) {
            self.trial = Some(trial);
            return None;
        }
        self.decide(&trial, tokens)
    }

    fn decide(&mut self, trial: &Trial, tokens: usize) -> Option<GeneratingThreads> {
        if !trial.is_first {
            let wait = Duration::from_secs_f64(trial.cost.max(0.0)) * REPAY;
            self.next_trial = self.clock + wait.clamp(MIN_WAIT, MAX_WAIT);
        }
        let speeds = trial.seen.iter().map(|&(rung, seconds)| (self.rungs[rung], 1.0 / seconds));
        let (threads, speed) = choose(speeds)?;
        let before = trial.before();
        let at = self.rungs.iter().position(|&rung| rung == threads)?;
        if at == self.at {
            let usual = self.usual.unwrap_or(before);
            self.usual = Some(usual + (before - usual) * BELIEF);
            return None;
        }
        (self.at, self.usual) = (at, Some(1.0 / speed));
        let tokens = tokens as f64;
        let (most, before, after) = (self.rungs[0], tokens / before, tokens * speed);
        self.change = Some(GeneratingThreads { threads, most, before, after });
        self.change
    }
}

#[cfg(test)]
mod tests;
