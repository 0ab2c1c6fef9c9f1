//! Threads while generating: how long each step took flows in, the threads of the next one flow out.
//!
//! Steps are judged in windows of a tenth of a second, which other programs' slices of time even out in. Where windows
//! take twice as long as they did, or longer than fewer threads did, fewer are tried for a window; while they are fewer
//! than there were at first, more are tried from time to time. A trial decides by the window just before it, at the
//! same depth of the context and with the same weights: a model that is slow for another reason is as slow with fewer
//! threads, and keeps those that it has.
//!
//! A trial that goes wrong costs time. It ends as soon as it does, and each puts off the next one: twice as long every
//! time, and fifty times what the last one has cost. So there is no more than a number of them that grows with the
//! logarithm of the time, and one per longest wait.

use std::time::Duration;

/// A window has this many steps and takes this long, or is that much longer.
const STEPS: u32 = 4;
const WINDOW: Duration = Duration::from_millis(100);
const FEW_STEPS: u32 = 2;
const LONG_WINDOW: Duration = Duration::from_millis(200);

/// A window that takes this many times as long as those before it is slow: what half of the threads are
/// sure to do as well.
const SLOW: f64 = 2.0;
/// So many windows in a row: one alone may be a hiccup.
const PATIENCE: u32 = 2;
/// Fewer threads are worth a trial where they once were this much faster than what is seen now.
const BEHIND: f64 = 1.1;
/// The part of the time that fewer threads, and more threads, may take to be kept.
const FEWER_PAY: f64 = 0.9;
const MORE_PAY: f64 = 0.95;
/// A trial that takes this many times as long as the window before it ends; after its first step, where that takes so
/// many times as long.
const HOPELESS: f64 = 2.0;
const HOPELESS_AT_ONCE: f64 = 8.0;
/// How much of a window's time the time that is known of its threads takes on: it follows a context that grows deeper.
const NEWEST: f64 = 1.0 / 8.0;

/// The first wait from one trial to the next, and the longest, but for dear ones.
const WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How many times as long as a trial has cost the wait for the next one is at least, up to a minute.
const REPAY: u32 = 50;
const LONGEST_REPAY: Duration = Duration::from_secs(60);
/// Time with all threads after which trials of more begin with the first wait again.
const QUIET: Duration = Duration::from_secs(30);

/// Threads for steps of one size.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// Numbers of threads, the most first.
    rungs: Vec<u32>,
    at: usize,
    /// What the load has chosen: more are tried above it too.
    usual: usize,
    /// Seconds of a step, as they were seen last at each number.
    known: Vec<Option<f64>>,
    window: Window,
    /// Windows in a row after which fewer threads would have been worth a trial.
    suspect: u32,
    trial: Option<Trial>,
    /// Whether it is known what fewer threads take: a load onto a busy machine that measured nothing has nothing
    /// to compare with.
    explored: bool,
    /// Time of all steps so far.
    clock: Duration,
    fewer: Wait,
    more: Wait,
    /// Since when the most threads have been kept.
    since: Duration,
}

/// A change of the number of threads, in seconds per step before and after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Change {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) before: f64,
    pub(crate) after: f64,
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
    /// Whether it is the first, by which nothing is put off.
    explores: bool,
    /// Whether a window of it has been worth keeping already.
    again: bool,
}

/// When the next trial may be.
#[derive(Debug, Clone, Copy)]
struct Wait {
    until: Duration,
    next: Duration,
}

impl Wait {
    const fn new(from: Duration) -> Self {
        Self { until: from, next: WAIT }
    }

    /// After a trial that took so much longer than it would have without.
    fn put_off(&mut self, now: Duration, cost: Duration) {
        self.until = now + self.next.max((cost * REPAY).min(LONGEST_REPAY));
        self.next = (self.next * 2).min(LONGEST_WAIT);
    }
}

impl Window {
    fn add(&mut self, took: Duration) {
        self.steps += 1;
        self.time += took;
    }

    fn seconds(self) -> f64 {
        self.time.as_secs_f64() / f64::from(self.steps.max(1))
    }

    fn is_full(self) -> bool {
        (self.steps >= STEPS && self.time >= WINDOW) || (self.steps >= FEW_STEPS && self.time >= LONG_WINDOW)
    }

    /// Whether it cannot come to what it is held against any more.
    fn is_hopeless(self, before: f64) -> bool {
        let times = self.seconds() / before;
        times > HOPELESS_AT_ONCE || (self.steps >= FEW_STEPS && times > HOPELESS)
    }
}

impl Pace {
    /// On the rung of `threads`; `known`: seconds of a step with a number of threads.
    pub(super) fn new(rungs: Vec<u32>, threads: u32, known: impl Fn(u32) -> Option<f64>) -> Self {
        let at = rungs.iter().position(|&rung| rung <= threads).unwrap_or(0);
        let next = rungs.get(at + 1);
        Self {
            explored: next.is_none_or(|&next| known(next).is_some()),
            at,
            usual: at,
            known: rungs.iter().map(|&rung| known(rung)).collect(),
            rungs,
            window: Window::default(),
            suspect: 0,
            trial: None,
            clock: Duration::ZERO,
            fewer: Wait::new(Duration::ZERO),
            more: Wait::new(WAIT),
            since: Duration::ZERO,
        }
    }

    /// For steps of another size, of which nothing is known but the threads that others have come to.
    pub(super) fn of_another_size(&self) -> Self {
        let mut other = Self::new(self.rungs.clone(), self.rungs[self.at], |_| None);
        other.usual = self.usual;
        other
    }

    pub(super) fn threads(&self) -> u32 {
        let rung = self.trial.map_or(self.at, |trial| trial.rung);
        self.rungs[rung]
    }

    /// What it goes back to when nothing disturbs it.
    pub(super) fn usual(&self) -> u32 {
        self.rungs[self.usual]
    }

    /// Takes note of a step with these [`threads`](Self::threads).
    pub(super) fn step(&mut self, took: Duration) -> Option<Change> {
        self.clock += took;
        self.window.add(took);
        match self.trial {
            None if self.window.is_full() => {
                let seen = std::mem::take(&mut self.window).seconds();
                self.judge(seen);
                None
            }
            Some(trial) if self.window.is_full() || self.window.is_hopeless(trial.before) => {
                let window = std::mem::take(&mut self.window);
                self.decide(trial, window)
            }
            _ => None,
        }
    }

    /// After a window with the threads that it has come to: whether others are worth a trial.
    fn judge(&mut self, seen: f64) {
        let own = self.known[self.at];
        let is_slow = own.is_some_and(|own| seen > SLOW * own);
        let is_behind = |known: &f64| seen > BEHIND * known;
        let fewer = &self.known[self.at + 1..];
        let is_behind = fewer.iter().flatten().any(is_behind);
        let is_suspect = (is_slow || is_behind) && !fewer.is_empty();
        self.suspect = if is_suspect { self.suspect + 1 } else { 0 };
        let explores = !std::mem::replace(&mut self.explored, true);
        if explores || (self.suspect >= PATIENCE && self.clock >= self.fewer.until) {
            self.begin(self.at + 1, seen, explores);
            return;
        }
        if self.at > 0 && self.clock >= self.more.until {
            self.begin(self.at - 1, seen, false);
        }
        if self.at == 0 && self.clock.saturating_sub(self.since) >= QUIET {
            self.more.next = WAIT;
        }
        // What is slow is not what it is held against later, as long as fewer threads may help.
        if !(is_slow && is_suspect) {
            let own = own.unwrap_or(seen);
            self.known[self.at] = Some(own + (seen - own) * NEWEST);
        }
    }

    fn begin(&mut self, rung: usize, before: f64, explores: bool) {
        self.suspect = 0;
        self.trial = Some(Trial { rung, before, explores, again: false });
    }

    fn decide(&mut self, trial: Trial, window: Window) -> Option<Change> {
        let Trial { rung, before, explores, again } = trial;
        let seen = window.seconds();
        self.trial = None;
        self.known[rung] = Some(seen);
        let is_fewer = rung > self.at;
        // Beside other programs one window is quicker than another: more threads are held against the usual one too.
        let usual = self.known[self.at].unwrap_or(before).min(before);
        let is_kept = if is_fewer { seen < before * FEWER_PAY } else { seen < usual * MORE_PAY };
        let cost = (seen - before).max(0.0) * f64::from(window.steps);
        let cost = Duration::from_secs_f64(cost);
        if is_kept && !is_fewer && !again {
            // One quick window is soon had beside other programs, and to find that out would take two slow ones.
            let again = true;
            self.trial = Some(Trial { again, ..trial });
            return None;
        }
        if is_fewer && !is_kept {
            // It may take more than one to get out of the others' way.
            if rung + 1 < self.rungs.len() && seen < before * HOPELESS {
                self.begin(rung + 1, before, explores);
                return None;
            }
            // A thread may share its core with another program for a window, while another core is free: what is seen
            // is taken for what it takes now, whatever the reason, after the third trial.
            if explores || self.fewer.next > WAIT * 2 {
                self.known[self.at] = Some(before);
            }
            if !explores {
                self.fewer.put_off(self.clock, cost);
            }
            // What still fewer took at another time says nothing of now.
            self.known[rung + 1..].fill(None);
        } else if !is_fewer {
            self.more.put_off(self.clock, cost);
        }
        if !is_kept {
            return None;
        }
        let from = std::mem::replace(&mut self.at, rung);
        self.since = self.clock;
        if is_fewer {
            self.fewer = Wait::new(self.clock);
            self.more.until = self.clock + self.more.next;
        } else {
            self.known[from] = Some(before);
        }
        Some(Change { from: self.rungs[from], to: self.rungs[rung], before, after: seen })
    }
}

#[cfg(test)]
mod tests;
