//! A request for a model: a future, or a wait.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::handle::ModelHandle;
use super::state::{Answer, Shared, Waiter};
use super::ticket::Ticket;
use crate::error::Error;

/// A request for a model: a future of its handle. Dropping it withdraws the request.
#[derive(Debug)]
#[must_use = "a request that is dropped is withdrawn"]
pub struct ModelRequest {
    shared: Arc<Shared>,
    ticket: Arc<Ticket<Answer>>,
}

impl ModelRequest {
    pub(super) fn ask(shared: &Arc<Shared>, name: &str) -> Self {
        let ticket = Arc::new(Ticket::default());
        let now = shared.now();
        let asked = shared.change(|state| {
            if state.is_closed {
                return Err(Error::Closed);
            }
            let last = state.last_wanted;
            let entry = state.named(name)?;
            let id = entry.id;
            entry.demand.count_request(now, last != Some(id));
            (entry.is_dismissed, entry.leaves_unless_wanted) = (false, false);
            let handle = if entry.is_ready() { ModelHandle::give(shared, entry, now) } else { None };
            let label = entry.label.clone();
            state.last_wanted = Some(id);
            state.succession.wanted(&label, now);
            state.may_anticipate = true;
            if handle.is_some() {
                return Ok(handle);
            }
            let waiter = Waiter { id, name: name.to_owned(), since: now, not_before: now, ticket: Arc::clone(&ticket) };
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
    /// The errors of [`Pool::get`](super::Pool::get).
    pub fn wait(self) -> Result<ModelHandle, Error> {
        self.ticket.wait()
    }
}

impl Future for ModelRequest {
    type Output = Result<ModelHandle, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.ticket.poll(context)
    }
}

impl Drop for ModelRequest {
    fn drop(&mut self) {
        self.shared.change(|state| state.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.ticket, &self.ticket)));
        // If a handle has arrived meanwhile, it is dropped after the lock is released.
        drop(self.ticket.take());
    }
}
