//! A session of a model in a worker: its calls, and how the application makes them. The calls run one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use llama_sys::Token;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Request;
use super::TextCall;
use crate::decode::checkpoints::CheckpointUse;
use crate::decode::error::Error;
use crate::decode::piece::{Piece, SequenceId};
use crate::decode::request::{GenerateRequest, Spec};
use crate::decode::stats::{Replaced, Statistics};
use crate::load::ipc_error::Failed;
use crate::load::{AbortHandle, LentWorker, Model, Placed, Replacement};
use crate::plan::Plan;
use crate::run::local::fork::Fork;
use crate::run::local::roll_back::RolledBack;
use crate::sync::lock;

const DOING: &str = "computing a session's texts";

/// A call of a [`Session`](crate::generate::Session), as a request to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SessionCall {
    /// The first call: the worker takes the context.
    Open {
        run: u64,
    },
    Begin(Box<Spec>),
    Step {
        /// A requested re-placement, which is carried out before the step.
        replacement: Option<Replacement>,
    },
    End(SequenceId),
    Tokens(SequenceId),
    Fork(SequenceId, Box<Fork>),
    RollBack(SequenceId, usize),
    CanRollBack(SequenceId),
    Replace(Option<Box<Plan>>),
    Improve(f64),
    /// The last call, which has no answer.
    Close,
}

/// The outcome of a call, and the state of the session after the call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: DeserializeOwned"))]
pub(crate) struct Answer<T> {
    pub(crate) outcome: Result<T, Failed<Error>>,
    pub(crate) view: View,
    /// The placement of the model, if it has changed.
    pub(crate) placed: Option<Arc<Placed>>,
    /// The outcome of a re-placement that the call carried out.
    pub(crate) replaced: Option<Result<Replaced, Failed<Error>>>,
}

/// The state of a session that the application can read without a call.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct View {
    pub(crate) texts: Vec<(SequenceId, Statistics)>,
    pub(crate) failed: Option<SequenceId>,
    pub(crate) checkpoints: CheckpointUse,
    pub(crate) n_seq_max: usize,
    pub(crate) is_loaded: bool,
    pub(crate) is_empty: bool,
}

impl View {
    pub(crate) fn statistics(&self, sequence: SequenceId) -> Option<Statistics> {
        self.texts.iter().find(|text| text.0 == sequence).map(|text| text.1)
    }

    /// The state after the worker has died: no text is left.
    pub(crate) fn of_none() -> Self {
        Self { is_empty: true, ..Self::default() }
    }
}

/// The application's side of a session.
#[derive(Debug)]
pub(crate) struct WorkerSession {
    worker: Mutex<LentWorker>,
    view: View,
    last_replaced: Option<Result<Replaced, Error>>,
}

impl WorkerSession {
    pub(crate) fn open(model: &Model) -> Result<Self, Error> {
        let mut worker = LentWorker::take(model)?;
        let opened: Answer<()> = worker.survive(|worker| {
            let open = Request::Text(TextCall::Session(SessionCall::Open { run: worker.run() }));
            worker.ask(&open, DOING)
        })?;
        opened.outcome.map_err(|Failed(error)| error)?;
        Ok(Self { worker: Mutex::new(worker), view: opened.view, last_replaced: None })
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Makes a call that may change the session.
    fn ask<T: DeserializeOwned>(&mut self, call: SessionCall) -> Result<T, Error> {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        match worker.ask::<Answer<T>>(&Request::Text(TextCall::Session(call)), DOING) {
            Ok(Answer { outcome, view, placed, replaced }) => {
                self.view = view;
                if let Some(placed) = placed {
                    worker.model().set_placed(placed);
                }
                if let Some(replaced) = replaced {
                    self.last_replaced = Some(replaced.map_err(|Failed(error)| error));
                }
                outcome.map_err(|Failed(error)| error)
            }
            Err(error) => {
                if worker.death().is_some() {
                    self.view = View::of_none();
                }
                Err(error.into())
            }
        }
    }

    /// Makes a call that does not change the session.
    fn look<T: DeserializeOwned>(&self, call: SessionCall) -> Result<T, Error> {
        let call = Request::Text(TextCall::Session(call));
        let Answer { outcome, .. } = lock(&self.worker).ask(&call, DOING)?;
        outcome.map_err(|Failed(error)| error)
    }

    pub(crate) fn begin(&mut self, generate: GenerateRequest) -> Result<SequenceId, Error> {
        let GenerateRequest { model, spec } = generate;
        if !model.is(lock(&self.worker).model()) {
            return Err(Error::OtherModel);
        }
        // A worker could return this error only as text.
        model.scales(spec.lora.as_deref())?;
        spec.check_for_worker()?;
        self.ask(SessionCall::Begin(Box::new(spec)))
    }

    pub(crate) fn fork(&mut self, sequence: SequenceId, fork: Fork) -> Result<SequenceId, Error> {
        self.ask(SessionCall::Fork(sequence, Box::new(fork)))
    }

    pub(crate) fn roll_back(&mut self, sequence: SequenceId, tokens: usize) -> Result<RolledBack, Error> {
        self.ask(SessionCall::RollBack(sequence, tokens))
    }

    pub(crate) fn can_roll_back(&self, sequence: SequenceId) -> Result<usize, Error> {
        self.look(SessionCall::CanRollBack(sequence))
    }

    pub(crate) fn step(&mut self) -> Result<Vec<Piece>, Error> {
        let (replacement, _under_way) = lock(&self.worker).model().requests().take().unzip();
        self.ask(SessionCall::Step { replacement })
    }

    pub(crate) fn end(&mut self, sequence: SequenceId) -> Option<Statistics> {
        self.ask(SessionCall::End(sequence)).ok().flatten()
    }

    pub(crate) fn tokens(&self, sequence: SequenceId) -> Option<Vec<Token>> {
        self.look(SessionCall::Tokens(sequence)).ok().flatten()
    }

    pub(crate) fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.ask(SessionCall::Replace(plan.map(Box::new)))
    }

    pub(crate) fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.ask(SessionCall::Improve(min_gain))
    }

    pub(crate) fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        self.last_replaced.as_ref()
    }

    pub(crate) fn abort_handle(&self) -> AbortHandle {
        lock(&self.worker).abort_handle()
    }
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        if let Some(sender) = lock(&self.worker).sender() {
            // A dead worker has no session to close.
            let _ = sender.send(&Request::Text(TextCall::Session(SessionCall::Close)));
        }
    }
}
