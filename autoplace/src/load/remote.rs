//! A model in a worker process: the messages that load it there, and the handle's side of them.
//!
//! In: a [`Recipe`], sent to a worker of the room [`worker`](crate::worker). Out: where the model went ([`Placed`]), or
//! why it did not. The worker's side is in `serve`.

use std::sync::{Arc, Mutex};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Error;
use super::crossing::Failed;
use super::devices::worker_build;
use super::placed::Placed;
use super::progress::Progress;
use super::recipe::Recipe;
use crate::lock;
use crate::plan::Plan;
use crate::worker::{self, Handle, Worker, WorkerProcess};

pub(super) type Request = worker::Request<Loading, (), ()>;

/// A request to a worker about the model.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Loading {
    /// The first message of all. `wants_progress`: whether to report the progress.
    Load {
        recipe: Box<Recipe>,
        wants_progress: bool,
    },
    /// Cancel the load, as the progress callback asked.
    CancelLoad,
    /// Stop the computation of this run, or its next one, with an error.
    Abort {
        run: u64,
    },
    Replace {
        plan: Option<Box<Plan>>,
    },
    /// Only plan, and end.
    Plan {
        recipe: Box<Recipe>,
    },
    /// Only say which machine a plan would be for, and end.
    Look {
        recipe: Box<Recipe>,
    },
}

/// What a worker answers to [`Loading::Load`]. Other requests have one answer: what was asked for, or why not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// From 0.0 to 1.0.
    Progress(f32),
    /// The last.
    Loaded(Result<Arc<Placed>, Failed>),
}

/// A model's worker, lent to one user at a time.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) process: WorkerProcess,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The worker, or how it died; `None` while it is lent.
    held: Option<Result<Worker, worker::Error>>,
    /// What other threads can use of a live worker while it is lent.
    handle: Option<Handle>,
    /// What it is lent for.
    run: u64,
}

impl State {
    fn held(worker: Result<Worker, worker::Error>) -> Self {
        let handle = worker.as_ref().ok().map(|worker| worker.handle.clone());
        Self { held: Some(worker), handle, run: 0 }
    }

    /// The worker, while it is lent for this and lives.
    fn lent(&self, run: u64) -> Option<&Handle> {
        self.handle.as_ref().filter(|_| self.held.is_none() && self.run == run)
    }
}

impl Remote {
    pub(super) fn start(
        recipe: &Recipe,
        process: WorkerProcess,
        progress: &Progress,
    ) -> Result<(Self, Arc<Placed>), Error> {
        let mut attempts = process.attempts();
        let mut recipe = recipe.clone();
        let (worker, placed) = loop {
            match load_in(&process, recipe.clone(), progress) {
                Err(Error::Worker(error)) if error.is_death() && attempts > 0 => {
                    tracing::warn!("{error}; starting another");
                    attempts -= 1;
                    recipe = recipe.after_a_death();
                }
                result => break result?,
            }
        };
        Ok((Self { process, state: Mutex::new(State::held(Ok(worker))) }, placed))
    }

    pub(super) fn id(&self) -> Option<u32> {
        lock(&self.state).handle.as_ref().map(|handle| handle.id)
    }

    /// Lends the worker, or how it died: the borrower may [start another](Self::restart).
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while it is lent already.
    pub(super) fn take(&self, run: u64) -> Result<Result<Worker, worker::Error>, Error> {
        let mut state = lock(&self.state);
        let worker = state.held.take().ok_or(Error::Busy)?;
        state.run = run;
        Ok(worker)
    }

    /// The worker is waited for no longer than an abort may take, while it is lent for this run.
    pub(super) fn hurry(&self, run: u64) {
        if let Some(handle) = lock(&self.state).lent(run) {
            handle.watch.abort();
        }
    }

    /// Stops what the worker computes of this run, or will, while it is lent. One that is gone needs to know nothing.
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

    /// Starts another worker in place of a dead one and has the model loaded there, by what is free by now. It is lent
    /// at once.
    pub(super) fn restart(&self, recipe: &Recipe) -> Result<(Worker, Arc<Placed>), Error> {
        lock(&self.state).handle = None;
        let (worker, placed) = load_in(&self.process, recipe.after_a_death(), &Progress::default())?;
        lock(&self.state).handle = Some(worker.handle.clone());
        Ok((worker, placed))
    }
}

/// The plan that a worker makes.
pub(super) fn plan_in(process: &WorkerProcess, recipe: Recipe) -> Result<Plan, Error> {
    answer(process, Loading::Plan { recipe: Box::new(recipe) }, "planning")
}

/// The machine that a worker would plan for.
#[cfg(feature = "hub")]
pub(super) fn machine_in(process: &WorkerProcess, recipe: Recipe) -> Result<crate::machine::Machine, Error> {
    answer(process, Loading::Look { recipe: Box::new(recipe) }, "looking at the machine")
}

/// What a worker of its own answers.
fn answer<T: DeserializeOwned>(process: &WorkerProcess, request: Loading, doing: &'static str) -> Result<T, Error> {
    let mut worker = Worker::start(process, &worker_build())?;
    worker.send(&Request::Loading(request), doing)?;
    worker.receive::<Result<T, Failed>>(doing)?.map_err(|Failed(error)| error)
}

fn load_in(process: &WorkerProcess, recipe: Recipe, progress: &Progress) -> Result<(Worker, Arc<Placed>), Error> {
    const DOING: &str = "loading the model";
    let mut worker = Worker::start(process, &worker_build())?;
    let (recipe, wants_progress) = (Box::new(recipe), progress.is_some());
    worker.send(&Request::Loading(Loading::Load { recipe, wants_progress }), DOING)?;
    let mut cancelled = false;
    loop {
        match worker.receive(DOING)? {
            Reply::Progress(done) => {
                // Once is enough: it may report more progress before it hears of the cancellation.
                if !cancelled && !progress.report(done) {
                    worker.send(&Request::Loading(Loading::CancelLoad), DOING)?;
                    cancelled = true;
                }
            }
            Reply::Loaded(Ok(placed)) => return Ok((worker, placed)),
            Reply::Loaded(Err(Failed(error))) => return Err(error),
        }
    }
}
