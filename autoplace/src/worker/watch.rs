//! Kills a worker that shows no sign of life, for example because it was stopped or hangs in a driver. Without this, a
//! call would wait forever.

use std::process::Child;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Connection;
use super::process::kill;
use crate::sync::lock;

/// The time that a worker may take to react to an abort. A GPU first finishes its part of a graph.
const GRACE: Duration = Duration::from_secs(30);

/// The state that the watching thread shares with the callers of a worker.
#[derive(Debug)]
pub(crate) struct Watch(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Maximum time that the worker may be silent while a caller waits for it.
    timeout: Duration,
    /// The last sign of life, or the beginning of the wait; `None` while no caller waits.
    since: Option<Instant>,
    is_aborted: bool,
    /// How long the worker had been silent when it was killed.
    ended_after: Option<Duration>,
}

impl State {
    fn patience(&self) -> Duration {
        if self.is_aborted { self.timeout.min(GRACE) } else { self.timeout }
    }

    fn is_silent(&mut self) -> bool {
        let silent = self.since.map(|since| since.elapsed());
        self.ended_after = silent.filter(|silent| *silent >= self.patience());
        self.ended_after.is_some()
    }
}

impl Watch {
    /// Starts the thread, which ends when the returned sender is dropped. The thread checks often enough for the
    /// shorter of the two time limits.
    pub(super) fn start(
        child: &Arc<Mutex<Child>>,
        connection: Connection,
        patience: Duration,
        timeout: Duration,
    ) -> std::io::Result<(Arc<Self>, mpsc::Sender<()>)> {
        let state = State { timeout: patience, since: None, is_aborted: false, ended_after: None };
        let watch = Arc::new(Self(Mutex::new(state)));
        let (over, is_over) = mpsc::channel();
        let often = (patience.min(timeout) / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let (watching, child) = (Arc::clone(&watch), Arc::clone(child));
        thread::Builder::new().name("autoplace-worker-watch".into()).spawn(move || {
            while is_over.recv_timeout(often) == Err(mpsc::RecvTimeoutError::Timeout) {
                if lock(&watching.0).is_silent() {
                    kill(&child);
                    // A process that hangs in the kernel keeps its end of the connection open, even after it was
                    // killed.
                    return connection.shut_down();
                }
            }
        })?;
        Ok((watch, over))
    }

    /// Sets how long the worker may be silent.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        lock(&self.0).timeout = timeout;
    }

    /// Runs `wait`, and records that the caller waits for the worker.
    pub(super) fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        lock(&self.0).since = Some(Instant::now());
        let came = wait();
        lock(&self.0).since = None;
        came
    }

    /// Records a sign of life that came before the answer.
    pub(super) fn alive(&self) {
        let mut state = lock(&self.0);
        state.since = state.since.map(|_| Instant::now());
    }

    /// Limits the wait to the time that an abort may take, until the abort is [forgotten](Self::forget_abort).
    pub(crate) fn abort(&self) {
        lock(&self.0).is_aborted = true;
        self.alive();
    }

    pub(crate) fn forget_abort(&self) {
        lock(&self.0).is_aborted = false;
    }

    /// How long the worker had been silent, if it was killed for its silence.
    pub(super) fn ended_after(&self) -> Option<Duration> {
        lock(&self.0).ended_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_shortens_the_wait() {
        let state = |timeout, is_aborted| {
            let timeout = Duration::from_secs(timeout);
            State { timeout, since: None, is_aborted, ended_after: None }
        };
        assert_eq!(state(600, false).patience(), Duration::from_secs(600));
        assert_eq!(state(600, true).patience(), GRACE);
        assert_eq!(state(2, true).patience(), Duration::from_secs(2));
    }
}
