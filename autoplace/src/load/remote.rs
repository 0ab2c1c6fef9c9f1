//! A model in a worker process: what is said to load it there, and the handle's side of it.
//!
//! In: a [`Load`], sent to a worker of the room [`worker`](crate::worker). Out: where the model went ([`Told`]), or why
//! it did not. The worker's side is in `serve`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::model::{Model, Placed};
use super::progress::Progress;
use super::recipe::Recipe;
use super::{Error, LoadReport, build_name};
use crate::machine::Machine;
use crate::memory::Footprints;
use crate::plan::{Plan, Replay, SavedPlan};
use crate::worker::{self, Worker, WorkerProcess};

/// What a worker is asked for, of the load. Externally tagged, so that its names are apart from those of a
/// generation's requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// The first message of all.
    Load(Box<Load>),
    /// The progress callback does not want to go on.
    CancelLoad,
    /// Place the model anew.
    Replace { plan: Option<Box<Plan>> },
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
    machine: Machine,
    allocated: Footprints,
    /// With the plan that was followed.
    report: LoadReport,
}

impl Told {
    /// Of a model of this process.
    pub(crate) fn of(model: &Model) -> Self {
        Self {
            machine: (*model.machine()).clone(),
            allocated: model.allocated(),
            report: (*model.report()).clone(),
        }
    }

    fn placed(self) -> Placed {
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

#[derive(Debug)]
enum State {
    Ready(Worker),
    /// To whoever talks with it, or starts another.
    Lent {
        id: Option<u32>,
    },
    Dead(worker::Error),
}

impl Remote {
    /// Starts a worker and has the model loaded there.
    pub(super) fn start(
        load: Load,
        process: WorkerProcess,
        progress: &Progress,
    ) -> Result<(Self, Placed), Error> {
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
        let remote = Self {
            load,
            process,
            state: Mutex::new(State::Ready(worker)),
        };
        Ok((remote, told.placed()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a worker and has it load.
fn load_in(
    process: &WorkerProcess,
    load: &Load,
    progress: &Progress,
) -> Result<(Worker, Told), Error> {
    const DOING: &str = "loading the model";
    let mut worker = Worker::start(process, &build_name())?;
    let request = Request::Load(Box::new(load.clone()));
    worker.send(&request, DOING)?;
    let mut cancelled = false;
    loop {
        match worker.receive(DOING)? {
            Reply::Progress(done) => {
                // Once is enough: it may tell of more before it hears of it.
                if !cancelled && !progress.tell(done) {
                    worker.send(&Request::CancelLoad, DOING)?;
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

impl Model {
    /// Whether the model is in a worker.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.remote().is_some()
    }

    /// The process that the model runs in, where that is a worker.
    #[must_use]
    pub fn worker_id(&self) -> Option<u32> {
        match &*self.remote()?.state() {
            State::Ready(worker) => Some(worker.id()),
            State::Lent { id } => *id,
            State::Dead(_) => None,
        }
    }

    /// How often a worker may be started again for one generation.
    pub(crate) fn worker_attempts(&self) -> u32 {
        self.remote().map_or(0, |remote| remote.process.attempts())
    }

    /// Lends the worker.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while it is lent already; [`Error::Worker`] with the death that it died. The caller then is the
    /// one to start another ([`restart_worker`](Self::restart_worker)), or to say that it stays dead
    /// ([`worker_is_dead`](Self::worker_is_dead)).
    pub(crate) fn take_worker(&self) -> Result<Worker, Error> {
        let remote = self.remote().ok_or(Error::NotLoaded)?;
        let mut state = remote.state();
        let id = match &*state {
            State::Ready(worker) => Some(worker.id()),
            State::Lent { id } => *id,
            State::Dead(_) => None,
        };
        match std::mem::replace(&mut *state, State::Lent { id }) {
            State::Ready(worker) => Ok(worker),
            State::Lent { .. } => Err(Error::Busy),
            State::Dead(error) => Err(error.into()),
        }
    }

    /// Takes a lent worker back.
    pub(crate) fn return_worker(&self, worker: Worker) {
        if let Some(remote) = self.remote() {
            *remote.state() = State::Ready(worker);
        }
    }

    /// Says that the worker is no more.
    pub(crate) fn worker_is_dead(&self, error: worker::Error) {
        if let Some(remote) = self.remote() {
            *remote.state() = State::Dead(error);
        }
    }

    /// Starts another worker in place of a dead one and has the model loaded there, by what is free by now. It is lent
    /// at once. After an error the model stays without.
    pub(crate) fn restart_worker(&self) -> Result<Worker, Error> {
        let remote = self.remote().ok_or(Error::NotLoaded)?;
        match load_in(&remote.process, &remote.load, &Progress::default()) {
            Ok((worker, told)) => {
                *remote.state() = State::Lent {
                    id: Some(worker.id()),
                };
                self.set_placed(told.placed());
                Ok(worker)
            }
            Err(error) => {
                if let Error::Worker(error) = &error {
                    *remote.state() = State::Dead(error.clone());
                }
                Err(error)
            }
        }
    }

    /// [`Model::replace`] of a model in a worker.
    pub(super) fn replace_in_worker(&self, plan: Option<Plan>) -> Result<(), Error> {
        const DOING: &str = "placing the model anew";
        let mut worker = self.take_worker().inspect_err(|error| {
            if let Error::Worker(error) = error {
                self.worker_is_dead(error.clone());
            }
        })?;
        let plan = plan.map(Box::new);
        let reply = worker
            .send(&Request::Replace { plan }, DOING)
            .and_then(|()| worker.receive(DOING));
        match reply {
            Ok(reply) => {
                self.return_worker(worker);
                match reply {
                    Reply::Loaded(told) => {
                        self.set_placed(told.placed());
                        Ok(())
                    }
                    Reply::Failed(error) => Err(error),
                    Reply::Progress(_) => Err(worker::Error::Protocol {
                        doing: DOING,
                        reason: "it told of a progress that nobody asked for".into(),
                    }
                    .into()),
                }
            }
            Err(error) => {
                self.worker_is_dead(error.clone());
                Err(error.into())
            }
        }
    }

    fn set_placed(&self, placed: Placed) {
        *self.placed_mut() = Arc::new(placed);
    }
}
