//! Adjusts the threads during generation. In: the duration of each step. Out: the threads of the next step.
//!
//! The rule ([`choose`]) takes the largest number of threads whose measured time is within a tenth of the fastest. A
//! trial measures other numbers of threads, each for some steps, and then the rule decides. If other work shared the
//! processors during the first window, the first trial runs after that window; otherwise it runs after [`QUIET_START`].
//! Trials also run when steps become slow, and while fewer threads than one per core generate. A trial is compared with
//! the window just before it, which has the same depth and the same weights. If a model is slow for another reason, it
//! is just as slow with fewer threads, and the number of threads stays. docs/load-contract.md has the thresholds.
//!
//! In a server, the number of tokens changes every few steps, and prompts are computed between them. So each size of
//! steps has its own window, and the time between two trials is the time that passes, with prompts and pauses. If no
//! trial can be completed for long, all threads generate again.

mod trial;
mod window;

use std::time::{Duration, Instant};

use self::trial::Trial;
use self::window::{Size, size_of};
use super::{ThreadBasis, Threads, choose, ladder};
use crate::machine::ConditionsWatch;

/// Duration of generation before the first trial on a quiet machine. A short text would gain nothing from a trial.
const QUIET_START: Duration = Duration::from_secs(2);

/// A trial is followed by a pause of a hundred times its cost, within these bounds.
const REPAY: f64 = 100.0;
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The longest pause while fewer threads generate than at first, because they may be fewer than the cores that are
/// free by now.
const MAX_WAIT_OF_FEWER: Duration = Duration::from_secs(10);
/// The pause is always at least this multiple of the cost, so that trials take at most a tenth of the time. This
/// exceeds the longest pause only if a few steps with more threads take a second longer.
const MIN_REPAY: f64 = 10.0;

/// If a trial of more threads is due, and this time of generation and this number of steps pass without one, all
/// threads generate again. Before a trial there is a window of one size: usually four steps.
const OVERDUE: Duration = Duration::from_secs(4);
const OVERDUE_STEPS: u32 = 64;

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
    /// What is known about the steps of each size.
    sizes: Vec<Size>,
    trial: Option<Trial>,
    /// The time of all measured steps so far.
    generated: Duration,
    /// The time before which no further trial begins; `None` for a trial that may begin at once.
    next_trial: Option<Instant>,
    /// This time counts instead, if the steps have become much faster since the last trial.
    next_if_fast: Option<Instant>,
    /// Steps without a trial since one of more threads is due, and their time.
    overdue: (u32, Duration),
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

impl Pacer {
    pub(in crate::load) fn new(chosen: &Threads) -> Self {
        let Threads { generation, prompt, basis, .. } = *chosen;
        let rungs = match basis {
            ThreadBasis::Asked => vec![generation],
            ThreadBasis::FullOffload | ThreadBasis::PerCore | ThreadBasis::TimeLimit => ladder(generation),
        };
        Self { prompt, rungs, ..Self::default() }
    }

    /// The number of threads for a step that generates `tokens` tokens; `None` for steps that are not measured.
    pub(crate) fn threads(&self, tokens: Option<usize>) -> u32 {
        let is_measured = |trial: &&Trial| tokens.is_some_and(|tokens| size_of(tokens) == trial.size);
        self.rungs[self.trial.as_ref().filter(is_measured).map_or(self.at, |trial| trial.rung)]
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

    /// Records a step that generated `tokens` tokens, none of them a draft token, and ended `now`. `None` stands for a
    /// step with draft tokens or a picture, whose time is not measured. Returns a change of the threads.
    pub(crate) fn step(&mut self, tokens: Option<usize>, took: Duration, now: Instant) -> Option<GeneratingThreads> {
        if self.rungs.len() < 2 {
            return None;
        }
        self.company.watch();
        if let Some(trial) = self.trial.take_if(|trial| trial.is_stale(now)) {
            self.put_off(trial.cost(), now);
            if tokens.map(size_of) == Some(trial.size) {
                // This step may have been computed with the threads of the trial.
                return None;
            }
        }
        if let Some(trial) = self.trial.as_mut().filter(|trial| tokens.map(size_of) != Some(trial.size)) {
            trial.other_step();
        }
        let change = tokens.and_then(|tokens| self.measure(tokens, took, now));
        if self.at > 0 && self.trial.is_none() && is_due(self.next_trial, now) {
            let (steps, time) = self.overdue;
            self.overdue = (steps + 1, time + took);
            if steps >= OVERDUE_STEPS && time >= OVERDUE {
                self.begin_anew();
            }
        }
        change
    }

    fn measure(&mut self, tokens: usize, took: Duration, now: Instant) -> Option<GeneratingThreads> {
        let size = size_of(tokens);
        self.generated += took;
        if let Some(mut trial) = self.trial.take_if(|trial| trial.size == size) {
            if trial.step(took, now) {
                return self.decide(&trial, tokens, now);
            }
            self.trial = Some(trial);
            return None;
        }
        if self.sizes.len() <= size {
            self.sizes.resize(size + 1, Size::default());
        }
        if let Some(seen) = self.sizes[size].step(took) {
            self.judge(size, seen, now);
        }
        None
    }

    /// After a window with the chosen number of threads, decides whether to try other numbers.
    fn judge(&mut self, size: usize, seen: f64, now: Instant) {
        let is_first = !self.has_tried;
        let known = &mut self.sizes[size];
        let begins = if is_first {
            let is_put_off = self.company.is_absent() && self.generated < QUIET_START;
            !is_put_off || known.is_slow()
        } else {
            let is_wanted = self.at > 0 || known.is_slow();
            let is_early = self.at > 0 && known.is_fast() && is_due(self.next_if_fast, now);
            is_early || (is_wanted && is_due(self.next_trial, now))
        };
        if begins && self.trial.is_none() {
            self.has_tried = true;
            known.trial_begins(seen);
            self.trial = Some(Trial::new((self.at, self.rungs.len()), size, seen, is_first, now));
        }
    }

    /// Chooses the number of threads after a trial whose last step generated `tokens` tokens.
    fn decide(&mut self, trial: &Trial, tokens: usize, now: Instant) -> Option<GeneratingThreads> {
        let speeds = trial.seen.iter().map(|&(rung, seconds)| (self.rungs[rung], 1.0 / seconds));
        let (threads, speed) = choose(speeds)?;
        let before = trial.before();
        let at = self.rungs.iter().position(|&rung| rung == threads)?;
        let is_change = at != self.at;
        self.at = at;
        // After a change, a trial of the earlier number at once would slow down a short text beside other work.
        if is_change || !trial.is_first {
            self.put_off(trial.cost(), now);
        }
        self.overdue = (0, Duration::ZERO);
        if !is_change {
            self.sizes[trial.size].keep(before);
            return None;
        }
        // The other sizes were not measured. Their steps take about as many times longer or shorter.
        for size in &mut self.sizes {
            size.change(1.0 / (speed * before));
        }
        self.sizes[trial.size].set_usual(1.0 / speed);
        let tokens = tokens as f64;
        let (most, before, after) = (self.rungs[0], tokens / before, tokens * speed);
        self.change = Some(GeneratingThreads { threads, most, before, after });
        self.change
    }

    /// Sets the time of the next trial, after a trial that cost some seconds.
    fn put_off(&mut self, cost: f64, now: Instant) {
        let cost = cost.max(0.0);
        let most = if self.at > 0 { MAX_WAIT_OF_FEWER } else { MAX_WAIT };
        let wait = Duration::from_secs_f64(cost * REPAY).clamp(MIN_WAIT, most);
        self.next_if_fast = Some(now + wait);
        self.next_trial = Some(now + wait.max(Duration::from_secs_f64(cost * MIN_REPAY)));
    }

    /// Forgets what was measured, so that all threads generate as after a load. Other work may still be there, so the
    /// first trial runs after the first window.
    fn begin_anew(&mut self) {
        let (prompt, rungs) = (self.prompt, std::mem::take(&mut self.rungs));
        *self = Self { prompt, rungs, company: Company::Possible, ..Self::default() };
    }
}

/// Whether a trial may begin.
fn is_due(next_trial: Option<Instant>, now: Instant) -> bool {
    next_trial.is_none_or(|next| now >= next)
}

#[cfg(test)]
mod tests;
