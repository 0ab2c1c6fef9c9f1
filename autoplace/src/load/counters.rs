//! Running totals of a model's generation. The generating thread writes them; a sentinel (room `watch`) reads them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::depth::{DepthFollower, DepthMove};
use super::expert_meter::ExpertMeter;
use super::in_use::UseMeter;
use super::moves::LoadTimes;
use super::present::LoadedNotice;
use super::threads::{BatchThreads, Follower, Pacer, Threads};
use crate::plan::Plan;
use crate::sync::lock;

/// Minimum number of tokens between two reports of the speed to other processes.
const SAID_EVERY: u64 = 32;

/// Running totals of single-token generation, without prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generated {
    /// Number of tokens.
    pub tokens: u64,
    /// Total time of the tokens.
    pub time: Duration,
    /// Sum of the tokens' depths; the depth of a token is the number of tokens before it.
    pub depths: u64,
}

/// Running totals of a cache of experts: how often a text used an expert that was in the cache, and how often an expert
/// that was not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpertUses {
    /// Uses of experts that the cache held.
    pub hits: u64,
    /// Uses of experts that had to be uploaded first.
    pub misses: u64,
}

impl ExpertUses {
    /// All uses.
    pub const fn total(&self) -> u64 {
        self.hits.saturating_add(self.misses)
    }

    /// The share of uses that the cache served, 0 to 1; `None` without uses.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.total() > 0).then(|| self.hits as f64 / self.total() as f64)
    }

    /// The uses since `before`.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self { hits: self.hits.saturating_sub(before.hits), misses: self.misses.saturating_sub(before.misses) }
    }
}

/// Running totals of a model over all its streams.
///
/// There is one writer at a time, because the model has one context, which is lent to one user at a time. A token costs
/// four loads and three stores, without a lock. The three totals are read one after the other, so a reading may be off
/// by one token. A speed comes from dozens of tokens, so this matters little.
#[derive(Debug, Default)]
pub(crate) struct GenerationCounters {
    tokens: AtomicU64,
    nanoseconds: AtomicU64,
    depths: AtomicU64,
    placements: AtomicU64,
    /// Uses of a cache of experts by generated tokens.
    expert_hits: AtomicU64,
    expert_misses: AtomicU64,
    experts: Mutex<Option<ExpertMeter>>,
    /// The locality that the last meter learned. It is kept for later plans even if the present placement has no cache
    /// of experts.
    known_locality: Mutex<Option<f64>>,
    /// Number of batches that have begun. `done` is the number of finished batches.
    begun: AtomicU64,
    done: AtomicU64,
    pacer: Mutex<Option<Pacer>>,
    follower: Mutex<Option<Follower>>,
    meter: Mutex<Option<UseMeter>>,
    /// Whether the model has a second placement, for other depths. The check costs one load of a flag per token.
    follows_depth: AtomicBool,
    depth: Mutex<DepthFollower>,
    moving: Mutex<Moving>,
    /// The notice that tells other processes the model's speed. The loaded model owns it.
    notice: Mutex<Weak<LoadedNotice>>,
}

/// The move to the placement for another depth that is under way, and the callbacks for its progress.
#[derive(Debug, Default)]
struct Moving {
    /// The move, and the share of the weights that is loaded so far: 0.0, 0.25, 0.5, 0.75 or 1.0.
    now: Option<(DepthMove, f32)>,
    listener: Option<Waker>,
}

impl GenerationCounters {
    /// Sets a pacer and a follower that start with the threads of the load.
    pub(crate) fn paced_by(&self, threads: &Threads) {
        *self.pacer() = Some(Pacer::new(threads));
        *lock(&self.follower) = Some(Follower::new(threads));
    }

    /// Chooses the threads of the batch that begins now; `None` for a model in a worker. `generates` is true if the
    /// batch has no prompt tokens. `measured` is the number of its tokens if its time will be measured.
    pub(crate) fn batch_threads(&self, generates: bool, measured: Option<usize>) -> Option<BatchThreads> {
        self.follow_processors();
        let mut pacer = self.pacer();
        let pacer = pacer.as_mut()?;
        pacer.begins(generates, Instant::now());
        Some(pacer.batch(generates, measured))
    }

    /// If the processors that this process may use have changed, replaces the pacer by one for the new threads.
    fn follow_processors(&self) {
        let threads = lock(&self.follower).as_mut().and_then(|follower| follower.look(Instant::now()));
        if let Some(threads) = threads {
            *self.pacer() = Some(Pacer::new(&threads));
        }
    }

    /// The pacer that chooses the number of threads; `None` for a model in a worker. The caller keeps the lock only
    /// while it records a step. At the beginning and the end of a text's first window, the caller reads the system's
    /// counters too while it keeps the lock.
    pub(crate) fn pacer(&self) -> MutexGuard<'_, Option<Pacer>> {
        lock(&self.pacer)
    }

    /// Sets the meter that learns how soon texts use experts again.
    pub(super) fn experts_metered_by(&self, meter: Option<ExpertMeter>) {
        let old = std::mem::replace(&mut *lock(&self.experts), meter);
        if let Some(locality) = old.as_ref().and_then(ExpertMeter::locality) {
            *lock(&self.known_locality) = Some(locality);
        }
        // The old meter is dropped without the lock, because it may write a file.
        drop(old);
    }

    /// Adds the uses of a cache of experts by a batch of generated tokens.
    pub(crate) fn used_experts(&self, uses: ExpertUses) {
        add(&self.expert_hits, uses.hits);
        add(&self.expert_misses, uses.misses);
        if let Some(meter) = &mut *lock(&self.experts) {
            meter.add(uses);
        }
    }

    /// The uses of the cache of experts by generated tokens, over all placements.
    pub(crate) fn expert_uses(&self) -> ExpertUses {
        let total = |total: &AtomicU64| total.load(Ordering::Relaxed);
        ExpertUses { hits: total(&self.expert_hits), misses: total(&self.expert_misses) }
    }

    /// How soon texts use experts again, measured in this placement, or else in the last placement that had a cache of
    /// experts. `None` before there were enough uses.
    pub(super) fn expert_locality(&self) -> Option<f64> {
        let seen = lock(&self.experts).as_ref().and_then(ExpertMeter::locality);
        seen.or_else(|| *lock(&self.known_locality))
    }

    /// Sets the notice that tells other processes the model's speed.
    pub(super) fn said_in(&self, notice: Option<&Arc<LoadedNotice>>) {
        if let Some(notice) = notice {
            notice.begin(self.generated());
        }
        *lock(&self.notice) = notice.map(Arc::downgrade).unwrap_or_default();
    }

    /// Sets the meter that corrects the measured rates of the devices.
    pub(super) fn metered_by(&self, meter: Option<UseMeter>) {
        let old = std::mem::replace(&mut *lock(&self.meter), meter);
        // The old meter is dropped without the lock, because it may write a file.
        drop(old);
    }

    /// The meter that corrects the measured rates. `None` if the rates were not measured, and for a model in a worker.
    pub(crate) fn meter(&self) -> MutexGuard<'_, Option<UseMeter>> {
        lock(&self.meter)
    }

    /// Follows the depth with the placements of this plan from now on. `load` is the time that the load by this plan
    /// took.
    pub(super) fn placed_by(&self, plan: &Plan, load: Duration, times: Option<LoadTimes>) {
        let follows = lock(&self.depth).placed_by(plan, load, times);
        self.follows_depth.store(follows, Ordering::Release);
    }

    /// Whether the model has a second placement, for other depths.
    #[inline]
    pub(crate) fn follows_depth(&self) -> bool {
        self.follows_depth.load(Ordering::Relaxed)
    }

    /// Sets the move that is under way, with the share of the weights that is loaded; `None` at the end of the move.
    pub(crate) fn set_moving(&self, moving: Option<(DepthMove, f32)>) {
        let mut held = lock(&self.moving);
        held.now = moving;
        let listener = held.listener.clone();
        drop(held);
        listener.into_iter().for_each(Waker::wake);
    }

    /// Sets the share of the weights that a move has loaded, if one is under way. The share is rounded to quarters, so
    /// that callbacks are not called too often.
    pub(super) fn has_loaded(&self, done: f32) {
        let quarter = (done.clamp(0.0, 1.0) * 4.0).floor() / 4.0;
        let known = lock(&self.moving).now.clone();
        if let Some((moving, _)) = known.filter(|(_, known)| *known < quarter) {
            self.set_moving(Some((moving, quarter)));
        }
    }

    /// The move by depth that is under way, and the share of the weights that is loaded.
    pub(crate) fn moving(&self) -> Option<(DepthMove, f32)> {
        lock(&self.moving).now.clone()
    }

    /// Sets the waker that is woken at the beginning, the progress and the end of a move.
    pub(crate) fn listen_to_moves(&self, listener: Option<Waker>) {
        let before = std::mem::replace(&mut lock(&self.moving).listener, listener);
        // Dropping a waker runs foreign code, so the lock is released first.
        drop(before);
    }

    /// The two placements of a model that follows the depth of its texts; `None` for another model.
    pub(crate) fn depth(&self) -> Option<MutexGuard<'_, DepthFollower>> {
        self.follows_depth().then(|| lock(&self.depth))
    }

    /// Adds a generated token of a single sequence. `took` is the time to compute and choose it, `depth` the number of
    /// tokens before it. Prompts and batches of several sequences have other speeds and are not counted.
    pub(crate) fn token(&self, took: Duration, depth: usize) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.nanoseconds, nanoseconds);
        add(&self.depths, depth as u64);
        add(&self.tokens, 1);
        if self.tokens.load(Ordering::Relaxed).is_multiple_of(SAID_EVERY) {
            self.say_speed(false);
        }
    }

    /// Reports the speed to other processes, if enough time has passed since the last report. `is_end` is true at the
    /// end of a text.
    #[cold]
    pub(crate) fn say_speed(&self, is_end: bool) {
        let notice = lock(&self.notice).upgrade();
        if let Some(notice) = notice {
            notice.say_speed(self.generated(), is_end);
        }
    }

    /// Marks a batch as running until the guard is dropped.
    pub(crate) fn computing(&self) -> Computing<'_> {
        add(&self.begun, 1);
        Computing(self)
    }

    /// Number of finished computations, and whether one is running.
    pub(crate) fn computations(&self) -> (u64, bool) {
        let done = self.done.load(Ordering::Relaxed);
        (done, self.begun.load(Ordering::Relaxed) != done)
    }

    pub(super) fn count_placement(&self) {
        self.placements.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn generated(&self) -> Generated {
        let total = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Generated {
            tokens: total(&self.tokens),
            time: Duration::from_nanos(total(&self.nanoseconds)),
            depths: total(&self.depths),
        }
    }

    /// Number of re-placements.
    pub(crate) fn placements(&self) -> u64 {
        self.placements.load(Ordering::Acquire)
    }
}

/// Marks a running computation.
pub(crate) struct Computing<'a>(&'a GenerationCounters);

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        add(&self.0.done, 1);
    }
}

/// Adds `n`. There is only one writer, so this need not be an atomic addition, which would take seven times as long.
fn add(total: &AtomicU64, n: u64) {
    total.store(total.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
