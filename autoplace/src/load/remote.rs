//! A model in a worker process: what is said to load it there, and the handle's side of it.
//!
//! In: a [`Load`], sent to a worker of the room [`worker`](crate::worker). Out: where the model went ([`Told`]), or why
//! it did not. The worker's side is in `serve`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::devices::build_name;
use super::placed::Placed;
use super::progress::Progress;
use super::recipe::Recipe;
use super::report::LoadReport;
use super::{Error, Model};
use crate::machine::Machine;
use crate::memory::Footprints;
use crate::plan::{Plan, Replay, SavedPlan};
use crate::worker::{self, Worker, WorkerProcess};

/// What a worker is asked for, of the load. Externally tagged, so that its names are apart from those of a
/// generation's requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Loading(Loading),
}

/// What a worker is asked for, of the model.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loading {
    /// The first message of all.
    Load(Box<Load>),
    /// The progress callback does not want to go on.
    CancelLoad,
    /// Stop the computation of this run, or its next one, with an error.
    Abort {
        run: u64,
    },
    Replace {
        plan: Option<Box<Plan>>,
    },
}

/// How a worker is to load a model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(super) recipe: Recipe,
    pub(super) saved: Option<Box<SavedPlan>>,
    pub(super) replay: Replay,
    /// Whether anybody wants to know of the progress.
    pub(crate) tell_progress: bool,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// From 0.0 to 1.0.
    Progress(f32),
    Loaded(Box<Told>),
    Failed(#[serde(with = "worker::crossing")] Error),
}

/// Where a model went, as its handle tells it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) machine: Machine,
    pub(crate) allocated: Footprints,
    /// With the plan that was followed.
    pub(crate) report: LoadReport,
}

impl Told {
    pub(crate) fn of(model: &Model) -> Self {
        Self { machine: (*model.machine()).clone(), allocated: model.allocated(), report: (*model.report()).clone() }
    }

    pub(super) fn placed(self) -> Placed {
        Placed::told(self.machine, self.allocated, self.report)
    }
}

/// A model's worker, lent to whoever talks with it.
#[derive(Debug)]
pub(super) struct Remote {
    load: Load,
    process: WorkerProcess,
    state: Mutex<State>,
}

/// A worker that somebody else talks with.
#[derive(Debug)]
struct Abroad {
    id: u32,
    sender: worker::Sender,
    watch: Arc<worker::Watch>,
}

#[derive(Debug)]
enum State {
    Ready(Worker),
    /// To whoever talks with it, or starts another.
    Lent(Option<Abroad>),
    Dead(worker::Error),
}

impl Remote {
    pub(super) fn start(load: Load, process: WorkerProcess, progress: &Progress) -> Result<(Self, Placed), Error> {
        let mut attempts = process.attempts();
        let (worker, told) = loop {
            match load_in(&process, &load, progress) {
                Err(Error::Worker(error)) if error.is_death() && attempts > 0 => {
                    tracing::warn!("{error}; starting another");
                    attempts -= 1;
                }
                result => break result?,
            }
        };
        let remote = Self { load, process, state: Mutex::new(State::Ready(worker)) };
        Ok((remote, told.placed()))
    }

    /// How often a worker may be started again for one generation.
    pub(super) fn attempts(&self) -> u32 {
        self.process.attempts()
    }

    pub(super) fn id(&self) -> Option<u32> {
        self.state().id()
    }

    /// Lends the worker.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while it is lent already; [`Error::Worker`] with the death that it died. The caller then is the
    /// one to [start another](Self::restart), or to say that it [stays dead](Self::died).
    pub(super) fn take(&self) -> Result<Worker, Error> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Lent(None)) {
            State::Ready(worker) => {
                *state = State::lent(&worker);
                Ok(worker)
            }
            lent @ State::Lent(_) => {
                *state = lent;
                Err(Error::Busy)
            }
            State::Dead(error) => Err(error.into()),
        }
    }

    /// The worker is waited for no longer than an abort may take, while it is lent.
    pub(super) fn hurry(&self) {
        if let State::Lent(Some(lent)) = &*self.state() {
            lent.watch.abort();
        }
    }

    /// Stops what the worker computes of this run, or will, while it is lent. One that is gone needs to know nothing.
    pub(super) fn abort(&self, run: u64) {
        let state = self.state();
        if let State::Lent(Some(Abroad { sender, watch, .. })) = &*state {
            watch.abort();
            let sender = sender.clone();
            drop(state);
            let _ = sender.send(&Request::Loading(Loading::Abort { run }));
        }
    }

    pub(super) fn give_back(&self, worker: Worker) {
        *self.state() = State::Ready(worker);
    }

    pub(super) fn died(&self, error: worker::Error) {
        *self.state() = State::Dead(error);
    }

    /// Starts another worker in place of a dead one and has the model loaded there, by what is free by now. It is lent
    /// at once.
    pub(super) fn restart(&self) -> Result<(Worker, Placed), Error> {
        let (worker, told) = load_in(&self.process, &self.load, &Progress::default())?;
        *self.state() = State::lent(&worker);
        Ok((worker, told.placed()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lent(worker: &Worker) -> Self {
        let (id, sender, watch) = (worker.id(), worker.sender(), worker.watch());
        Self::Lent(Some(Abroad { id, sender, watch }))
    }

    fn id(&self) -> Option<u32> {
        match self {
            Self::Ready(worker) => Some(worker.id()),
            Self::Lent(lent) => lent.as_ref().map(|lent| lent.id),
            Self::Dead(_) => None,
        }
    }
}

fn load_in(process: &WorkerProcess, load: &Load, progress: &Progress) -> Result<(Worker, Told), Error> {
    const DOING: &str = "loading the model";
    let mut worker = Worker::start(process, &build_name())?;
    let request = Request::Loading(Loading::Load(Box::new(load.clone())));
    worker.send(&request, DOING)?;
    let mut cancelled = false;
    loop {
        match worker.receive(DOING)? {
            Reply::Progress(done) => {
                // Once is enough: it may tell of more before it hears of it.
                if !cancelled && !progress.tell(done) {
                    worker.send(&Request::Loading(Loading::CancelLoad), DOING)?;
                    cancelled = true;
                }
            }
            Reply::Loaded(told) => return Ok((worker, *told)),
            Reply::Failed(error) => return Err(error),
        }
    }
}

/// For what a worker has and this process does not.
pub(super) fn elsewhere(what: &'static str) -> Error {
    worker::Error::Elsewhere { what }.into()
}
