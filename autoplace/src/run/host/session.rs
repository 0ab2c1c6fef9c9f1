//! The worker's side of a session: carries out its calls, one after the other.

use std::sync::Arc;

use serde::Serialize;

use crate::decode::error::Error;
use crate::decode::piece::Piece;
use crate::decode::request::GenerateRequest;
use crate::load::ipc_error::Failed;
use crate::load::{AbortHandle, Model};
use crate::plan::Plan;
use crate::run::local::LocalSession;
use crate::run::remote::{Answer, SessionCall, View};
use crate::worker;

/// The worker's side of a session.
pub(crate) struct SessionHost {
    model: Model,
    session: LocalSession,
    sender: worker::Sender,
    /// The placement that was last reported to the application.
    known: Arc<Plan>,
}

impl SessionHost {
    /// Opens a session and reports the outcome. The handle aborts its computation.
    pub(crate) fn open(
        model: Result<&Model, Error>,
        sender: &worker::Sender,
    ) -> Result<Option<(Self, AbortHandle)>, worker::Error> {
        match model.and_then(|model| Ok((model, LocalSession::open(model)?))) {
            Ok((model, session)) => {
                let (abort, known) = (session.abort_handle(), model.placement());
                let mut host = Self { model: model.clone(), session, sender: sender.clone(), known };
                host.answer(Ok(()), false)?;
                Ok(Some((host, abort)))
            }
            Err(error) => {
                let outcome: Result<(), _> = Err(Failed(error));
                sender.send(&Answer { outcome, view: View::of_none(), placed: None, replaced: None })?;
                Ok(None)
            }
        }
    }

    /// Carries out a call. Returns false when the application is gone.
    pub(crate) fn carry_out(&mut self, call: SessionCall) -> Result<bool, worker::Error> {
        let Self { session, model, .. } = self;
        match call {
            SessionCall::Begin(spec) => {
                let begun = session.begin(GenerateRequest { model: model.clone(), spec: *spec });
                self.answer(begun, false)
            }
            SessionCall::Step { replacement } => {
                let replaces = replacement.is_some();
                if let Some(replacement) = replacement {
                    model.request_replace(replacement);
                }
                let pieces = session.step().map(Iterator::collect::<Vec<Piece>>);
                self.answer(pieces, replaces)
            }
            SessionCall::End(sequence) => {
                let ended = session.end(sequence);
                self.answer(Ok(ended), false)
            }
            SessionCall::Tokens(sequence) => {
                let tokens = session.tokens(sequence);
                self.answer(Ok(tokens), false)
            }
            SessionCall::Fork(sequence, fork) => {
                let forked = session.fork(sequence, *fork);
                self.answer(forked, false)
            }
            SessionCall::RollBack(sequence, tokens) => {
                let rolled_back = session.roll_back(sequence, tokens);
                self.answer(rolled_back, false)
            }
            SessionCall::CanRollBack(sequence) => {
                let possible = session.can_roll_back(sequence);
                self.answer(possible, false)
            }
            SessionCall::Replace(plan) => {
                let replaced = session.replace(plan.map(|plan| *plan));
                self.answer(replaced, true)
            }
            SessionCall::Improve(min_gain) => {
                let improved = session.improve(min_gain);
                self.answer(improved, true)
            }
            // These calls are handled by the code that opened the session.
            SessionCall::Open { .. } | SessionCall::Close => Ok(true),
        }
    }

    fn answer<T: Serialize>(&mut self, outcome: Result<T, Error>, replaces: bool) -> Result<bool, worker::Error> {
        let placement = self.model.placement();
        let has_moved = !Arc::ptr_eq(&placement, &self.known);
        self.known = placement;
        let session = &self.session;
        let view = View {
            texts: session.sequences.iter().map(|sequence| (sequence.id, sequence.statistics)).collect(),
            failed: session.failed(),
            checkpoints: session.checkpoints(),
            n_seq_max: session.n_seq_max(),
            is_loaded: session.is_loaded(),
            is_empty: session.is_empty(),
        };
        // The session may have moved by itself, for the depth of its texts.
        let replaced = session.last_replaced().filter(|_| replaces || has_moved).cloned();
        self.sender.send(&Answer {
            outcome: outcome.map_err(Failed),
            view,
            placed: has_moved.then(|| self.model.placed()),
            replaced: replaced.map(|replaced| replaced.map_err(Failed)),
        })
    }
}
