//! A session of a model in a worker: its calls, one after the other, and what both sides do with them.

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::Request;
use crate::generate::checkpoints::CheckpointUse;
use crate::generate::error::Error;
use crate::generate::fork::Fork;
use crate::generate::local::SessionHere;
use crate::generate::piece::{Piece, SequenceId};
use crate::generate::request::{Generate, Spec};
use crate::generate::stats::{Replaced, Statistics};
use crate::load::remote::Told;
use crate::load::{AbortHandle, LentWorker, Model, Replacement};
use crate::plan::Plan;
use crate::worker::crossing::Outcome;
use crate::worker::{self, Sender};

const DOING: &str = "computing a session's texts";

/// What a worker is asked for: the methods of a [`Session`](crate::generate::Session).
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// The first: take the context. Answered as the others are.
    Open {
        run: u64,
    },
    Begin(Box<Spec>),
    Step {
        /// To be carried out before.
        replacement: Option<Replacement>,
    },
    End(SequenceId),
    Tokens(SequenceId),
    Fork(SequenceId, Box<Fork>),
    RollBack(SequenceId, usize),
    CanRollBack(SequenceId),
    Replace(Option<Box<Plan>>),
    Improve(f64),
    LastReplaced,
    Save(SequenceId, PathBuf),
    SaveLast(PathBuf),
    Restore(PathBuf),
    /// The last. It has no answer.
    Close,
}

/// What a call came to, and how the session is then.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: DeserializeOwned"))]
struct Answered<T> {
    outcome: Outcome<T, Error>,
    view: View,
}

/// What is looked at without a call.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::generate) struct View {
    pub(in crate::generate) texts: Vec<(SequenceId, Statistics)>,
    pub(in crate::generate) failed: Option<SequenceId>,
    pub(in crate::generate) checkpoints: CheckpointUse,
    pub(in crate::generate) n_seq_max: usize,
    pub(in crate::generate) is_loaded: bool,
    /// No text runs, and there is something to be told of the last step.
    is_owed: bool,
    /// Where the model is, if that has changed.
    placed: Option<Box<Told>>,
}

impl View {
    pub(in crate::generate) fn is_empty(&self) -> bool {
        self.texts.is_empty() && !self.is_owed
    }
}

/// As the application has it.
#[derive(Debug)]
pub(in crate::generate) struct SessionThere {
    worker: Mutex<LentWorker>,
    view: View,
    pieces: VecDeque<Piece>,
}

impl SessionThere {
    pub(in crate::generate) fn open(model: &Model) -> Result<Self, Error> {
        let mut worker = LentWorker::take(model)?;
        let call = Request::Session(Box::new(Call::Open { run: worker.run() }));
        let Answered::<()> { outcome, view } = worker.ask_any(&call, DOING)?;
        outcome.into_result()?;
        Ok(Self { worker: Mutex::new(worker), view, pieces: VecDeque::new() })
    }

    pub(in crate::generate) fn view(&self) -> &View {
        &self.view
    }

    /// Asks for something that changes the session.
    pub(in crate::generate) fn ask<T: DeserializeOwned>(&mut self, call: Call) -> Result<T, Error> {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        match worker.ask(&Request::Session(Box::new(call)), DOING) {
            Ok(Answered { outcome, view }) => {
                self.view = view;
                if let Some(told) = self.view.placed.take() {
                    worker.model().placed_there(*told);
                }
                outcome.into_result()
            }
            Err(error) => {
                if worker.death().is_some() {
                    self.view = View::default();
                }
                Err(error.into())
            }
        }
    }

    /// Asks for something that leaves the session as it is.
    pub(in crate::generate) fn look<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let call = Request::Session(Box::new(call));
        let Answered { outcome, .. } = self.worker().ask(&call, DOING)?;
        outcome.into_result()
    }

    fn worker(&self) -> MutexGuard<'_, LentWorker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::generate) fn begin(&mut self, generate: Generate) -> Result<SequenceId, Error> {
        let (model, spec) = generate.into_parts();
        if !model.is(self.worker().model()) {
            return Err(Error::OtherModel);
        }
        self.ask(Call::Begin(Box::new(spec.for_worker()?)))
    }

    pub(in crate::generate) fn step(&mut self) -> Result<Drain<'_, Piece>, Error> {
        self.pieces.clear();
        let replacement = self.worker().model().requested().map(|asked| match asked {
            Replacement::Better { min_gain } => Replacement::Better { min_gain: finite(min_gain) },
            asked => asked,
        });
        let pieces: Vec<Piece> = self.ask(Call::Step { replacement })?;
        self.pieces.extend(pieces);
        Ok(self.pieces.drain(..))
    }

    pub(in crate::generate) fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.ask(Call::Improve(finite(min_gain)))
    }

    pub(in crate::generate) fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        let mut texts = self.view.texts.iter();
        texts.find(|text| text.0 == sequence).map(|text| text.1)
    }

    pub(in crate::generate) fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        let last: Option<Outcome<Replaced, Error>> = self.look(Call::LastReplaced).ok()?;
        last.map(Outcome::into_result)
    }

    pub(in crate::generate) fn abort_handle(&self) -> AbortHandle {
        self.worker().abort_handle()
    }
}

impl Drop for SessionThere {
    fn drop(&mut self) {
        if let Some(sender) = self.worker().sender() {
            // One that is gone has no session.
            let _ = sender.send(&Request::Session(Box::new(Call::Close)));
        }
    }
}

/// JSON has no others. What is not a number is never reached.
fn finite(min_gain: f64) -> f64 {
    f64::MAX.min(min_gain).max(f64::MIN)
}

/// The worker may be elsewhere than the application is by now.
pub(in crate::generate) fn absolute(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// As the worker has it.
pub(crate) struct SessionHost {
    model: Model,
    session: SessionHere,
    sender: Sender,
    /// The placement that the application knows.
    told: Arc<Plan>,
}

impl SessionHost {
    /// Takes the context and says so, or why not. With the session, what stops a computation of it.
    pub(crate) fn open(
        model: Result<&Model, Error>,
        sender: &Sender,
    ) -> Result<Option<(Self, AbortHandle)>, worker::Error> {
        let opened = model.and_then(|model| Ok((model, SessionHere::open(model)?)));
        match opened {
            Ok((model, session)) => {
                let (model, sender) = (model.clone(), sender.clone());
                let (abort, told) = (session.abort_handle().into(), model.placement());
                let mut host = Self { model, session, sender, told };
                host.answer(Ok(RawValue::NULL.to_owned()))?;
                Ok(Some((host, abort)))
            }
            Err(error) => {
                let outcome = Outcome::<(), _>::Failed(error);
                sender.send(&Answered { outcome, view: View::default() })?;
                Ok(None)
            }
        }
    }

    /// `false`: nobody is there any more.
    pub(crate) fn carry_out(&mut self, call: Call) -> Result<bool, worker::Error> {
        let outcome = self.outcome(call);
        self.answer(outcome)
    }

    fn outcome(&mut self, call: Call) -> Result<Box<RawValue>, Error> {
        let Self { session, model, .. } = self;
        match call {
            Call::Begin(spec) => value(session.begin(Generate::of(model.clone(), *spec))?),
            Call::Step { replacement } => {
                if let Some(replacement) = replacement {
                    model.request_replace(replacement);
                }
                value(session.step()?.collect::<Vec<_>>())
            }
            Call::End(sequence) => value(session.end(sequence)),
            Call::Tokens(sequence) => value(session.tokens(sequence)),
            Call::Fork(sequence, fork) => value(session.fork(sequence, *fork)?),
            Call::RollBack(sequence, tokens) => value(session.roll_back(sequence, tokens)?),
            Call::CanRollBack(sequence) => value(session.can_roll_back(sequence)?),
            Call::Replace(plan) => value(session.replace(plan.map(|plan| *plan))?),
            Call::Improve(min_gain) => value(session.improve(min_gain)?),
            Call::LastReplaced => value(session.last_replaced().cloned().map(Outcome::from)),
            Call::Save(sequence, path) => value(session.save(sequence, path)?),
            Call::SaveLast(path) => value(session.save_last(path)?),
            Call::Restore(path) => value(session.restore(path)?),
            // Whoever has started this has heard them.
            Call::Open { .. } | Call::Close => value(()),
        }
    }

    fn answer(&mut self, outcome: Result<Box<RawValue>, Error>) -> Result<bool, worker::Error> {
        let placed = self.model.placement();
        let is_placed_anew = !Arc::ptr_eq(&placed, &self.told);
        self.told = placed;
        let session = &self.session;
        let view = View {
            texts: session.sequences.iter().map(|it| (it.id, it.statistics)).collect(),
            failed: session.failed(),
            checkpoints: session.checkpoints(),
            n_seq_max: session.n_seq_max(),
            is_loaded: session.is_loaded(),
            is_owed: session.sequences.is_empty() && !session.is_empty(),
            placed: is_placed_anew.then(|| Box::new(Told::of(&self.model))),
        };
        self.sender.send(&Answered { outcome: outcome.into(), view })
    }
}

/// What a call came to, for the connection.
fn value(of: impl Serialize) -> Result<Box<RawValue>, Error> {
    let reason = |error: serde_json::Error| error.to_string();
    let protocol = |reason| worker::Error::Protocol { doing: DOING, reason };
    Ok(to_raw_value(&of).map_err(reason).map_err(protocol)?)
}
