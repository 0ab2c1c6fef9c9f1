//! One text as it is generated, for tasks: a thread of its own computes, and the task is woken for each piece.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::thread;

use futures_core::Stream;

use super::channel::{Receiver, channel};
use super::error::Error;
use super::last_word::LastWord;
use super::pieces::Pieces;
use super::session::{FinishReason, Piece};
use super::stats::Statistics;
use super::token_stream::{AbortHandle, TokenStream};
use super::wait::Bell;

/// Pieces that the thread computes ahead of its reader.
const AHEAD: usize = 64;

const THREAD: &str = "autoplace-stream";

/// A generation as a `Stream` of text, for any runtime: made by [`TokenStream::into_async`]. Dropping it
/// cancels the generation.
///
/// A thread of its own computes, ahead of the reader by 64 pieces at most, and sleeps while nobody reads. The context
/// is free again when the stream has returned `None`; when it is dropped before that, soon after.
#[derive(Debug)]
pub struct AsyncTokenStream {
    receiver: Receiver<Message>,
    abort: AbortHandle,
    /// Wakes the thread.
    bell: Arc<Bell>,
    is_cancelled: Arc<AtomicBool>,
    /// Whether the prompt is computed.
    has_begun: bool,
    statistics: Statistics,
    finished: Option<FinishReason>,
    last_word: LastWord,
}

#[derive(Debug)]
struct Message {
    piece: Result<Piece, Error>,
    statistics: Statistics,
    finished: Option<FinishReason>,
}

impl TokenStream {
    /// Goes on on a thread of its own, for a task to read: a `Stream` of text.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] where no thread can be started.
    pub fn into_async(mut self) -> Result<AsyncTokenStream, Error> {
        let bell = Arc::new(Bell::default());
        let (sender, receiver) = channel(AHEAD, Arc::clone(&bell).into());
        let abort = self.abort_handle();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let (statistics, finished) = (self.statistics(), self.finish_reason());
        let last_word = self.last_word().clone();
        let cancelled = Arc::clone(&is_cancelled);
        let rung = Arc::clone(&bell);
        let work = move || {
            while !cancelled.load(Ordering::Acquire) && !sender.is_abandoned() {
                if sender.is_full() {
                    rung.wait();
                    continue;
                }
                let Some(piece) = self.pieces().next() else {
                    break;
                };
                let has_failed = piece.is_err();
                sender.send(Message {
                    piece,
                    statistics: self.statistics(),
                    finished: self.finish_reason(),
                });
                if has_failed {
                    break;
                }
            }
            // The context is free before the reader hears of the end.
            drop(self);
            drop(sender);
        };
        thread::Builder::new()
            .name(THREAD.into())
            .spawn(work)
            .map_err(|error| Error::Thread {
                name: THREAD,
                reason: error.to_string(),
            })?;
        Ok(AsyncTokenStream {
            receiver,
            abort,
            bell,
            is_cancelled,
            has_begun: statistics.first_token_latency.is_some(),
            statistics,
            finished,
            last_word,
        })
    }
}

impl AsyncTokenStream {
    /// Counts and times so far, as of the last piece that was read.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Why the text ended; `None` while it is not read to its end, and when it was cancelled.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// The text token by token, instead of as text alone.
    pub fn pieces(&mut self) -> Pieces<'_, Self> {
        Pieces(self)
    }

    /// Ends the generation after the token that is being computed; a prompt that is being computed ends with
    /// [`llama_sys::Error::Aborted`]. The pieces that there are can still be read, and when `None` comes the
    /// context is free.
    pub fn cancel(&mut self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.stop();
        self.bell.ring();
    }

    fn stop(&self) {
        if !self.has_begun && self.finished.is_none() {
            // A prompt may take long. What it has left in the context is not known, which costs later prompts more
            // than a token does.
            self.abort.abort();
        }
    }

    /// The next piece, which may be without text; `None` after the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        let Some(message) = ready!(self.receiver.poll_next(context)) else {
            let is_cancelled = self.is_cancelled.load(Ordering::Acquire);
            if is_cancelled || self.finished.is_some() {
                return Poll::Ready(None);
            }
            self.finished = Some(FinishReason::Error);
            return Poll::Ready(Some(Err(Error::Thread {
                name: THREAD,
                reason: "it has panicked".into(),
            })));
        };
        self.has_begun = true;
        self.statistics = message.statistics;
        let failed = message.piece.is_err().then_some(FinishReason::Error);
        self.finished = message.finished.or(failed);
        if let Ok(piece) = &message.piece {
            self.last_word.hear(piece);
        }
        Poll::Ready(Some(message.piece))
    }
}

impl Stream for AsyncTokenStream {
    type Item = Result<String, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match ready!(this.poll_piece(context)) {
                Some(Ok(piece)) if piece.text.is_empty() => {}
                None => return Poll::Ready(this.last_word.take().map(Err)),
                piece => return Poll::Ready(piece.map(|piece| piece.map(|piece| piece.text))),
            }
        }
    }
}

impl Stream for Pieces<'_, AsyncTokenStream> {
    type Item = Result<Piece, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_piece(context)
    }
}

impl Drop for AsyncTokenStream {
    fn drop(&mut self) {
        self.receiver.close();
        self.stop();
    }
}
