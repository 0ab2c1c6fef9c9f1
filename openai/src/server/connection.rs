//! A client's connection, as the server's tasks share it: what the client has asked, and whether the connection ends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Version;
use tokio::sync::{Notify, watch};

use super::Waits;

/// How long a request of a client that sends nothing more may take from its last byte to its handler.
const TO_ARRIVE: Duration = Duration::from_secs(1);

/// A client's connection.
pub(super) struct Connection {
    pub(super) peer: SocketAddr,
    /// How long a client may take to send a head (counted from the connection or from its last request), and then to
    /// send a body.
    pub(super) timeout: Duration,
    /// How long a stream has no event before it gets a comment.
    pub(super) ping: Duration,
    asks: Mutex<Asks>,
    pub(super) closes: Notify,
    /// Tells an answer that the client sends nothing more.
    ended: Notify,
    /// Tells the server that this connection may be closed, or has ended.
    pub(super) room: Arc<Notify>,
    /// Whether the server ends the answers that still run.
    cuts_off: watch::Receiver<bool>,
}

/// What a client has asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asks {
    /// Since when the client has sent no whole request, or since when it has waited for its answer.
    pub(super) since: Instant,
    waits: bool,
    /// Whether the last request may be answered by an informational response first.
    takes_probes: bool,
}

/// What becomes of a connection whose client sends nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterEnd {
    /// The client does not wait for an answer, or it cannot be known whether it still does: the connection ends.
    Over,
    /// A request has come that may be whole, but its handler has not said so yet.
    Arriving,
    /// The client waits for an answer that has not begun.
    Unanswered,
    /// The client reads an answer.
    Answered,
}

impl Connection {
    pub(super) fn new(peer: SocketAddr, waits: Waits, room: Arc<Notify>, cuts_off: watch::Receiver<bool>) -> Self {
        let Waits { timeout, ping } = waits;
        let asks = Mutex::new(Asks { since: Instant::now(), waits: false, takes_probes: false });
        Self { peer, timeout, ping, asks, closes: Notify::new(), ended: Notify::new(), room, cuts_off }
    }

    pub(super) fn asks(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request begins in this version of HTTP.
    pub(super) fn begins(&self, version: Version) {
        self.asks().takes_probes = version >= Version::HTTP_11;
    }

    /// Records that a whole request has arrived. Until it is answered, the connection isn't closed to make room.
    pub(super) fn request_arrived(&self) {
        let mut asks = self.asks();
        if !asks.waits {
            (asks.waits, asks.since) = (true, Instant::now());
        }
    }

    /// Records that the client has its answer.
    pub(super) fn answer_ended(&self) {
        let mut asks = self.asks();
        (asks.waits, asks.since) = (false, Instant::now());
        drop(asks);
        self.room.notify_one();
    }

    /// Since when the client has sent no whole request.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let asks = self.asks();
        (!asks.waits).then_some(asks.since)
    }

    /// Records that the client sends nothing more.
    pub(super) fn has_ended(&self) {
        self.ended.notify_one();
    }

    /// Waits until the client sends nothing more.
    pub(super) async fn end(self: Arc<Self>) {
        self.ended.notified().await;
    }

    /// What becomes of the connection: its client sends nothing more since `end`. The last bytes came and went at these
    /// times.
    pub(super) fn after_end(&self, end: Instant, read_at: Option<Instant>, wrote_at: Option<Instant>) -> AfterEnd {
        let Asks { since, waits, takes_probes } = *self.asks();
        let is_later = |at: Option<Instant>| at.is_some_and(|at| at > since);
        match waits {
            true if is_later(wrote_at) => AfterEnd::Answered,
            true if takes_probes => AfterEnd::Unanswered,
            false if is_later(read_at) && end.elapsed() < TO_ARRIVE => AfterEnd::Arriving,
            _ => AfterEnd::Over,
        }
    }

    /// Waits until the server ends the answers that still run, because it stops.
    pub(super) async fn cut_off(self: Arc<Self>) {
        let mut cuts_off = self.cuts_off.clone();
        // An error means that the server has ended. Then this connection is closed too.
        let _ = cuts_off.wait_for(|cuts_off| *cuts_off).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_sends_nothing_more_may_wait_for_its_answer() {
        let peer = ([127, 0, 0, 1], 1).into();
        let connection = Connection::new(peer, Waits::default(), Arc::default(), watch::channel(false).1);
        let long_ago = || Instant::now().checked_sub(2 * TO_ARRIVE).expect("the system runs for some seconds");
        let now = Instant::now;
        let after = |read_at, wrote_at| connection.after_end(now(), read_at, wrote_at);
        assert_eq!(after(None, None), AfterEnd::Over, "it has asked nothing");
        assert_eq!(after(Some(now()), None), AfterEnd::Arriving);
        assert_eq!(connection.after_end(long_ago(), Some(now()), None), AfterEnd::Over, "half a request");
        connection.begins(Version::HTTP_10);
        connection.request_arrived();
        assert_eq!(after(Some(long_ago()), None), AfterEnd::Over, "it takes no probes");
        connection.begins(Version::HTTP_11);
        assert_eq!(after(Some(long_ago()), None), AfterEnd::Unanswered);
        assert_eq!(after(Some(long_ago()), Some(long_ago())), AfterEnd::Unanswered, "this was an earlier answer");
        assert_eq!(after(Some(long_ago()), Some(now())), AfterEnd::Answered);
        connection.answer_ended();
        assert_eq!(after(Some(long_ago()), Some(long_ago())), AfterEnd::Over);
    }
}
