//! The socket of a client. It tells a client that has gone from one that only sends nothing more and still reads
//! (`shutdown` of its sending side, as `nc -N` does).
//!
//! In: the bytes of the client, and their end. Out: the same bytes for hyper. hyper takes an end in the middle of an
//! answer for a client that has gone, and drops the answer. TCP shows the same end for both clients, but the system of
//! a client that has gone refuses whatever is sent to it. So the end is held back, and something is sent that changes
//! nothing for a client that still reads: before the answer begins, `100 Continue`, which a client of HTTP/1.1 must
//! accept at any time (RFC 9110, 15.2); in a stream of events, a comment. If the system of the client refuses it, the
//! answer is dropped.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::connection::{AfterEnd, Connection};

const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Pause before the next probe. The first one may have gone to a proxy that has lost its client.
const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// The pauses between two looks at a socket whose client sends nothing more. They become longer.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

/// A client's socket.
pub(super) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// When the last bytes came.
    read_at: Option<Instant>,
    /// When the last bytes of an answer were sent.
    wrote_at: Option<Instant>,
    end: Option<End>,
}

/// The end of what a client sends.
struct End {
    at: Instant,
    probed_at: Option<Instant>,
    /// The rest of a probe, which is sent before anything else.
    unsent: &'static [u8],
    pause: Duration,
    look: Pin<Box<Sleep>>,
}

impl Socket {
    pub(super) const fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        Self { stream, connection, read_at: None, wrote_at: None, end: None }
    }

    /// What is read after the client's end: nothing as long as the client waits for its answer.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(end) = &mut self.end else { return Poll::Pending };
        loop {
            match self.connection.after_end(end.at, self.read_at, self.wrote_at) {
                AfterEnd::Over => return Poll::Ready(Ok(())),
                AfterEnd::Unanswered if end.probed_at.is_none_or(|at| at.elapsed() >= PROBE_PAUSE) => {
                    end.probed_at = Some(Instant::now());
                    match self.stream.try_write(PROBE) {
                        Ok(sent) => end.unsent = &PROBE[sent..],
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                AfterEnd::Unanswered | AfterEnd::Answered | AfterEnd::Arriving => {}
            }
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            ready!(end.look.as_mut().poll(context));
            end.pause = (2 * end.pause).min(PAUSES[1]);
            end.look = Box::pin(sleep(end.pause));
        }
    }

    /// Sends the rest of a probe.
    fn poll_probe(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(end) = &mut self.end {
            while !end.unsent.is_empty() {
                let sent = ready!(Pin::new(&mut self.stream).poll_write(context, end.unsent))?;
                end.unsent = &end.unsent[sent..];
            }
        }
        Poll::Ready(Ok(()))
    }

    fn wrote(&mut self, sent: usize) -> Poll<io::Result<usize>> {
        self.wrote_at = Some(Instant::now());
        Poll::Ready(Ok(sent))
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.end.is_none() {
            let before = to.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, to))?;
            if to.filled().len() > before || to.remaining() == 0 {
                this.read_at = Some(Instant::now());
                return Poll::Ready(Ok(()));
            }
            let (at, pause) = (Instant::now(), PAUSES[0]);
            this.end = Some(End { at, probed_at: None, unsent: &[], pause, look: Box::pin(sleep(pause)) });
            this.connection.has_ended();
        }
        this.poll_end(context)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_probe(context))?;
        let sent = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        this.wrote(sent)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_probe(context))?;
        let sent = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, parts))?;
        this.wrote(sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
