//! What the thread that listens tells the one that computes.

use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::generate::AbortHandle;

/// How long a computation may go on without a connection. A GPU finishes its part of a graph before it
/// hears of an abort.
const LAST: Duration = Duration::from_secs(8);

/// What is allowed, and what is not wanted any more.
#[derive(Default)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The generation that runs, and how to stop it.
    running: Option<(u64, AbortHandle)>,
    /// Tokens that it may generate.
    allowed: usize,
    /// The generation that was aborted last: the abort may come before it runs.
    aborted: u64,
    is_load_cancelled: bool,
    is_closed: bool,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A generation runs from now on.
    pub(super) fn begin(&self, id: u64, abort: AbortHandle) {
        let mut state = self.state();
        if state.aborted == id || state.is_closed {
            abort.abort();
        }
        state.running = Some((id, abort));
        state.allowed = 0;
    }

    pub(super) fn end(&self) {
        self.state().running = None;
    }

    pub(super) fn allow(&self, id: u64, tokens: usize) {
        let mut state = self.state();
        if state
            .running
            .as_ref()
            .is_some_and(|running| running.0 == id)
        {
            state.allowed = state.allowed.saturating_add(tokens);
            self.changed.notify_one();
        }
    }

    pub(super) fn abort(&self, id: u64) {
        let mut state = self.state();
        state.aborted = id;
        if let Some((running, abort)) = &state.running
            && *running == id
        {
            abort.abort();
        }
        self.changed.notify_one();
    }

    pub(super) fn cancel_load(&self) {
        self.state().is_load_cancelled = true;
    }

    pub(super) fn may_load(&self) -> bool {
        let state = self.state();
        !state.is_load_cancelled && !state.is_closed
    }

    /// Nobody listens any more. What computes is aborted; where that cannot be, the process ends.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if let Some((_, abort)) = &state.running {
            abort.abort();
        }
        drop(state);
        self.changed.notify_one();
        thread::sleep(LAST);
        process::exit(1);
    }

    /// Whether more tokens than these may be generated, without waiting for it.
    pub(super) fn is_allowed(&self, generated: usize) -> bool {
        self.state().allowed > generated
    }

    /// Waits until more tokens than these may be generated. `false`: none are wanted any more.
    pub(super) fn wait_until_allowed(&self, generated: usize) -> bool {
        let state = self.state();
        let is_waiting = |state: &mut State| {
            let is_unwanted = match &state.running {
                Some((id, _)) => state.aborted == *id,
                None => true,
            };
            state.allowed <= generated && !state.is_closed && !is_unwanted
        };
        let state = self
            .changed
            .wait_while(state, is_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        let is_aborted = state
            .running
            .as_ref()
            .is_none_or(|(id, _)| state.aborted == *id);
        !state.is_closed && !is_aborted
    }
}
