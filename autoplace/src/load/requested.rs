//! A requested re-placement: one part of an application requests it, and the thread that generates carries it out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Woken when a request arrives, even while nothing is generated.
    listener: Option<Waker>,
}

impl Requested {
    /// Sets the request. It replaces an earlier request.
    pub(super) fn ask(&self, replacement: Replacement) {
        let mut held = lock(&self.held);
        held.replacement = Some(replacement);
        self.waiting.store(true, Ordering::Release);
        let listener = held.listener.clone();
        drop(held);
        if let Some(listener) = listener {
            listener.wake();
        }
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

    #[inline]
    pub(crate) fn take(&self) -> Option<Replacement> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let mut held = lock(&self.held);
        self.waiting.store(false, Ordering::Release);
        held.replacement.take()
    }
}
