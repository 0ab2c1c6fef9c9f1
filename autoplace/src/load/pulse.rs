//! Running totals of what a model has generated: the generating thread writes them, a sentinel reads them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::in_use::UseMeter;
use super::threads::{Follower, Pacer, Threads};
use crate::lock;

/// Running totals of what was generated one token at a time, prompts not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generated {
    /// Tokens.
    pub tokens: u64,
    /// The time that they took.
    pub time: Duration,
    /// The sum, over these tokens, of the tokens before each.
    pub depths: u64,
}

/// Running totals of a model, over all its streams.
///
/// There is one writer at a time, since the context that computes is lent to one; a token costs it three loads and
/// stores, without a lock. The three are read one by one: between two of them a token may be added, which is one in the
/// dozens that a speed is made of.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    tokens: AtomicU64,
    nanoseconds: AtomicU64,
    depths: AtomicU64,
    placements: AtomicU64,
    /// Computations that were begun, and that are done: of a batch, whatever is in it.
    begun: AtomicU64,
    done: AtomicU64,
    pacer: Mutex<Option<Pacer>>,
    follower: Mutex<Option<Follower>>,
    meter: Mutex<Option<UseMeter>>,
}

impl Pulse {
    /// Begins with the threads that a load has chosen.
    pub(super) fn paced_by(&self, threads: &Threads) {
        *self.pacer() = Some(Pacer::new(threads));
        *lock(&self.follower) = Some(Follower::new(threads));
    }

    /// Begins again with other threads where the processors that this process may use have changed.
    pub(crate) fn follow_processors(&self) {
        let threads = lock(&self.follower).as_mut().and_then(|follower| follower.look(Instant::now()));
        if let Some(threads) = threads {
            *self.pacer() = Some(Pacer::new(&threads));
        }
    }

    /// What decides how many threads compute; `None` for a model in a worker. Never locked for longer than it takes to
    /// note a step down.
    pub(crate) fn pacer(&self) -> MutexGuard<'_, Option<Pacer>> {
        lock(&self.pacer)
    }

    /// Has this correct the rates of the devices by what the model does.
    pub(super) fn metered_by(&self, meter: Option<UseMeter>) {
        // Dropped without the lock: it may write a file.
        drop(std::mem::replace(&mut *lock(&self.meter), meter));
    }

    /// What corrects rates; `None` where they were not measured, and for a model in a worker.
    pub(crate) fn meter(&self) -> MutexGuard<'_, Option<UseMeter>> {
        lock(&self.meter)
    }

    /// Adds a token of one sequence: the time that computing and choosing it took, and the tokens before it. What comes
    /// of a prompt, or is computed for several sequences at once, has another speed and does not belong here.
    pub(crate) fn token(&self, took: Duration, depth: usize) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&self.nanoseconds, nanoseconds);
        add(&self.depths, depth as u64);
        add(&self.tokens, 1);
    }

    /// A batch is computed until this is dropped.
    pub(crate) fn computing(&self) -> Computing<'_> {
        add(&self.begun, 1);
        Computing(self)
    }

    /// How many computations were done, and whether one is going on.
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

    /// How often the model was re-placed.
    pub(crate) fn placements(&self) -> u64 {
        self.placements.load(Ordering::Acquire)
    }
}

/// A computation that is going on.
pub(crate) struct Computing<'a>(&'a Pulse);

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        add(&self.0.done, 1);
    }
}

/// For a single writer: a seventh of the time of an atomic addition.
fn add(total: &AtomicU64, n: u64) {
    total.store(total.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
