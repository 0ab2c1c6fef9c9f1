//! A model in a worker process: the messages that load it, and how the application sends and receives them.
//!
//! In: [`LoadOptions`], which are sent to a worker (room [`worker`](crate::worker)). Out: the placement of the model
//! ([`Placed`]), or the reason for a failure. The worker's side is in `serve`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Error;
use super::devices::worker_build;
use super::ipc_error::Failed;
use super::options::LoadOptions;
use super::placed::Placed;
use super::progress::{LoadProgress, Progress};
use crate::plan::Plan;
use crate::sync::lock;
use crate::worker::{self, Handle, Worker, WorkerProcess};

pub(super) type Request = worker::Request<Loading, (), ()>;

/// A request to a worker about its model.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Loading {
    /// The first message of all. `wants_progress` requests progress reports.
    Load {
        options: Box<LoadOptions>,
        wants_progress: bool,
    },
    /// Cancels the load, on behalf of the progress callback.
    CancelLoad,
    /// Aborts the present computation of this run or, if none is running, its next one.
    Abort {
        run: u64,
    },
    Replace {
        plan: Option<Box<Plan>>,
    },
    /// Makes a plan and ends the worker.
    Plan {
        options: Box<LoadOptions>,
    },
    /// Describes the machine that a plan would be made for, and ends the worker.
    Look {
        options: Box<LoadOptions>,
    },
}

/// A reply to [`Loading::Load`]. Every other request gets exactly one answer: a result or an error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Progress(LoadProgress),
    /// The last reply.
    Loaded(Result<Arc<Placed>, Failed>),
}

/// A model's worker, lent to one user at a time.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) process: WorkerProcess,
    state: Mutex<State>,
    deaths: Mutex<VecDeque<worker::Error>>,
}

/// Maximum number of worker deaths that a model remembers.
const REMEMBERED_DEATHS: usize = 16;

#[derive(Debug)]
struct State {
    /// The worker, or the error of its death; `None` while it is lent.
    held: Option<Result<Worker, worker::Error>>,
    /// Gives other threads access to a live worker while it is lent.
    handle: Option<Handle>,
    /// The number of the present loan.
    run: u64,
}

impl State {
    fn held(worker: Result<Worker, worker::Error>) -> Self {
        let handle = worker.as_ref().ok().map(|worker| worker.handle.clone());
        Self { held: Some(worker), handle, run: 0 }
    }

    /// The live worker, while it is lent for this run.
    fn lent(&self, run: u64) -> Option<&Handle> {
        self.handle.as_ref().filter(|_| self.held.is_none() && self.run == run)
    }
}

impl Remote {
    pub(super) fn start(
        options: &LoadOptions,
        process: WorkerProcess,
        progress: &Progress,
    ) -> Result<(Self, Arc<Placed>), Error> {
        let mut attempts = process.attempts();
        let mut deaths = VecDeque::new();
        let mut options = options.clone();
        let (worker, placed) = loop {
            match load_in(&process, options.clone(), progress) {
                Err(Error::Worker(error)) if error.is_death() && attempts > 0 => {
                    tracing::warn!("{error}; starting another");
                    attempts -= 1;
                    remember(&mut deaths, error);
                    options = options.after_a_death();
                }
                result => break result?,
            }
        };
        let state = Mutex::new(State::held(Ok(worker)));
        Ok((Self { process, state, deaths: Mutex::new(deaths) }, placed))
    }

    /// Records the cause of a worker's death.
    pub(super) fn died(&self, death: worker::Error) {
        remember(&mut lock(&self.deaths), death);
    }

    /// The errors with which the last workers have died, the oldest first.
    pub(super) fn deaths(&self) -> Vec<worker::Error> {
        lock(&self.deaths).iter().cloned().collect()
    }

    pub(super) fn id(&self) -> Option<u32> {
        lock(&self.state).handle.as_ref().map(|handle| handle.id)
    }

    /// Lends the worker. If the worker is dead, the borrower may [start another](Self::restart).
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the worker is already lent.
    pub(super) fn take(&self, run: u64) -> Result<Result<Worker, worker::Error>, Error> {
        let mut state = lock(&self.state);
        let worker = state.held.take().ok_or(Error::Busy)?;
        state.run = run;
        Ok(worker)
    }

    pub(super) fn is_lent(&self) -> bool {
        lock(&self.state).held.is_none()
    }

    /// If the worker is lent for this run, limits the wait for its messages to the time that an abort may take.
    pub(super) fn hurry(&self, run: u64) {
        if let Some(handle) = lock(&self.state).lent(run) {
            handle.watch.abort();
        }
    }

    /// If the worker is lent for this run, aborts its present computation or, if none is running, the next one. A dead
    /// worker gets no message.
    pub(super) fn abort(&self, run: u64) {
        let lent = lock(&self.state).lent(run).cloned();
        if let Some(Handle { sender, watch, .. }) = lent {
            watch.abort();
            let _ = sender.send(&Request::Loading(Loading::Abort { run }));
        }
    }

    pub(super) fn give_back(&self, worker: Result<Worker, worker::Error>) {
        *lock(&self.state) = State::held(worker);
    }

    /// Starts a worker in place of a dead one, loads the model there with a plan for the memory that is free by now,
    /// and lends the worker.
    pub(super) fn restart(&self, options: &LoadOptions) -> Result<(Worker, Arc<Placed>), Error> {
        lock(&self.state).handle = None;
        let (worker, placed) = load_in(&self.process, options.after_a_death(), &Progress::default())?;
        lock(&self.state).handle = Some(worker.handle.clone());
        Ok((worker, placed))
    }
}

fn remember(deaths: &mut VecDeque<worker::Error>, death: worker::Error) {
    if deaths.len() == REMEMBERED_DEATHS {
        deaths.pop_front();
    }
    deaths.push_back(death);
}

/// Makes a plan in a worker.
pub(super) fn plan_in(process: &WorkerProcess, options: LoadOptions) -> Result<Plan, Error> {
    answer(process, Loading::Plan { options: Box::new(options) }, "planning")
}

/// The machine for which a worker would plan.
#[cfg(feature = "hub")]
pub(super) fn machine_in(process: &WorkerProcess, options: LoadOptions) -> Result<crate::machine::Machine, Error> {
    answer(process, Loading::Look { options: Box::new(options) }, "looking at the machine")
}

/// Starts a worker for one request and returns its answer.
fn answer<T: DeserializeOwned>(process: &WorkerProcess, request: Loading, doing: &'static str) -> Result<T, Error> {
    let mut worker = Worker::start(process, &worker_build())?;
    worker.send(&Request::Loading(request), doing)?;
    worker.receive::<Result<T, Failed>>(doing)?.map_err(|Failed(error)| error)
}

fn load_in(process: &WorkerProcess, options: LoadOptions, progress: &Progress) -> Result<(Worker, Arc<Placed>), Error> {
    const DOING: &str = "loading the model";
    let mut worker = Worker::start(process, &worker_build())?;
    let (options, wants_progress) = (Box::new(options), progress.is_some());
    worker.send(&Request::Loading(Loading::Load { options, wants_progress }), DOING)?;
    let mut cancelled = false;
    loop {
        match worker.receive(DOING)? {
            Reply::Progress(progressed) => {
                // The cancellation is sent only once, although the worker may report more progress before it reads the
                // cancellation.
                if !cancelled && !progress.report(progressed) {
                    worker.send(&Request::Loading(Loading::CancelLoad), DOING)?;
                    cancelled = true;
                }
            }
            Reply::Loaded(Ok(placed)) => return Ok((worker, placed)),
            Reply::Loaded(Err(Failed(error))) => return Err(error),
        }
    }
}
