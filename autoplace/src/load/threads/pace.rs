//! Threads while generating: how long each step took flows in, the threads of the next one flow out.
//!
//! How steps are judged, and when other numbers are tried, is in docs/load-contract.md. A trial is held against the
//! window just before it, at the same depth of the context and with the same weights: a model that is slow for another
//! reason is as slow with fewer threads, and keeps those that it has. A trial that goes wrong costs time: it ends as
//! soon as it does, and puts off the next one.

use std::time::Duration;

use super::{ThreadBasis, Threads, ladder};

/// A window has this many steps and takes this long, or is that much longer.
const STEPS: u32 = 4;
const WINDOW: Duration = Duration::from_millis(100);
const FEW_STEPS: u32 = 2;
const LONG_WINDOW: Duration = Duration::from_millis(200);

/// A window that takes this many times as long as those before it is slow.
const SLOW: f64 = 1.5;
/// So many slow windows in a row: one alone may be a hiccup.
const PATIENCE: u32 = 2;
/// The part of the time that fewer threads, and more threads, may take to be kept.
const FEWER_PAY: f64 = 0.9;
const MORE_PAY: f64 = 0.95;
/// Windows of a trial of more threads: one quick window is soon had beside other programs.
const WINDOWS_OF_MORE: u32 = 2;
/// A trial that takes this many times as long as the window before it ends; after its first step, where that takes so
/// many times as long.
const HOPELESS: f64 = 2.0;
const HOPELESS_AT_ONCE: f64 = 8.0;
/// How much of a window's time the time that is known takes on: it follows a context that grows deeper.
const NEWEST: f64 = 1.0 / 8.0;

/// The first wait from one trial to the next, and the longest, but for dear ones.
const WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How many times as long as a trial has cost the wait for the next one is at least, up to a minute.
const REPAY: u32 = 50;
const LONGEST_REPAY: Duration = Duration::from_secs(60);
/// Time without a trial after which the waits are short again.
const QUIET: Duration = Duration::from_secs(30);

/// What decides how many threads compute the next step.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// Threads that compute prompts.
    prompt: u32,
    /// Numbers of threads, the most first; a single one where there is no choice.
    rungs: Vec<u32>,
    at: usize,
    /// What the load has chosen: more are tried above it too.
    usual: usize,
    /// The logarithm of the tokens of a step: others are not compared.
    size: u32,
    /// Seconds of such a step with these threads.
    known: Option<f64>,
    window: Window,
    slow_windows: u32,
    trial: Option<Trial>,
    /// Time of all steps so far.
    clock: Duration,
    /// When fewer and more threads may be tried again, and fewer where nothing is known of what a step takes.
    fewer_from: Duration,
    more_from: Duration,
    explore_from: Duration,
    wait: Duration,
    last_trial: Duration,
    change: Option<GeneratingThreads>,
}

/// The threads of the CPU that generate, as they were changed last. Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{threads} of {usual} threads generate: {after:.1} tokens per second instead of {before:.1}")]
pub struct GeneratingThreads {
    /// Threads.
    pub threads: u32,
    /// Threads that the load has chosen.
    pub usual: u32,
    /// The speed before the change.
    pub before: f64,
    /// The speed after it.
    pub after: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    steps: u32,
    time: Duration,
}

/// Another number of threads, for a window.
#[derive(Debug, Clone, Copy)]
struct Trial {
    rung: usize,
    /// Seconds of a step in the window before.
    before: f64,
    /// Whether nothing was known: then nothing is put off.
    explores: bool,
}

impl Window {
    fn seconds(self) -> f64 {
        self.time.as_secs_f64() / f64::from(self.steps.max(1))
    }

    /// Whether it is as long as so many windows.
    fn is_full(self, n: u32) -> bool {
        (self.steps >= n * STEPS && self.time >= n * WINDOW)
            || (self.steps >= n * FEW_STEPS && self.time >= n * LONG_WINDOW)
    }

    /// Whether it cannot come to what it is held against any more.
    fn is_hopeless(self, before: f64) -> bool {
        let times = self.seconds() / before;
        times > HOPELESS_AT_ONCE || (self.steps >= FEW_STEPS && times > HOPELESS)
    }
}

impl Pacer {
    pub(in crate::load) fn new(chosen: &Threads) -> Self {
        let Threads { generation, prompt, basis, .. } = *chosen;
        let rungs = match basis {
            ThreadBasis::Asked => vec![generation],
            ThreadBasis::FullOffload => ladder(generation),
            _ => ladder(prompt),
        };
        let at = rungs.iter().position(|&rung| rung <= generation).unwrap_or(0);
        let tried = chosen.tried.iter().find(|tried| tried.threads == rungs[at]);
        let known = tried.map(|tried| 1.0 / tried.tokens_per_second);
        Self { prompt, at, usual: at, rungs, known, more_from: WAIT, wait: WAIT, ..Self::default() }
    }

    /// Threads for a step that generates.
    pub(crate) fn threads(&self) -> u32 {
        self.rungs[self.trial.map_or(self.at, |trial| trial.rung)]
    }

    pub(crate) fn prompt(&self) -> u32 {
        self.prompt
    }

    /// The last change, while it stands.
    pub(crate) fn change(&self) -> Option<GeneratingThreads> {
        self.change
    }

    /// Takes note of a step that generated so many tokens, none of them a draft token.
    pub(crate) fn step(&mut self, tokens: usize, took: Duration) -> Option<GeneratingThreads> {
        let size = tokens.max(1).ilog2();
        if size != self.size {
            (self.size, self.known, self.trial, self.slow_windows) = (size, None, None, 0);
            self.window = Window::default();
        }
        self.clock += took;
        self.window.steps += 1;
        self.window.time += took;
        let Some(trial) = self.trial else {
            if self.window.is_full(1) {
                let seen = std::mem::take(&mut self.window).seconds();
                self.judge(seen);
            }
            return None;
        };
        let windows = if trial.rung < self.at { WINDOWS_OF_MORE } else { 1 };
        if !self.window.is_full(windows) && !self.window.is_hopeless(trial.before) {
            return None;
        }
        let window = std::mem::take(&mut self.window);
        if !self.decide(trial, window) {
            return None;
        }
        let speed = |seconds: f64| tokens as f64 / seconds;
        self.change = Some(GeneratingThreads {
            threads: self.rungs[self.at],
            usual: self.rungs[self.usual],
            before: speed(trial.before),
            after: speed(window.seconds()),
        });
        self.change
    }

    /// After a window with the threads that it has come to: whether others are worth a trial.
    fn judge(&mut self, seen: f64) {
        let is_slow = self.known.is_some_and(|known| seen > SLOW * known);
        self.slow_windows = if is_slow { self.slow_windows + 1 } else { 0 };
        if self.clock.saturating_sub(self.last_trial) >= QUIET {
            self.wait = WAIT;
        }
        let has_fewer = self.at + 1 < self.rungs.len();
        if has_fewer && self.known.is_none() && self.clock >= self.explore_from {
            self.explore_from = self.clock + LONGEST_WAIT;
            self.begin(self.at + 1, seen, true);
        } else if has_fewer && self.slow_windows >= PATIENCE && self.clock >= self.fewer_from {
            self.begin(self.at + 1, seen, false);
        } else if self.at > 0 && self.clock >= self.more_from {
            self.begin(self.at - 1, seen, false);
        }
        // What is slow is not what it is held against later, as long as fewer threads may help.
        if !(is_slow && has_fewer) {
            let known = self.known.unwrap_or(seen);
            self.known = Some(known + (seen - known) * NEWEST);
        }
    }

    fn begin(&mut self, rung: usize, before: f64, explores: bool) {
        (self.slow_windows, self.last_trial) = (0, self.clock);
        self.trial = Some(Trial { rung, before, explores });
    }

    /// Whether the threads of a trial are kept.
    fn decide(&mut self, trial: Trial, window: Window) -> bool {
        let Trial { rung, before, explores } = trial;
        let seen = window.seconds();
        self.trial = None;
        let is_fewer = rung > self.at;
        // Beside other programs one window is quicker than another: more threads are held against the usual one too.
        let usual = self.known.unwrap_or(before).min(before);
        let is_kept = if is_fewer { seen < before * FEWER_PAY } else { seen < usual * MORE_PAY };
        let cost = (seen - before).max(0.0) * f64::from(window.steps);
        if !is_fewer {
            self.more_from = self.clock + self.pause(cost);
        } else if is_kept {
            self.more_from = self.clock + self.wait;
        } else if rung + 1 < self.rungs.len() && seen < before * HOPELESS {
            // It may take more than one to get out of the others' way.
            self.begin(rung + 1, before, explores);
        } else {
            // A thread may share its core with another program for a window, while another core is free: what is seen
            // is taken for what it takes now, whatever the reason, after the third trial.
            if explores || self.wait > WAIT * 2 {
                self.known = Some(before);
            }
            if !explores {
                self.fewer_from = self.clock + self.pause(cost);
            }
        }
        if is_kept {
            (self.at, self.known) = (rung, Some(seen));
            self.fewer_from = self.clock;
        }
        is_kept
    }

    /// How long nothing is tried after a trial that took so many seconds longer than it would have without.
    fn pause(&mut self, cost: f64) -> Duration {
        let repay = (Duration::from_secs_f64(cost) * REPAY).min(LONGEST_REPAY);
        let pause = self.wait.max(repay);
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        pause
    }
}

#[cfg(test)]
mod tests;
