//! A model's worker, lent to one user at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{AbortHandle, Error, Model};
use crate::worker::{self, Sender, Worker};

/// A borrowed worker. Dropping it returns the worker.
#[derive(Debug)]
pub(crate) struct LentWorker {
    model: Model,
    /// The worker, or the error of its death.
    worker: Result<Worker, worker::Error>,
    run: u64,
}

impl LentWorker {
    /// Borrows the worker. If a re-placement was requested, it is carried out first, unless the worker is lent to
    /// another user.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the worker is already lent.
    pub(crate) fn take(model: &Model) -> Result<Self, Error> {
        static RUNS: AtomicU64 = AtomicU64::new(1);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        loop {
            let in_place = model.in_place();
            let taken = Self::take_as_it_is(model, run)?;
            drop(in_place);
            let Some((replacement, _under_way)) = model.requests().take() else { return Ok(taken) };
            drop(taken);
            if let Err(error) = model.replace_soon(replacement) {
                tracing::warn!("the model could not be re-placed: {error}");
            }
        }
    }

    pub(super) fn take_as_it_is(model: &Model, run: u64) -> Result<Self, Error> {
        Ok(Self { model: model.clone(), worker: model.remote().ok_or(Error::NotLoaded)?.take(run)?, run })
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// A number that identifies this loan to the worker. It is unique within this process.
    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.worker.as_ref().ok().map(|worker| worker.handle.id)
    }

    pub(crate) fn sender(&self) -> Option<Sender> {
        self.worker.as_ref().ok().map(|worker| worker.handle.sender.clone())
    }

    pub(crate) fn death(&self) -> Option<&worker::Error> {
        self.worker.as_ref().err()
    }

    /// A handle that stops this run's computation, in this worker or in its replacement.
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        let (model, run) = (self.model.clone(), self.run);
        AbortHandle::new(move || {
            if let Some(remote) = model.remote() {
                remote.abort(run);
            }
        })
    }

    /// Sends a request and waits for the answer. `doing` describes the work of the worker for error messages.
    pub(crate) fn ask<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        doing: &'static str,
    ) -> Result<T, worker::Error> {
        let sent = self.worker.as_mut().map_err(|death| death.clone())?.send(request, doing);
        self.heard(sent)?;
        let answer = self.receive(doing);
        self.forget_abort();
        answer
    }

    fn forget_abort(&self) {
        if let Ok(worker) = &self.worker {
            worker.handle.watch.forget_abort();
        }
    }

    /// Runs `talk` with the worker. If the worker is dead or dies, starts another worker and runs `talk` again, as many
    /// times as the application allows.
    pub(crate) fn survive<T>(
        &mut self,
        mut talk: impl FnMut(&mut Self) -> Result<T, worker::Error>,
    ) -> Result<T, Error> {
        let mut attempts = self.model.worker_attempts();
        loop {
            match talk(self) {
                Err(error) if error.is_death() && attempts > 0 => attempts -= 1,
                heard => return Ok(heard?),
            }
            self.restart()?;
        }
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self, doing: &'static str) -> Result<T, worker::Error> {
        let answer = self.worker.as_mut().map_err(|death| death.clone())?.receive(doing);
        self.heard(answer)
    }

    /// Records the worker's death if `heard` is an error. Only the error about a message that is too long does not mean
    /// death: that message was not sent, so the worker still runs.
    pub(crate) fn heard<T>(&mut self, heard: Result<T, worker::Error>) -> Result<T, worker::Error> {
        if let Err(error) = &heard
            && !matches!(error, worker::Error::TooLong { .. })
        {
            self.bury(error.clone());
        }
        heard
    }

    /// Records the cause of the worker's death, for the next call and for [`Model::worker_deaths`].
    fn bury(&mut self, death: worker::Error) {
        if let Some(remote) = self.model.remote() {
            remote.died(death.clone());
        }
        self.worker = Err(death);
    }

    /// Starts a worker in place of a dead one. The new worker may die too. If no worker can start, the next caller
    /// tries again.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        let Err(death) = &self.worker else { return Ok(()) };
        tracing::warn!("{death}; starting another");
        match self.model.remote().ok_or(Error::NotLoaded)?.restart(self.model.options()) {
            Ok((worker, placed)) => {
                self.model.set_placed(placed);
                self.worker = Ok(worker);
            }
            Err(Error::Worker(error)) if error.is_death() => self.bury(error),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Drop for LentWorker {
    fn drop(&mut self) {
        self.forget_abort();
        let given = worker::Error::Protocol { doing: "nothing", reason: "it was returned".into() };
        let worker = std::mem::replace(&mut self.worker, Err(given));
        if let Some(remote) = self.model.remote() {
            remote.give_back(worker);
        }
    }
}
