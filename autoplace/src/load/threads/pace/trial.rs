//! A trial of other numbers of threads. In: the time of each step. Out: the seconds per step of each number.

use std::time::{Duration, Instant};

use super::super::CLOSE;
use super::window::{FEW_STEPS, Window};

/// The number of windows in which a larger number of threads is measured. While other programs run, a single window may
/// be fast by chance.
const WINDOWS_OF_MORE: u32 = 2;
/// The number of windows in which a number of threads is measured that is larger than the number of free cores. Such
/// threads may be fast for a while, because threads that have slept run before the other work.
const WINDOWS_BESIDE: u32 = 5;
/// The number of windows after which that measurement ends if these threads are not clearly faster. The system may need
/// some steps until it runs the other work on other cores. If a step takes more than [`WORSE`] times as long, a window
/// is enough.
const WINDOWS_OF_DOUBT: u32 = 3;
const WORSE: f64 = 1.3;
/// If a number of threads takes at least this multiple of the fastest time, it is not measured further.
const HOPELESS: f64 = 2.0;
/// If a larger number of threads takes at least this multiple of the fastest time in a single step, it is not measured
/// further. One such step beside other programs may take seconds.
const HOPELESS_STEP: f64 = 8.0;

/// A trial is given up if this time, or this number of other steps, passed without a step of its size. The machine may
/// have changed meanwhile, and steps of another size can be measured instead.
const MAX_GAP: Duration = Duration::from_secs(30);
const MAX_OTHER_STEPS: u32 = 32;

/// The rungs when a trial begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rungs {
    /// The present rung.
    pub(super) at: usize,
    /// The rung of the free cores.
    pub(super) free: usize,
    /// The number of rungs.
    pub(super) all: usize,
}

/// A trial of other numbers of threads, one after the other.
#[derive(Debug)]
pub(super) struct Trial {
    /// The size of the steps that are measured. Steps of other sizes are computed with the present threads meanwhile.
    pub(super) size: usize,
    pub(super) rung: usize,
    rungs: Rungs,
    /// The rungs that were measured, with their seconds per step. The first entry is the present rung, measured in the
    /// window before the trial.
    pub(super) seen: Vec<(usize, f64)>,
    window: Window,
    /// The end of the last step that was measured, and the number of other steps since then.
    last: Instant,
    others: u32,
    /// By how many seconds the steps of the complete windows were slower than the same number of steps at the present
    /// rung.
    cost: f64,
    /// Whether no step has become slow: the trial is the first one, or the first one of a size that was first seen
    /// beside other work. If it changes nothing, it does not delay a trial of steps that become slow.
    pub(super) is_precaution: bool,
}

impl Trial {
    /// Begins a trial of `rung` and of the other rungs after it. The window before it was at the present rung, ended
    /// `now`, and had `before` seconds per step.
    pub(super) fn new(rungs: Rungs, rung: usize, size: usize, before: f64, is_precaution: bool, now: Instant) -> Self {
        let (seen, window) = (vec![(rungs.at, before)], Window::default());
        Self { size, rung, rungs, seen, window, last: now, others: 0, cost: 0.0, is_precaution }
    }

    fn fastest(&self) -> f64 {
        self.seen.iter().map(|seen| seen.1).fold(f64::INFINITY, f64::min)
    }

    /// Seconds per step before the trial.
    pub(super) fn before(&self) -> f64 {
        self.seen[0].1
    }

    /// Whether the machine may have changed since the last measured step, when another step ends `now`.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.others > MAX_OTHER_STEPS || now.saturating_duration_since(self.last) > MAX_GAP
    }

    /// Counts a step that is not measured.
    pub(super) fn other_step(&mut self) {
        self.others += 1;
    }

    /// By how many seconds the measured steps were slower than the same number of steps at the present rung.
    pub(super) fn cost(&self) -> f64 {
        self.cost + self.excess(self.window)
    }

    fn excess(&self, window: Window) -> f64 {
        (window.seconds() - self.before()) * f64::from(window.steps)
    }

    /// Records a step. Returns whether the trial ends: after the last number of threads, or if a number below the
    /// present one is hopeless, because even fewer threads would take even longer.
    pub(super) fn step(&mut self, took: Duration, now: Instant) -> bool {
        (self.last, self.others) = (now, 0);
        self.window.add(took);
        let (steps, seconds) = (self.window.steps, self.window.seconds());
        let Rungs { at, free, all } = self.rungs;
        let is_fewer = self.rung > at;
        let times = seconds / self.fastest();
        let is_hopeless = (steps >= FEW_STEPS && times > HOPELESS) || (!is_fewer && times > HOPELESS_STEP);
        let windows = match self.rung {
            rung if rung > at => 1,
            rung if rung < free && seconds > WORSE * self.before() => 1,
            rung if rung < free && seconds * CLOSE > self.before() => WINDOWS_OF_DOUBT,
            rung if rung < free => WINDOWS_BESIDE,
            _ => WINDOWS_OF_MORE,
        };
        if !is_hopeless && !self.window.is_full(windows) {
            return false;
        }
        self.cost += self.excess(self.window);
        self.window = Window::default();
        self.seen.push((self.rung, seconds));
        self.rung += 1;
        if self.rung == at {
            self.rung += 1;
        }
        self.rung >= all || (is_fewer && is_hopeless)
    }
}
