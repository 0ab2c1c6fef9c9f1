//! Counts the places of an engine. Decides how many texts are accepted at once, which callers wait for a place, and
//! whether the engine still accepts texts.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use serde::{Deserialize, Serialize};

use crate::decode::context::Room;
use crate::decode::error::Error;
use crate::load::Model;
use crate::sync::lock;

/// What happens to unfinished texts when an engine shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shutdown {
    /// Finishes all accepted texts.
    Finish,
    /// Finishes the texts that are running or suspended. The other texts end with
    /// [`Error::EngineEnded`](crate::generate::Error::EngineEnded).
    FinishBegun,
    /// Ends all texts with [`Error::EngineEnded`](crate::generate::Error::EngineEnded).
    Cancel,
}

/// The places of one engine.
#[derive(Debug)]
pub(crate) struct Places {
    model: Model,
    /// Maximum number of waiting texts, in addition to the running texts.
    queue: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of sequences in the engine's own context. `None` for a model in a worker, where the number comes from
    /// the model's plan.
    sequences: Option<usize>,
    /// The number of texts that were accepted and have not ended.
    accepted: usize,
    /// Callers that wait for a place, by ticket.
    line: BTreeMap<u64, Waker>,
    tickets: u64,
    closing: Option<Shutdown>,
}

impl Places {
    pub(crate) fn new(model: &Model, queue: usize, sequences: Option<usize>) -> Arc<Self> {
        let state = State { sequences, accepted: 0, line: BTreeMap::new(), tickets: 0, closing: None };
        Arc::new(Self { model: model.clone(), queue, state: Mutex::new(state) })
    }

    /// Waits for a place in the order of the calls. If `waits` is false, fails at once if no place is free.
    pub(crate) fn turn(self: &Arc<Self>, waits: bool) -> Turn {
        Turn { places: Arc::clone(self), waits, ticket: None }
    }

    /// The maximum number of texts at once, both running and waiting.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity_of(&lock(&self.state))
    }

    fn capacity_of(&self, state: &State) -> usize {
        let of_plan = || Room::new(&self.model.placement().context).sequences;
        self.queue.saturating_add(state.sequences.unwrap_or_else(of_plan))
    }

    /// Number of texts that were accepted and have not ended.
    pub(crate) fn accepted(&self) -> usize {
        lock(&self.state).accepted
    }

    /// Records the number of sequences of a new context.
    pub(crate) fn resize(&self, sequences: usize) {
        let mut state = lock(&self.state);
        state.sequences = Some(sequences);
        call(state);
    }

    /// Refuses further texts. A second call can only make the engine end sooner.
    pub(crate) fn close(&self, how: Shutdown) {
        let mut state = lock(&self.state);
        state.closing = state.closing.max(Some(how));
        let line = std::mem::take(&mut state.line);
        drop(state);
        line.into_values().for_each(Waker::wake);
    }

    pub(crate) fn closing(&self) -> Option<Shutdown> {
        lock(&self.state).closing
    }
}

/// The place of one accepted text. When it is dropped, another text can be accepted.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.accepted -= 1;
        call(state);
    }
}

/// Unlocks the state and wakes the first caller that waits for a place. A caller that finds no free place keeps
/// waiting.
fn call(state: MutexGuard<'_, State>) {
    let first = state.line.first_key_value().map(|(_, waker)| waker.clone());
    // A waker runs foreign code, so the lock is released first.
    drop(state);
    first.into_iter().for_each(Waker::wake);
}

/// Waits for a place, in the order of the tickets.
pub(crate) struct Turn {
    places: Arc<Places>,
    waits: bool,
    ticket: Option<u64>,
}

impl Future for Turn {
    type Output = Result<Place, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let places = Arc::clone(&self.places);
        let mut state = lock(&places.state);
        if state.closing.is_some() {
            return Poll::Ready(Err(Error::EngineEnded));
        }
        let first = state.line.first_key_value().map(|(ticket, _)| *ticket);
        if first == self.ticket && state.accepted < places.capacity_of(&state) {
            state.accepted += 1;
            return Poll::Ready(Ok(Place(Arc::clone(&places))));
        }
        if !self.waits {
            return Poll::Ready(Err(Error::QueueFull { queue: places.queue }));
        }
        let ticket = *self.ticket.get_or_insert(state.tickets);
        state.tickets = state.tickets.max(ticket + 1);
        let before = state.line.insert(ticket, context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else {
            return;
        };
        let mut state = lock(&self.places.state);
        let left = state.line.remove(&ticket);
        call(state);
        drop(left);
    }
}
