//! A re-placement that somebody asks for who does not generate: left with the model, and carried out
//! between two tokens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::plan::Plan;

/// How a model is to be placed anew ([`Model::request_replace`](super::Model::request_replace)).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Replacement {
    /// By a plan for what is free once the model is released.
    Anew,
    /// By this plan.
    By(Box<Plan>),
    /// By the plan of [`Model::better_plan`](super::Model::better_plan), where that is better by this
    /// [gain](super::BetterPlan::gain) at least.
    Better {
        /// 0.25: a quarter more predicted tokens per second.
        min_gain: f64,
    },
}

/// What was asked for and is not done yet. The flag is all that a token costs.
#[derive(Debug, Default)]
pub(super) struct Requested {
    waiting: AtomicBool,
    replacement: Mutex<Option<Replacement>>,
    /// Whoever carries it out even while nothing is generated.
    listener: Mutex<Option<Waker>>,
}

impl Requested {
    /// Takes the place of an earlier request.
    pub(super) fn ask(&self, replacement: Replacement) {
        let mut held = locked(&self.replacement);
        *held = Some(replacement);
        self.waiting.store(true, Ordering::Release);
        drop(held);
        let listener = locked(&self.listener).clone();
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    pub(super) fn listen(&self, listener: Option<Waker>) {
        let before = std::mem::replace(&mut *locked(&self.listener), listener);
        drop(before);
    }

    #[inline]
    pub(super) fn take(&self) -> Option<Replacement> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let mut held = locked(&self.replacement);
        self.waiting.store(false, Ordering::Release);
        held.take()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
