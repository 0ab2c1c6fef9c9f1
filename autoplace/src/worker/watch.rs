//! Ends a worker that shows no sign of life, so that nobody waits for it for ever: one that was stopped, or that hangs
//! in a driver.

use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Connection;
use super::process::kill;

/// What a worker may take at most to hear of an abort: a GPU finishes its part of a graph first.
const GRACE: Duration = Duration::from_secs(30);

/// Shared with the thread that watches.
#[derive(Debug)]
pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// How long it may be silent while it is waited for.
    timeout: Duration,
    /// Since when it is waited for: the last sign of life, or when somebody began to wait.
    since: Option<Instant>,
    is_aborted: bool,
    /// When the thread looks next; `None` while it sleeps until it is woken.
    looks: Option<Instant>,
    is_over: bool,
    /// How long it was silent when it was ended.
    ended_after: Option<Duration>,
}

impl State {
    fn patience(&self) -> Duration {
        if self.is_aborted { self.timeout.min(GRACE) } else { self.timeout }
    }
}

impl Watch {
    /// Starts the thread.
    pub(super) fn start(
        child: &Arc<Mutex<Child>>,
        connection: Connection,
        timeout: Duration,
    ) -> std::io::Result<Arc<Self>> {
        let state = State { timeout, since: None, is_aborted: false, looks: None, is_over: false, ended_after: None };
        let watch = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() });
        let (watching, child) = (Arc::clone(&watch), Arc::clone(child));
        thread::Builder::new()
            .name("autoplace-worker-watch".into())
            .spawn(move || watching.run(&child, &connection))?;
        Ok(watch)
    }

    /// From now on it may be silent for so long.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        self.state().timeout = timeout;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for it from now on.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.since = Some(Instant::now());
        self.look(&mut state);
    }

    /// It lives. What it was waited for is still to come.
    pub(super) fn alive(&self) {
        let mut state = self.state();
        if state.since.is_some() {
            state.since = Some(Instant::now());
        }
    }

    /// What it was waited for is there.
    pub(super) fn end(&self) {
        self.state().since = None;
    }

    /// It has been told to stop: it is waited for no longer than that may take, until that is
    /// [forgotten](Self::forget_abort).
    pub(crate) fn abort(&self) {
        let mut state = self.state();
        state.is_aborted = true;
        state.since = state.since.map(|_| Instant::now());
        self.look(&mut state);
    }

    pub(crate) fn forget_abort(&self) {
        self.state().is_aborted = false;
    }

    /// Nobody will wait for it any more.
    pub(super) fn close(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// How long it was silent, if it was ended for that.
    pub(super) fn ended_after(&self) -> Option<Duration> {
        self.state().ended_after
    }

    /// Has the thread look when it is time. One that looks before that sleeps on then.
    fn look(&self, state: &mut State) {
        let due = state.since.and_then(|since| since.checked_add(state.patience()));
        if due.is_some() && state.looks.is_none_or(|looks| Some(looks) > due) {
            state.looks = due;
            self.changed.notify_all();
        }
    }

    fn run(&self, child: &Mutex<Child>, connection: &Connection) {
        let mut state = self.state();
        while !state.is_over {
            let patience = state.patience();
            let silent = state.since.map(|since| since.elapsed());
            state = match silent {
                Some(silent) if silent >= patience => {
                    state.ended_after = Some(silent);
                    drop(state);
                    kill(child);
                    // A process that hangs in the kernel keeps its end open.
                    connection.shut_down();
                    return;
                }
                Some(silent) => {
                    let left = patience - silent;
                    state.looks = Instant::now().checked_add(left);
                    let woken = self.changed.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    state.looks = None;
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_shortens_what_it_is_waited_for() {
        let state = |timeout, is_aborted| {
            let timeout = Duration::from_secs(timeout);
            let (since, looks, ended_after) = (None, None, None);
            State { timeout, since, is_aborted, looks, is_over: false, ended_after }
        };
        assert_eq!(state(600, false).patience(), Duration::from_secs(600));
        assert_eq!(state(600, true).patience(), GRACE);
        assert_eq!(state(2, true).patience(), Duration::from_secs(2));
    }
}
