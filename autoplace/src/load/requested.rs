//! A re-placement that somebody asks for who does not generate: left with the model, and carried out
//! between two tokens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::{Error, Model};
use crate::plan::Plan;

/// How a model is to be placed anew ([`Model::request_replace`]).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Replacement {
    /// By a plan for what is free once the model is released.
    Anew,
    /// By this plan.
    By(Box<Plan>),
    /// By the plan of [`Model::better_plan`], where that is better by this [gain](super::BetterPlan::gain) at least.
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
    fn held(&self) -> MutexGuard<'_, Option<Replacement>> {
        self.replacement
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn listener(&self) -> MutexGuard<'_, Option<Waker>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    /// Asks whoever generates with this model to place it anew before the next token: the streams and sessions in this
    /// process look after each; those of a model in a worker, when they begin; an [`Engine`](crate::generate::Engine)
    /// looks while it has nothing to do as well. A later request takes the place of an earlier one; while nobody
    /// generates it waits.
    ///
    /// Where it is refused, the generation goes on as it was, and
    /// [`Session::last_replaced`](crate::generate::Session::last_replaced) tells why.
    pub fn request_replace(&self, replacement: Replacement) {
        let requested = self.requests();
        let mut held = requested.held();
        *held = Some(replacement);
        requested.waiting.store(true, Ordering::Release);
        drop(held);
        let listener = requested.listener().clone();
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// Has whoever holds the context be woken when something is asked for.
    pub(crate) fn listen_to_requests(&self, listener: Option<Waker>) {
        let mut held = self.requests().listener();
        let before = std::mem::replace(&mut *held, listener);
        drop(held);
        drop(before);
    }

    /// Places the model anew at once if nobody generates, and else asks whoever does to do it before the next token.
    pub(crate) fn replace_soon(&self, replacement: Replacement) -> Result<(), Error> {
        match self.carry_out(&replacement) {
            Err(Error::Busy) => {
                self.request_replace(replacement);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Does what was asked for, while nobody generates.
    pub(crate) fn carry_out(&self, replacement: &Replacement) -> Result<(), Error> {
        match replacement {
            Replacement::Anew => self.replace(None),
            Replacement::By(plan) => self.replace(Some(Plan::clone(plan))),
            Replacement::Better { min_gain } => match self.better_plan()? {
                Some(better) if better.gain() >= *min_gain => self.replace(Some(better.plan)),
                _ => Ok(()),
            },
        }
    }

    /// Takes what was asked for.
    #[inline]
    pub(crate) fn requested(&self) -> Option<Replacement> {
        let requested = self.requests();
        if !requested.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let mut held = requested.held();
        requested.waiting.store(false, Ordering::Release);
        held.take()
    }
}
