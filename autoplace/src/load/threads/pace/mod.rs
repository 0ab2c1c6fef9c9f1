//! Adjusts the threads during generation. In: the duration of each step. Out: the threads of the next step.
//!
//! The rule ([`choose`]) takes the largest number of threads whose measured time is within a tenth of the fastest; more
//! threads than free cores must be clearly faster. A trial measures other numbers of threads, each for some steps, and
//! then the rule decides. If other work shared the processors during the first window, the first trial runs after that
//! window; otherwise it runs after [`QUIET_START`].
//! Trials also run when steps become slow, when other work shared the processors during the first window of another
//! size of steps, and while fewer threads than one per core generate. A trial is compared with the window just before
//! it, or beside other work with the mean of the windows before it; they have nearly the same depth, and the same
//! weights. If a model is slow for another reason, it is just as slow with fewer threads, and the number of threads
//! stays. docs/load-contract.md has the thresholds.
//!
//! A short text is over before a trial has repaid its cost. So the first prompt, and each prompt after a [`PAUSE`],
//! chooses the number of threads for the steps after it: if other work delays the prompt, the text begins with the
//! cores that are free.
//!
//! In a server, the number of tokens changes every few steps, and prompts are computed between them. So each size of
//! steps has its own window, and the time between two trials is the time that passes, with prompts and pauses. If no
//! trial can be completed for a long time, all threads generate again.

mod company;
mod trial;
mod window;

use std::time::{Duration, Instant};

use llama_sys::{Context, ThreadWait};

use self::company::{Company, Looks, Watch};
use self::trial::{Rungs, Trial};
use self::window::{Size, size_of};
use super::{ThreadBasis, Threads, choose, ladder};
use crate::machine::ConditionsWatch;

/// Duration of generation before the first trial on a quiet machine; and the time after a prompt that other work
/// delayed, before the first trial of more threads. A short text would gain nothing from a trial.
const QUIET_START: Duration = Duration::from_secs(2);
/// If a step after a prompt that other work delayed takes at least this time, the first trial of more threads begins
/// after two windows. Two seconds would be a large part of a text with such steps, and a trial takes few of its steps.
const LONG_STEP: Duration = Duration::from_millis(100);

/// After a pause of this length, the other work may have changed.
const PAUSE: Duration = Duration::from_secs(1);

/// A trial is followed by a pause of a hundred times its cost, within these bounds.
const REPAY: f64 = 100.0;
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The longest pause while fewer threads generate than at first. It is shorter, because more cores may be free by now.
const MAX_WAIT_OF_FEWER: Duration = Duration::from_secs(10);
/// The pause is always at least this multiple of the cost, so that trials take at most a tenth of the time. This
/// exceeds the longest pause only if a few steps with more threads take a second longer.
const MIN_REPAY: f64 = 10.0;

/// If a trial of more threads is due, and none begins within this time of generation and this number of steps, all
/// threads generate again. A trial begins only after a window of steps of one size, usually four steps.
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
    /// Watches for other work during the first window of each size.
    watch: Watch,
    /// Looks how many cores other work leaves free.
    looks: Looks,
    /// The [rung of the free cores](Self::free_rung) at the last trial.
    tried_for: usize,
    /// When the last batch ended.
    last_end: Option<Instant>,
    /// What is known about the steps of each size.
    sizes: Vec<Size>,
    trial: Option<Trial>,
    /// The time of all measured steps so far.
    generated: Duration,
    /// The time before which no further size is tried only because it was first seen beside other work.
    next_doubt: Option<Instant>,
    /// The time before which no further trial begins; `None` for a trial that may begin at once.
    next_trial: Option<Instant>,
    /// The time before which no further trial begins if the steps have become much faster since the last trial. It is
    /// never later than `next_trial`.
    next_if_fast: Option<Instant>,
    /// The number of steps since a trial of more threads is due and has not begun, and the time of these steps.
    overdue: (u32, Duration),
    /// The number of changes to more threads in a row that were soon taken back. Each doubles the shortest pause.
    taken_back: u32,
    /// The last change of the number of threads.
    change: Option<GeneratingThreads>,
}

/// The threads of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchThreads {
    /// The number of threads if the batch has one token.
    pub(crate) one: u32,
    /// The number of threads if the batch has several tokens.
    pub(crate) several: u32,
    /// How these threads wait for each other.
    pub(crate) wait: ThreadWait,
}

impl BatchThreads {
    /// Sets the threads of the context that computes the batch.
    pub(crate) fn set(self, context: &mut Context) -> Result<(), llama_sys::Error> {
        context.set_threads(self.one, self.several, self.wait)
    }

    /// At most as many threads as these numbers.
    pub(crate) fn at_most(self, one: u32, several: u32) -> Self {
        Self { one: self.one.min(one), several: self.several.min(several), ..self }
    }
}

/// The number of generating threads. Speeds are in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{threads} of {most} threads generate{}", reason((*.threads, *.most), *.before, *.after))]
pub struct GeneratingThreads {
    /// The number of threads that generate.
    pub threads: u32,
    /// The number of threads on a quiet machine: one per core, or fewer if GPUs compute all layers.
    pub most: u32,
    /// The speed before a trial changed the number; 0 if the number is that of the load, or if a prompt chose it.
    pub before: f64,
    /// The speed after that change; 0 if the number is that of the load, or if a prompt chose it.
    pub after: f64,
}

/// Why fewer threads than on a quiet machine generate.
fn reason((threads, most): (u32, u32), before: f64, after: f64) -> String {
    if before > 0.0 {
        format!(": {after:.1} tokens per second instead of {before:.1}")
    } else if threads < most {
        ", because other programs need cores".to_owned()
    } else {
        String::new()
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

    /// Called before each batch. `generates` is false if the batch has tokens of a prompt.
    pub(crate) fn begins(&mut self, generates: bool, now: Instant) {
        if self.rungs.len() < 2 {
            return;
        }
        let is_pause = self.last_end.is_some_and(|end| now.saturating_duration_since(end) >= PAUSE);
        let is_new = matches!(self.company, Company::Unwatched);
        if is_pause {
            self.looks.saw(None, now);
        }
        if !generates && (is_new || is_pause) {
            self.company = Company::Prompt(ConditionsWatch::begin());
        } else if is_new {
            self.company = Company::Window(ConditionsWatch::begin());
        } else if generates && matches!(self.company, Company::Prompt(_)) {
            self.start(now);
        }
    }

    /// Called after each batch, which ended `now`.
    pub(crate) fn ends(&mut self, now: Instant) {
        self.last_end = Some(now);
        if self.rungs.len() >= 2 {
            self.looks.look(now);
        }
    }

    /// Chooses the number of threads of the first step after a prompt.
    fn start(&mut self, now: Instant) {
        let Company::Prompt(watch) = std::mem::take(&mut self.company) else { return };
        let seen = watch.so_far();
        let cores = self.rungs[0];
        let free = cores.saturating_sub(seen.delayed_by().unwrap_or(0));
        let start = self.rung_of(free);
        if start > 0 {
            self.company = Company::Possible;
            self.looks.saw(Some(free), now);
            // If earlier trials chose even fewer threads, the next trial decides.
            if self.at <= start {
                self.begin_anew(start);
                // A trial of more threads waits, so that a short text does not pay for it.
                self.next_trial = Some(now + QUIET_START);
                self.next_if_fast = self.next_trial;
                tracing::info!(target: "autoplace::generate", "{}", self.generating());
            }
        } else {
            self.company = Company::Window(watch);
            if self.at > 0 && seen.waited.is_some() {
                self.begin_anew(0);
            }
        }
    }

    /// The rung with at most as many threads as cores are `free`, but with at least half of the threads: a fair share
    /// beside a program that uses all cores.
    fn rung_of(&self, free: u32) -> usize {
        let half = self.rungs.iter().rposition(|&rung| 2 * rung >= self.rungs[0]).unwrap_or(0);
        let rung = self.rungs.iter().position(|&rung| rung <= free);
        rung.map_or(half, |rung| rung.min(half))
    }

    /// The rung of the cores that other work leaves free; 0 if other work leaves enough cores, or if that is unknown.
    fn free_rung(&self) -> usize {
        self.looks.free().map_or(0, |free| self.rung_of(free))
    }

    /// The number of threads for a step that generates `tokens` tokens; for a step that is not measured, `tokens` is
    /// `None`.
    fn threads(&self, tokens: Option<usize>) -> u32 {
        self.rungs[self.rung(tokens)]
    }

    /// How the threads of that step wait for each other.
    fn wait(&self, tokens: Option<usize>) -> ThreadWait {
        if self.rung(tokens) < self.free_rung() { ThreadWait::Sleep } else { ThreadWait::Spin }
    }

    /// How the threads of a batch with prompt tokens wait for each other.
    fn prompt_wait(&self) -> ThreadWait {
        let at_begin = || match &self.company {
            Company::Prompt(watch) => Some(self.rungs[0].saturating_sub(watch.run_queue_before()?)),
            _ => None,
        };
        let free = self.looks.free().or_else(at_begin);
        if free.is_some_and(|free| free < self.rungs[0]) { ThreadWait::Sleep } else { ThreadWait::Spin }
    }

    /// The threads of the batch that begins. The parameters are those of [`begins`](Self::begins) and
    /// [`threads`](Self::threads).
    pub(crate) fn batch(&self, generates: bool, tokens: Option<usize>) -> BatchThreads {
        let one = self.threads(tokens);
        if generates {
            BatchThreads { one, several: one, wait: self.wait(tokens) }
        } else {
            BatchThreads { one, several: self.prompt, wait: self.prompt_wait() }
        }
    }

    /// The threads with which a drafter computes the next draft. It computes single tokens, and parts of the text that
    /// it does not know yet.
    pub(crate) fn draft(&self) -> BatchThreads {
        BatchThreads { one: self.threads(None), several: self.prompt, wait: self.prompt_wait() }
    }

    fn rung(&self, tokens: Option<usize>) -> usize {
        let is_measured = |trial: &&Trial| tokens.is_some_and(|tokens| size_of(tokens) == trial.size);
        self.trial.as_ref().filter(is_measured).map_or(self.at, |trial| trial.rung)
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
                // Other work may still be there, so the first trial runs after the first window.
                self.company = Company::Possible;
                self.begin_anew(0);
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
            self.sizes.resize_with(size + 1, Size::default);
        }
        let is_beside_others = self.at < self.free_rung();
        let known = &mut self.sizes[size];
        if !known.is_known() && matches!(known.company, Company::Unwatched) {
            known.company = (self.watch.0)();
        }
        if let Some(seen) = known.step(took, is_beside_others) {
            self.judge(size, seen, now);
        }
        None
    }

    /// After a window with the chosen number of threads, decides whether to try other numbers.
    fn judge(&mut self, size: usize, seen: f64, now: Instant) {
        let is_first = !self.has_tried;
        let free = self.free_rung();
        let known = &mut self.sizes[size];
        // The first call is the one after the first window.
        let is_doubtful = known.is_doubtful();
        let begins = if is_first {
            let is_put_off = self.company.is_absent() && self.generated < QUIET_START;
            !is_put_off || known.is_slow()
        } else {
            // Other work has come since the last trial, and takes cores from these threads.
            let is_crowded = self.at < free && free != self.tried_for;
            let is_doubt_due = (is_doubtful || is_crowded) && is_due(self.next_doubt, now);
            let is_wanted = self.at > 0 || known.is_slow() || is_doubt_due;
            let is_early = self.at > 0 && known.is_fast() && is_due(self.next_if_fast, now);
            is_early || (is_wanted && is_due(self.next_trial, now))
        };
        // If the text began with fewer threads, a trial of more threads is put off.
        let rung = if self.at == 0 || is_first { self.at + 1 } else { 0 };
        if begins && rung < self.rungs.len() && self.trial.is_none() {
            let is_precaution = is_first || (self.at == 0 && !known.is_slow());
            let seen = known.before_trial(seen, free > 0);
            known.trial_begins(seen);
            let rungs = Rungs { at: self.at, free, all: self.rungs.len() };
            self.trial = Some(Trial::new(rungs, rung, size, seen, is_precaution, now));
            self.tried_for = free;
        }
        if is_first && seen >= LONG_STEP.as_secs_f64() {
            (self.next_trial, self.next_if_fast) = (Some(now), Some(now));
        }
        self.has_tried |= begins;
    }

    /// Chooses the number of threads after a trial whose last step generated `tokens` tokens.
    fn decide(&mut self, trial: &Trial, tokens: usize, now: Instant) -> Option<GeneratingThreads> {
        let speeds = trial.seen.iter().map(|&(rung, seconds)| (self.rungs[rung], 1.0 / seconds));
        let free = self.free_rung();
        let (threads, speed) = choose(speeds, self.rungs[free])?;
        let before = trial.before();
        let at = self.rungs.iter().position(|&rung| rung == threads)?;
        let (is_change, is_more) = (at != self.at, at < self.at);
        self.at = at;
        if is_change && !is_more {
            let is_taken_back = self.sizes[trial.size].is_unconfirmed;
            self.taken_back = if is_taken_back { self.taken_back + 1 } else { 0 };
        }
        // After a change, a trial of the earlier number at once would slow down a short text beside other work.
        if is_change || !trial.is_precaution {
            self.put_off(trial.cost(), now);
        } else {
            self.next_doubt = Some(now + Duration::from_secs_f64(trial.cost().max(0.0) * MIN_REPAY));
        }
        self.overdue = (0, Duration::ZERO);
        if !is_change {
            let fewer = trial.seen.iter().filter(|&&(rung, _)| rung > at).map(|&(_, seconds)| seconds);
            self.sizes[trial.size].keep(before, fewer.reduce(f64::min).filter(|_| at < free));
            return None;
        }
        // Steps of other sizes were not measured. Their times are assumed to change by the same factor.
        for size in &mut self.sizes {
            size.change(1.0 / (speed * before));
        }
        self.sizes[trial.size].set_usual(1.0 / speed);
        self.sizes[trial.size].with_fewer = is_more.then_some(before);
        self.sizes[trial.size].is_unconfirmed = is_more;
        let tokens = tokens as f64;
        let (most, before, after) = (self.rungs[0], tokens / before, tokens * speed);
        self.change = Some(GeneratingThreads { threads, most, before, after });
        self.change
    }

    /// Sets the time of the next trial, after a trial that cost some seconds.
    fn put_off(&mut self, cost: f64, now: Instant) {
        let cost = cost.max(0.0);
        let (least, most) = match self.at {
            0 => (MIN_WAIT, MAX_WAIT),
            _ => ((MIN_WAIT * 2_u32.pow(self.taken_back.min(4))).min(MAX_WAIT_OF_FEWER), MAX_WAIT_OF_FEWER),
        };
        let wait = Duration::from_secs_f64(cost * REPAY).clamp(least, most);
        self.next_if_fast = Some(now + wait);
        self.next_trial = Some(now + wait.max(Duration::from_secs_f64(cost * MIN_REPAY)));
    }

    /// Forgets what was measured, and generates with the threads of the rung `at`.
    fn begin_anew(&mut self, at: usize) {
        let (prompt, rungs) = (self.prompt, std::mem::take(&mut self.rungs));
        let (company, watch, last_end) = (std::mem::take(&mut self.company), self.watch, self.last_end);
        let looks = std::mem::take(&mut self.looks);
        *self = Self { prompt, rungs, at, company, watch, looks, last_end, ..Self::default() };
        self.tried_for = if at > 0 { self.free_rung() } else { 0 };
    }
}

/// Whether a trial may begin.
fn is_due(next_trial: Option<Instant>, now: Instant) -> bool {
    next_trial.is_none_or(|next| now >= next)
}

#[cfg(test)]
mod tests;
