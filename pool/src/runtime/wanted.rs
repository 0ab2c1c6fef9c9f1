//! A request for a model: a future, or a wait.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::handle::ModelHandle;
use super::state::{Answer, Shared, Waiter};
use super::ticket::Ticket;
use crate::error::Error;

/// A model that was asked for. Dropping it withdraws the request.
#[derive(Debug)]
#[must_use = "a request that is dropped is withdrawn"]
pub struct Wanted {
    shared: Arc<Shared>,
    ticket: Arc<Ticket<Answer>>,
}

impl Wanted {
    pub(super) fn ask(shared: &Arc<Shared>, name: &str) -> Self {
        let ticket = Arc::new(Ticket::default());
        let now = shared.now();
        let asked = shared.change(|state| {
            if state.is_closed {
                return Err(Error::Closed);
            }
            let last = state.last_wanted;
            let entry = state.named(name)?;
            entry.demand.wanted(now, last != Some(entry.id));
            let id = entry.id;
            state.last_wanted = Some(id);
            let entry = state.named(name)?;
            if entry.is_ready() && entry.loaded.as_ref().is_some_and(|it| is_alive(&it.model)) {
                return Ok(ModelHandle::give(shared, entry, now));
            }
            let waiter = Waiter { id, since: now, not_before: now, ticket: Arc::clone(&ticket) };
            state.waiters.push_back(waiter);
            Ok(None)
        });
        match asked {
            Ok(None) => {}
            Ok(Some(handle)) => ticket.answer(Ok(handle)),
            Err(error) => ticket.answer(Err(error)),
        }
        Self { shared: Arc::clone(shared), ticket }
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    ///
    /// As [`Pool::get`](super::Pool::get).
    pub fn wait(self) -> Result<ModelHandle, Error> {
        self.ticket.wait()
    }
}

impl Future for Wanted {
    type Output = Result<ModelHandle, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.ticket.poll(context)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.shared.change(|state| state.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.ticket, &self.ticket)));
        // A handle that has arrived meanwhile is given back, after the lock is released.
        drop(self.ticket.take());
    }
}

/// Whether the model can be used: its worker, if it has one, has not died.
pub(super) fn is_alive(model: &autoplace::Model) -> bool {
    model.worker_id().is_some() || model.worker_deaths().is_empty()
}
