//! The stream from which the application reads a text. A session on the reader's thread, an engine or a worker computes
//! the text.

use std::iter;
use std::task::{Context, Poll, ready};

use super::channel::Receiver;
use super::local::LocalSession;
use super::progress::{Message, Progress};
use super::thread::{AbortAndJoin, block_on};
use crate::chat::FinishReason;
use crate::decode::error::Error;
use crate::decode::piece::Piece;
use crate::decode::stats::{Replaced, Statistics};
use crate::load::AbortHandle;
use crate::plan::Plan;

/// A text while it is generated: an iterator over pieces, each of which has whole characters. Dropping the stream
/// cancels the generation within one token, or removes the request from an engine's queue.
///
/// A stream of [`GenerateRequest::stream`](crate::generate::GenerateRequest::stream) uses the model's context as long
/// as the stream exists. Each `next` computes one token; the first call also computes the prompt. An
/// [`Engine`](crate::generate::Engine) or a [worker](crate::Isolation::Process) computes ahead without waiting for the
/// reader.
///
/// After the end or an error, the iterator keeps returning `None`; [`finish_reason`](Self::finish_reason) returns why
/// the text has ended. After a [re-placement](Self::replace) that failed, the iterator keeps returning that error until
/// another re-placement succeeds.
#[derive(Debug)]
pub struct TokenStream {
    pub(crate) source: Source,
    progress: Progress,
    /// Stops the thread that computes this text alone. The field is dropped last, so that the context is free when the
    /// stream has been dropped.
    guard: Option<AbortAndJoin>,
}

#[derive(Debug)]
pub(crate) enum Source {
    /// A session on the reader's thread with this one text.
    Local(Box<LocalSession>),
    /// Pieces from another thread or from a worker.
    Channel(Receiver<Message>),
}

impl TokenStream {
    pub(crate) fn new(source: Source, progress: Progress) -> Self {
        Self { source, progress, guard: None }
    }

    /// Adds the guard of the thread that computes this text alone.
    pub(crate) fn guarded_by(mut self, guard: AbortAndJoin) -> Self {
        self.guard = Some(guard);
        self
    }

    /// The counts and times up to the last piece that was read.
    pub fn statistics(&self) -> Statistics {
        self.progress.statistics
    }

    /// Why the text ended; `None` before the reader has reached the end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.progress.finished
    }

    /// A handle that ends the text from another thread. The text of a stream ends even in the middle of a prompt or a
    /// token; the text of an engine ends after the token that is being computed. Pieces that were already generated can
    /// still be read. The handle stays valid when the model is re-placed.
    pub fn abort_handle(&self) -> AbortHandle {
        match (&self.source, &self.guard) {
            (_, Some(guard)) => guard.abort_handle(),
            (Source::Local(session), None) => session.abort_handle(),
            (Source::Channel(pieces), None) => pieces.canceller(),
        }
    }

    /// Re-places the model between two pieces: see [`Session::replace`](crate::generate::Session::replace).
    ///
    /// # Errors
    ///
    /// The errors of [`Session::replace`](crate::generate::Session::replace); [`Error::Busy`] for a text of an engine
    /// or a worker: see [`Model::request_replace`](crate::Model::request_replace).
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.session()?.replace(plan)
    }

    /// Re-places the model if the best plan improves it by at least `min_gain`: see
    /// [`Session::improve`](crate::generate::Session::improve).
    ///
    /// # Errors
    ///
    /// The errors of [`replace`](Self::replace).
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.session()?.improve(min_gain)
    }

    /// The outcome of the last re-placement, including one that another part of the application requested
    /// ([`Model::request_replace`](crate::Model::request_replace)). `None` for a text of an engine; see
    /// [`Engine::last_replaced`](crate::generate::Engine::last_replaced).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        match &self.source {
            Source::Local(session) => session.last_replaced(),
            Source::Channel(_) => None,
        }
    }

    fn session(&mut self) -> Result<&mut LocalSession, Error> {
        match &mut self.source {
            Source::Local(session) => Ok(session),
            Source::Channel(_) => Err(Error::Busy),
        }
    }

    /// The text in pieces, one for each token, with the token and its log-probabilities. The last piece has the
    /// [`end`](Piece::end) of the text, unless the text ends with an error.
    pub fn pieces(&mut self) -> impl Iterator<Item = Result<Piece, Error>> {
        iter::from_fn(|| block_on(|context| self.poll_piece(context)))
    }

    /// Runs to the end and returns the whole text. [`Statistics::finish_reason`] tells whether a limit has cut the text
    /// off.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn into_text(mut self) -> Result<(String, Statistics), Error> {
        let text = self.by_ref().collect::<Result<String, Error>>()?;
        Ok((text, self.statistics()))
    }

    /// Polls for the next piece of [`pieces`](Self::pieces), and wakes the task when a piece is ready. The computation
    /// runs inside this call, unless an engine, a worker or a separate thread (`into_async`) computes the text.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        if self.progress.finished.is_some() {
            return Poll::Ready(None);
        }
        let message = match &mut self.source {
            Source::Local(session) => session.next_message(),
            Source::Channel(pieces) => match ready!(pieces.poll_next(context)) {
                Some(message) => message,
                None if pieces.is_cancelled() => Err(llama_sys::Error::Aborted.into()),
                None => Err(Error::EngineEnded),
            },
        };
        let piece = self.progress.read(message);
        if let (Some(Err(_)), Source::Local(session)) = (&piece, &self.source)
            && !session.is_loaded()
        {
            // The text continues after a re-placement that succeeds.
            self.progress.finished = None;
            self.progress.statistics.finish_reason = None;
        }
        Poll::Ready(piece)
    }

    /// The error that follows the last piece. It is returned only once.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.progress.error.take()
    }

    /// The next piece with text; `None` after the end.
    pub(crate) fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String, Error>>> {
        loop {
            match ready!(self.poll_piece(context)) {
                Some(Ok(piece)) if piece.text.is_empty() => {}
                None => return Poll::Ready(self.take_error().map(Err)),
                piece => return Poll::Ready(piece.map(|piece| piece.map(|piece| piece.text))),
            }
        }
    }
}

impl Iterator for TokenStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(|context| self.poll_text(context))
    }
}

impl iter::FusedIterator for TokenStream {}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if let (Some(guard), None) = (&self.guard, self.finish_reason()) {
            guard.abort_handle().abort();
        }
    }
}
