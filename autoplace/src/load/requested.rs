//! A requested re-placement: one part of an application requests it, and the thread that generates carries it out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::sync::lock;

/// A kind of re-placement, for [`Model::request_replace`](super::Model::request_replace).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Replacement {
    /// Uses a new plan for the memory that is free after the model was released.
    Replan,
    /// Uses this plan.
    By(Box<Plan>),
    /// Uses this plan, which is the placement for the present [depth](crate::plan::Plan::by_depth). If it cannot be
    /// loaded, the earlier plan is loaded again if possible.
    ForDepth(Box<Plan>),
    /// Uses the plan of [`Model::better_plan`](super::Model::better_plan), if its [gain](super::BetterPlan::gain) is at
    /// least `min_gain`.
    Better {
        /// Minimum gain; 0.25 means 25 % more predicted tokens per second.
        min_gain: f64,
    },
}

/// A requested re-placement that is carried out between two tokens. To check for a request costs one read of a flag per
/// token.
#[derive(Debug, Default)]
pub(crate) struct Requested {
    waiting: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    replacement: Option<Replacement>,
    /// The number of taken requests that are being carried out.
    under_way: usize,
    /// Woken when a request arrives, even while nothing is generated.
    listener: Option<Waker>,
}

/// A request that was taken. It counts as under way until this value is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Requested>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.held).under_way -= 1;
    }
}

/// What [`Requested::take_or_look`] finds.
#[derive(Debug)]
pub(super) enum Found {
    /// A request that waited. The caller has taken it.
    Waiting(Replacement, UnderWay),
    /// A request that another part of the application carries out now.
    UnderWay,
    Nothing,
}

impl Requested {
    /// Sets the request. It replaces an earlier request.
    pub(super) fn ask(&self, replacement: Replacement) {
        self.set(replacement, true);
    }

    /// Sets a request again that was taken and could not be carried out, unless a later request waits.
    pub(super) fn put_back(&self, replacement: Replacement) {
        self.set(replacement, false);
    }

    fn set(&self, replacement: Replacement, replaces: bool) {
        let mut held = lock(&self.held);
        if replaces || held.replacement.is_none() {
            held.replacement = Some(replacement);
        }
        self.waiting.store(true, Ordering::Release);
        let listener = held.listener.clone();
        drop(held);
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// Whether there is a request that nobody has taken.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Withdraws the request. Returns whether there was one that nobody had taken yet.
    pub(super) fn withdraw(&self) -> bool {
        let mut held = lock(&self.held);
        self.waiting.store(false, Ordering::Release);
        held.replacement.take().is_some()
    }

    /// Sets the waker that is woken by a request.
    pub(crate) fn listen(&self, listener: Option<Waker>) {
        let before = std::mem::replace(&mut lock(&self.held).listener, listener);
        // Dropping a waker runs foreign code, so the lock is released first.
        drop(before);
    }

    /// Takes the request, if there is one.
    #[inline]
    pub(crate) fn take(self: &Arc<Self>) -> Option<(Replacement, UnderWay)> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        match self.take_or_look() {
            Found::Waiting(replacement, under_way) => Some((replacement, under_way)),
            Found::UnderWay | Found::Nothing => None,
        }
    }

    /// Takes the request, if there is one. Otherwise says whether one is under way.
    pub(super) fn take_or_look(self: &Arc<Self>) -> Found {
        let mut held = lock(&self.held);
        self.waiting.store(false, Ordering::Release);
        match held.replacement.take() {
            Some(replacement) => {
                held.under_way += 1;
                Found::Waiting(replacement, UnderWay(Arc::clone(self)))
            }
            None if held.under_way > 0 => Found::UnderWay,
            None => Found::Nothing,
        }
    }
}
