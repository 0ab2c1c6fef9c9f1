//! A text as the application reads it, whoever computes it: a session on the reader's thread, an engine, or a worker.

use std::iter;
use std::task::{Context, Poll, ready};

use super::channel::{Receiver, block_on};
use super::engine::Engine;
use super::error::Error;
use super::local::SessionHere;
use super::piece::{FinishReason, Message, Piece, Progress};
use super::request::Generate;
use super::stats::{Replaced, Statistics};
use crate::load::AbortHandle;
use crate::plan::Plan;

/// Text as it is generated: an iterator of pieces that are always whole characters. Dropping it cancels the generation
/// within one token, or takes it out of an engine's queue.
///
/// A stream of [`Generate::stream`] has the model's context while it lives, and each `next` computes a token, the first
/// one the prompt. Where an [`Engine`] or a [worker](crate::Isolation::Process) computes, that does not wait for the
/// reader.
///
/// After the end or an error the iterator stays at `None`; [`finish_reason`](Self::finish_reason) says which end it
/// was. Only after a [re-placement](Self::replace) that failed does it stay at that error, until one succeeds.
#[derive(Debug)]
pub struct TokenStream {
    pub(super) source: Source,
    progress: Progress,
    /// What computes this text alone, in a worker. Dropped last: the context is free then.
    run: Option<Engine>,
}

#[derive(Debug)]
pub(super) enum Source {
    /// The one text of a session.
    Here(Box<SessionHere>),
    /// Of another thread, or of a worker.
    Elsewhere(Receiver<Message>),
}

impl Generate {
    /// Checks everything and returns the stream; nothing is computed before its first `next`, unless a worker does it.
    ///
    /// # Errors
    ///
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::CannotShift`],
    /// [`Error::NotGenerative`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`]; [`Error::Busy`] while another
    /// stream or session of this model lives; [`Error::Native`] for a sampling parameter out of range,
    /// [`Error::NotOneToken`] and [`Error::TooManyLogprobs`]; [`Error::Worker`] when the model's worker process has
    /// died or cannot be started again.
    pub fn stream(self) -> Result<TokenStream, Error> {
        if self.model.is_elsewhere() {
            let run = Engine::of_one_text(&self.model)?;
            let cache = self.spec.cache_prompt.unwrap_or(false);
            let mut stream = run.submit(self.cache_prompt(cache))?;
            stream.run = Some(run);
            return Ok(stream);
        }
        let mut progress = self.spec.progress();
        let mut session = SessionHere::open(&self.model)?;
        let sequence = session.begin_once(self)?;
        progress.statistics = session.statistics(sequence).unwrap_or_default();
        Ok(TokenStream::new(Source::Here(Box::new(session)), progress))
    }

    /// Generates everything and returns the text.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream), [`Error::Incomplete`], [`Error::ContextFull`], and whatever llama.cpp
    /// fails on meanwhile.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.into_text().map(|(text, _)| text)
    }
}

impl TokenStream {
    pub(super) fn new(source: Source, progress: Progress) -> Self {
        Self { source, progress, run: None }
    }

    /// Counts and times so far, as of the last piece that was read.
    pub fn statistics(&self) -> Statistics {
        self.progress.statistics
    }

    /// Why the text ended; `None` while it is not read to its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.progress.finished
    }

    /// Ends the text from another thread: a prompt or token that is waited for, or an engine's text after the token
    /// that is being computed. Pieces that are there can still be read. The handle stays valid when the model is
    /// re-placed.
    pub fn abort_handle(&self) -> AbortHandle {
        match (&self.source, &self.run) {
            (_, Some(run)) => run.abort_handle(),
            (Source::Here(session), None) => session.abort_handle(),
            (Source::Elsewhere(pieces), None) => pieces.canceller(),
        }
    }

    /// Re-places the model between two pieces: see [`Session::replace`](super::Session::replace).
    ///
    /// # Errors
    ///
    /// As [`Session::replace`](super::Session::replace); [`Error::Busy`] for a text of an engine or a worker: see
    /// [`Model::request_replace`](crate::Model::request_replace).
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.session()?.replace(plan)
    }

    /// Re-places the model if that makes it better by this [gain](crate::load::BetterPlan::gain) at least: see
    /// [`Session::improve`](super::Session::improve).
    ///
    /// # Errors
    ///
    /// As [`replace`](Self::replace).
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.session()?.improve(min_gain)
    }

    /// The outcome of the last re-placement, including those that others requested
    /// ([`Model::request_replace`](crate::Model::request_replace)). `None` for a text of an engine, which
    /// [has it](Engine::last_replaced).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        match &self.source {
            Source::Here(session) => session.last_replaced(),
            Source::Elsewhere(_) => None,
        }
    }

    fn session(&mut self) -> Result<&mut SessionHere, Error> {
        match &mut self.source {
            Source::Here(session) => Ok(session),
            Source::Elsewhere(_) => Err(Error::Busy),
        }
    }

    /// The text token by token, with more than its characters. The last piece has its [`end`](Piece::end), unless the
    /// text ends with an error.
    pub fn pieces(&mut self) -> impl Iterator<Item = Result<Piece, Error>> {
        iter::from_fn(|| block_on(|context| self.poll_piece(context)))
    }

    /// Runs to the end and returns the whole text.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn into_text(mut self) -> Result<(String, Statistics), Error> {
        let text = self.by_ref().collect::<Result<String, Error>>()?;
        Ok((text, self.statistics()))
    }

    /// The next of [`pieces`](Self::pieces), for a task: it is woken when there is more. A stream that an engine or a
    /// thread of its own (`into_async`) does not compute is computed by this call.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        if self.progress.finished.is_some() {
            return Poll::Ready(None);
        }
        let message = match &mut self.source {
            Source::Here(session) => session.next_message(),
            Source::Elsewhere(pieces) => match ready!(pieces.poll_next(context)) {
                Some(message) => message,
                None if pieces.is_cancelled() => Err(llama_sys::Error::Aborted.into()),
                None => Err(Error::EngineEnded),
            },
        };
        let piece = self.progress.read(message);
        if let (Some(Err(_)), Source::Here(session)) = (&piece, &self.source)
            && !session.is_loaded()
        {
            // It goes on after a re-placement that succeeds.
            self.progress.finished = None;
        }
        Poll::Ready(piece)
    }

    /// The error that follows the last piece, once.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.progress.error.take()
    }

    /// The next piece with text; `None` after the end.
    pub(super) fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String, Error>>> {
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
        if let (Some(run), None) = (&self.run, self.finish_reason()) {
            run.abort_handle().abort();
        }
    }
}
