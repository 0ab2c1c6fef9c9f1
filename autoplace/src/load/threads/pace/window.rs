//! Steps of about the same number of tokens, which are timed together. In: the time of each step. Out: seconds per
//! step.

use std::time::Duration;

use super::super::TOLERANCE;
use super::company::Company;

/// Minimum size of a window: `STEPS` steps that last at least `WINDOW`, or `FEW_STEPS` steps that last at least
/// `LONG_WINDOW`.
const STEPS: u32 = 4;
pub(super) const WINDOW: Duration = Duration::from_millis(100);
pub(super) const FEW_STEPS: u32 = 2;
const LONG_WINDOW: Duration = Duration::from_millis(200);

/// A window is slow if it takes at least this multiple of the usual time.
const SLOW: f64 = 1.5;
/// The number of slow windows in a row before a trial. A single slow window may be a hiccup. As many fast windows are
/// needed for a trial of more threads.
const PATIENCE: u32 = 2;
/// After this number of windows in a row that are not slow, a change to more threads was right.
const CONFIRMED: u32 = 10;
/// The weight of a new window in the usual time, which is a running mean: steps become slower as the context grows.
const NEWEST: f64 = 1.0 / 8.0;
/// The weight of a new window in the mean of recent windows.
const NEWEST_OF_RECENT: f64 = 1.0 / 4.0;
/// The weight of a slow window after a trial that found no better number. The weight is small because the trial itself
/// may have shared its core with another program.
const BELIEF: f64 = 1.0 / 4.0;

/// Steps that are timed together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    pub(super) steps: u32,
    time: Duration,
}

impl Window {
    pub(super) fn add(&mut self, took: Duration) {
        self.steps += 1;
        self.time += took;
    }

    pub(super) fn seconds(self) -> f64 {
        self.time.as_secs_f64() / f64::from(self.steps.max(1))
    }

    /// Whether the window is at least as long as `n` windows.
    pub(super) fn is_full(self, n: u32) -> bool {
        (self.steps >= n * STEPS && self.time >= n * WINDOW)
            || (self.steps >= n * FEW_STEPS && self.time >= n * LONG_WINDOW)
    }
}

/// What is known about steps of one [size](size_of), with the present threads.
#[derive(Debug, Default)]
pub(super) struct Size {
    /// Whether other work runs in the first window. It is not watched later.
    pub(super) company: Company,
    /// The number of seconds that a step usually takes.
    usual: Option<f64>,
    window: Window,
    slow_windows: u32,
    /// Seconds per step before the last trial, if that trial measured this size.
    at_trial: Option<f64>,
    /// The number of windows in a row that are much faster than the steps before the last trial.
    fast_windows: u32,
    /// Seconds per step with fewer threads, if the last trial chose or kept more threads than these. Beside other work,
    /// the windows of a trial may be fast by chance, so later windows are compared with this time.
    pub(super) with_fewer: Option<f64>,
    /// The running mean of the windows since the last change.
    recent: Option<f64>,
    /// Whether the last trial chose more threads, and too few windows since then show that they are faster.
    pub(super) is_unconfirmed: bool,
    /// The number of windows in a row that are not slow.
    fit_windows: u32,
}

/// The size of a step with `tokens` tokens: half a power of two (1, 2, 3, 4, 5 to 6, 7 to 9, 10 to 13 and so on). Only
/// steps of one size are compared, because a batch takes longer the more tokens it has.
pub(super) fn size_of(tokens: usize) -> usize {
    (2.0 * (tokens.max(1) as f64).log2()).round() as usize
}

impl Size {
    /// Records a step. Returns the seconds per step of the window that the step completes. `is_beside_others` is true
    /// if there are more threads than free cores.
    pub(super) fn step(&mut self, took: Duration, is_beside_others: bool) -> Option<f64> {
        self.window.add(took);
        if !self.window.is_full(1) {
            return None;
        }
        let seen = std::mem::take(&mut self.window).seconds();
        let recent = self.recent.unwrap_or(seen);
        let recent = *self.recent.insert(recent + (seen - recent) * NEWEST_OF_RECENT);
        let longest_of_fewer = if is_beside_others { 1.0 } else { TOLERANCE };
        let is_slow = self.is_jump(seen) || self.with_fewer.is_some_and(|fewer| recent > longest_of_fewer * fewer);
        self.slow_windows = if is_slow { self.slow_windows + 1 } else { 0 };
        self.fit_windows = if is_slow { 0 } else { self.fit_windows + 1 };
        if self.fit_windows >= CONFIRMED {
            self.is_unconfirmed = false;
            self.with_fewer = self.with_fewer.filter(|_| is_beside_others);
        }
        if !is_slow {
            let usual = self.usual.unwrap_or(seen);
            self.usual = Some(usual + (seen - usual) * NEWEST);
        }
        let is_fast = self.at_trial.is_some_and(|before| SLOW * seen < before);
        self.fast_windows = if is_fast { self.fast_windows + 1 } else { 0 };
        Some(seen)
    }

    /// Whether the first window is over.
    pub(super) const fn is_known(&self) -> bool {
        self.usual.is_some()
    }

    /// Whether other work ran in the first window, and no trial has been made since. The usual time may then be that of
    /// too many threads.
    pub(super) fn is_doubtful(&mut self) -> bool {
        !matches!(self.company, Company::Unwatched) && !self.company.is_absent()
    }

    /// Whether the steps have become slow.
    pub(super) fn is_slow(&self) -> bool {
        self.slow_windows >= PATIENCE
    }

    /// Whether the steps have become much faster since the last trial.
    pub(super) fn is_fast(&self) -> bool {
        self.fast_windows >= PATIENCE
    }

    /// Whether a window of `seen` seconds per step is much slower than usual.
    fn is_jump(&self, seen: f64) -> bool {
        self.usual.is_some_and(|usual| seen > SLOW * usual)
    }

    /// The seconds per step that a trial is compared with, after a window of `seen` seconds per step. In company, a
    /// single window may be slow by chance, so the running mean is taken, unless the steps have just become slow.
    pub(super) fn before_trial(&self, seen: f64, has_company: bool) -> f64 {
        self.recent.filter(|_| has_company && !self.is_jump(seen)).unwrap_or(seen)
    }

    /// Records that a trial begins, after a window of `seen` seconds per step.
    pub(super) fn trial_begins(&mut self, seen: f64) {
        (self.slow_windows, self.fast_windows, self.at_trial) = (0, 0, Some(seen));
    }

    /// Records that a trial found no better number of threads. Before the trial, a step took `before` seconds. If there
    /// are more threads than free cores, a step with fewer threads took `with_fewer` seconds in the trial.
    pub(super) fn keep(&mut self, before: f64, with_fewer: Option<f64>) {
        let usual = self.usual.unwrap_or(before);
        self.usual = Some(usual + (before - usual) * BELIEF);
        (self.with_fewer, self.recent) = (with_fewer, None);
        self.company = Company::Absent;
    }

    /// Records that the number of threads changes, and that a step then takes `ratio` times as long as before.
    pub(super) fn change(&mut self, ratio: f64) {
        *self = Self { usual: self.usual.map(|usual| usual * ratio), ..Self::default() };
    }

    /// Sets the usual number of seconds.
    pub(super) fn set_usual(&mut self, seconds: f64) {
        self.usual = Some(seconds);
    }
}
