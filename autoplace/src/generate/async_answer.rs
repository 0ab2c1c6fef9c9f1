//! One text for tasks: a `Stream`. A generation of its own gets a thread that computes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use futures_core::Stream;

use super::answer::{Answer, Writer};
use super::channel::{Bell, channel};
use super::chat::ChatStream;
use super::error::Error;
use super::piece::{FinishReason, Piece};
use super::stats::Statistics;
use super::token_stream::TokenStream;
use crate::chat::ReplyPart;
use crate::load::AbortHandle;

/// Pieces that the thread computes ahead of its reader.
const AHEAD: usize = 64;

const THREAD: &str = "autoplace-stream";

/// A text as a `Stream` of whole characters, for any runtime: made by [`Answer::into_async`] and by
/// [`TokenStream::into_async`](super::TokenStream::into_async). Dropping it cancels the text as dropping the
/// [`Answer`] or the [`TokenStream`](super::TokenStream) does.
#[derive(Debug)]
pub struct AsyncAnswer(Answer);

impl Answer {
    /// The same as a `Stream` alone. An answer is one itself, for what takes streams; but where `StreamExt` is in
    /// scope, `answer.next()` could mean either.
    pub fn into_async(self) -> AsyncAnswer {
        AsyncAnswer(self)
    }
}

impl AsyncAnswer {
    /// Counts and times so far, as of the last piece that was read.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    pub(super) fn into_inner(self) -> Answer {
        self.0
    }

    /// Why the text ended; `None` while it is not read to its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.0.finish_reason()
    }

    /// The text token by token, instead of as text alone.
    pub fn pieces(&mut self) -> AsyncPieces<'_> {
        AsyncPieces(self)
    }

    /// Ends the text after the token that is being computed: see [`Answer::cancel`]. The prompt of a
    /// [`TokenStream`](super::TokenStream) that is being computed is aborted, and its context is free when `None`
    /// comes.
    pub fn cancel(&mut self) {
        self.0.cancel();
    }
}

impl TokenStream {
    /// Goes on on a thread of its own, for a task to read: a `Stream` of text.
    ///
    /// The thread computes ahead of the reader by 64 pieces at most, and sleeps while nobody reads. The context is free
    /// again when the stream has returned `None`; when it is dropped before that, soon after.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] where no thread can be started.
    pub fn into_async(mut self) -> Result<AsyncAnswer, Error> {
        let bell = Arc::new(Bell::default());
        let (sender, receiver) = channel(AHEAD, Arc::clone(&bell).into());
        let answer = Answer::new(receiver, self.progress().clone(), self.abort_handle());
        let work = move || {
            let mut is_aborted = false;
            while !sender.is_abandoned() {
                if sender.is_full() {
                    bell.wait();
                    continue;
                }
                let Some(piece) = self.next_piece() else {
                    is_aborted = self.finish_reason() == Some(FinishReason::Aborted);
                    break;
                };
                let has_failed = piece.is_err();
                sender.send(piece.map(|piece| (piece, self.statistics())));
                if has_failed {
                    break;
                }
            }
            // The context is free before the reader hears of the end.
            drop(self);
            if is_aborted {
                sender.send(Err(llama_sys::Error::Aborted.into()));
            }
        };
        let spawned = thread::Builder::new().name(THREAD.into()).spawn(work);
        spawned.map_err(|error| Error::Thread { name: THREAD, reason: error.to_string() })?;
        Ok(answer.into_async())
    }
}

impl Writer for AbortHandle {
    /// A prompt may take long, and is aborted. What that has left in the context is not known, which costs later
    /// prompts more than a token does.
    fn cancel(&self, has_begun: bool) {
        if !has_begun {
            self.abort();
        }
    }

    fn lost(&self) -> Error {
        Error::Thread { name: THREAD, reason: "it has panicked".into() }
    }
}

impl Stream for Answer {
    type Item = Result<String, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_text(context)
    }
}

impl Stream for AsyncAnswer {
    type Item = Result<String, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_text(context)
    }
}

/// What a text is made of, token by token: the `Stream` that [`AsyncAnswer::pieces`] lends. The last piece has its
/// [`end`](Piece::end), unless the text ends with an error.
#[derive(Debug)]
pub struct AsyncPieces<'a>(&'a mut AsyncAnswer);

impl Stream for AsyncPieces<'_> {
    type Item = Result<Piece, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.0.poll_piece(context)
    }
}

/// An answer of a chat, for a task to read: made by [`ChatStream::into_async`].
#[derive(Debug)]
pub struct AsyncChatStream<'a>(ChatStream<'a>);

impl<'a> ChatStream<'a> {
    /// For a task to read: a `Stream` of its parts. A thread of its own computes it, as of a
    /// [`TokenStream`](TokenStream::into_async); the answer of an engine's chat has one already.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] where no thread can be started.
    pub fn into_async(mut self) -> Result<AsyncChatStream<'a>, Error> {
        self.text.move_away()?;
        Ok(AsyncChatStream(self))
    }
}

impl<'a> AsyncChatStream<'a> {
    /// The answer as far as it has come.
    pub fn answer(&self) -> &ChatStream<'a> {
        &self.0
    }
}

impl Stream for AsyncChatStream<'_> {
    type Item = Result<ReplyPart, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_part(context)
    }
}
