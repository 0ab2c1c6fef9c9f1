//! A thread reads the pieces of a beginning from the folder, so that neither a running text nor the end of an engine
//! waits for a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Stored;
use crate::store::{Brought, Found, StoreReader};

/// The end of a session waits at most this long for a thread, which ends after the piece that it reads. A thread that
/// takes longer ends by itself: it holds nothing of the store.
const END_WITHIN: Duration = Duration::from_millis(500);

/// If this many threads still read a piece that is no longer wanted, the disk does not answer, and nothing more is read
/// from it until one of them has ended.
const MAX_LEFT: usize = 4;

/// A text waits for its pieces as long as it takes to compute them, but at least this long: other processes may use the
/// disk or the processor.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// If the time to compute a token is not known yet, a text waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pieces of a beginning that a thread reads from the folder.
#[derive(Debug)]
pub(crate) struct Bringing {
    found: Found,
    is_wanted: Arc<AtomicBool>,
    brought: Receiver<Option<Brought>>,
    since: Instant,
    /// After this time, the text is computed instead.
    patience: Duration,
    /// The folder, for a message.
    folder: String,
    thread: Option<JoinHandle<()>>,
}

/// What has become of pieces that a thread reads.
#[derive(Debug)]
pub(crate) enum Read {
    NotYet,
    All(Found, Brought),
    /// A piece is damaged or gone.
    Damaged,
    /// The text has waited as long as computing it takes, so it is computed instead.
    TooLate,
}

impl Bringing {
    /// `None` if the system refuses a thread.
    fn start(store: StoreReader, found: Found, patience: Duration, folder: String) -> Option<Self> {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let (of, goes_on) = (found.clone(), Arc::clone(&is_wanted));
        let (to, brought) = mpsc::channel();
        let read = move || {
            let goes_on = || goes_on.load(Ordering::Relaxed);
            // If nobody wants the pieces any more, nobody receives them.
            drop(to.send(store.bring(&of, goes_on)));
        };
        let thread = thread::Builder::new().name("autoplace-bring".to_owned()).spawn(read).ok()?;
        Some(Self { found, is_wanted, brought, since: Instant::now(), patience, folder, thread: Some(thread) })
    }

    /// Waits at most this long for the pieces.
    pub(crate) fn wait(&mut self, time: Duration) -> Read {
        match self.brought.recv_timeout(time) {
            Ok(Some(brought)) => Read::All(std::mem::take(&mut self.found), brought),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => Read::Damaged,
            Err(RecvTimeoutError::Timeout) if self.since.elapsed() > self.patience => Read::TooLate,
            Err(RecvTimeoutError::Timeout) => Read::NotYet,
        }
    }

    /// Waits for the pieces for as long as a text waits.
    pub(super) fn wait_for_all(&mut self) -> Read {
        self.wait(self.patience)
    }

    fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Bringing {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        let ends = !matches!(self.brought.recv_timeout(END_WITHIN), Err(RecvTimeoutError::Timeout));
        match self.thread.take() {
            Some(thread) if ends => drop(thread.join()),
            _ => {
                let folder = &self.folder;
                tracing::warn!(
                    target: "autoplace::store", "{folder}: the folder does not answer; a stored piece is not read"
                );
            }
        }
    }
}

impl Stored {
    /// Lets a thread read the pieces of a beginning. `None` if the text should be computed: the folder does not answer,
    /// or the system refuses a thread.
    pub(crate) fn start_bringing(&mut self, found: Found) -> Option<Bringing> {
        self.drop_ended();
        if self.left.len() >= MAX_LEFT {
            return None;
        }
        let patience = patience(self.seconds_per_token, found.tokens);
        Bringing::start(self.of.store.reader(), found, patience, self.folder())
    }

    /// Whether the folder has lately not answered in time.
    pub(crate) const fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Lets a thread end whose pieces are no longer wanted, without waiting for its disk.
    pub(crate) fn leave_bringing(&mut self, bringing: Bringing) {
        bringing.is_wanted.store(false, Ordering::Relaxed);
        self.left.push(bringing);
        self.drop_ended();
    }

    /// Drops the threads that have ended, and with them their pieces.
    pub(super) fn drop_ended(&mut self) {
        self.left.retain(|bringing| !bringing.is_finished());
    }
}

/// How long a text waits for the pieces of this many tokens.
fn patience(seconds_per_token: Option<f64>, tokens: usize) -> Duration {
    let computing = seconds_per_token.map(|of_token| of_token * tokens as f64);
    let computing = computing.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    computing.map_or(PATIENCE, |computing| computing.max(LEAST_PATIENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_waits_for_its_pieces_as_long_as_their_computation_takes() {
        assert_eq!(patience(None, 16_000), PATIENCE);
        assert_eq!(patience(Some(1e-5), 16_000), LEAST_PATIENCE);
        assert_eq!(patience(Some(1e-2), 16_000), Duration::from_secs(160));
        let of = |patience| {
            let (to, brought) = mpsc::channel();
            let is_wanted = Arc::default();
            let (found, since) = (Found::default(), Instant::now());
            (to, Bringing { found, is_wanted, brought, since, patience, folder: String::new(), thread: None })
        };
        let (_to, mut bringing) = of(Duration::from_secs(3600));
        assert!(matches!(bringing.wait(Duration::ZERO), Read::NotYet));
        let (_to, mut bringing) = of(Duration::ZERO);
        assert!(matches!(bringing.wait(Duration::from_millis(1)), Read::TooLate));
    }
}
