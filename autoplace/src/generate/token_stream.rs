//! A generation as the application sees it, wherever it runs.

use std::iter;

use llama_sys::Token;

use super::error::Error;
use super::local::SessionHere;
use super::piece::{FinishReason, Piece, Progress};
use super::remote::RemoteText;
use super::request::Generate;
use super::stats::{Replaced, Statistics};
use crate::load::AbortHandle;
use crate::plan::Plan;
use crate::worker;

/// Text as it is generated: an iterator of pieces that are always whole characters. Dropping it cancels the generation
/// and gives the context back.
///
/// The first `next` computes the prompt. After the end or an error the iterator stays at `None`;
/// [`finish_reason`](Self::finish_reason) tells which end it was. Only after a [re-placement](Self::replace) that
/// failed does it stay at that error, until one succeeds.
///
/// A [worker](crate::Isolation::Process) computes ahead of its reader, by 64 tokens at most.
#[derive(Debug)]
pub struct TokenStream {
    source: Source,
    /// Generated so far, those of an earlier process first. Text of the last ones may still be held back.
    tokens: Vec<Token>,
    progress: Progress,
}

#[derive(Debug)]
enum Source {
    /// The one text of a session.
    Local(Box<SessionHere>),
    Remote(Box<RemoteText>),
}

impl Generate {
    /// Checks everything and returns the stream; nothing is computed before its first `next`.
    ///
    /// # Errors
    ///
    /// [`Error::PromptTooLong`], [`Error::EmptyPrompt`], [`Error::EmptyStop`], [`Error::NothingToShift`],
    /// [`Error::NotGenerative`]; [`Error::Constraint`] and [`Error::NoTokenAllowed`]; [`Error::Busy`] while another
    /// stream or session of this model lives; [`Error::Native`] for a sampling parameter out of range,
    /// [`Error::NotOneToken`] and [`Error::TooManyLogprobs`]; [`Error::Worker`] when the model's worker process has
    /// died or cannot be started again.
    pub fn stream(self) -> Result<TokenStream, Error> {
        let (full_is_error, is_constrained) = self.spec.ends();
        // So that no token costs an allocation.
        let room = self.model.placement().context.n_ctx as usize;
        let tokens = Vec::with_capacity(self.spec.limits.max_tokens.min(room));
        let (source, statistics) = if self.model.is_elsewhere() {
            let (remote, statistics) = RemoteText::new(self.model, self.spec)?;
            (Source::Remote(Box::new(remote)), statistics)
        } else {
            let mut session = SessionHere::open(&self.model)?;
            let sequence = session.begin(self)?;
            let statistics = session.statistics(sequence).unwrap_or_default();
            (Source::Local(Box::new(session)), statistics)
        };
        let progress = Progress::new(full_is_error, is_constrained, statistics);
        Ok(TokenStream { source, tokens, progress })
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
    /// Counts and times so far.
    pub fn statistics(&self) -> Statistics {
        self.progress.statistics
    }

    /// The tokens of the text so far. Text of the last ones may still be held back.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    #[cfg(feature = "async")]
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Why the stream ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.progress.finished
    }

    /// Ends a prompt or token that another thread is waiting for. It stays good when the model is re-placed.
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.source {
            Source::Local(session) => session.abort_handle().into(),
            Source::Remote(text) => {
                let link = text.link();
                AbortHandle::new(move || link.abort())
            }
        }
    }

    /// Re-places the model between two pieces: see [`Session::replace`](super::Session::replace).
    ///
    /// # Errors
    ///
    /// As [`Session::replace`](super::Session::replace); [`Error::Worker`] for a model in a worker, which is re-placed
    /// while nothing is generated ([`Model::replace`](crate::Model::replace)).
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.session()?.replace(plan)
    }

    /// Re-places the model if that makes it better by this [gain](crate::load::BetterPlan::gain) at least: see
    /// [`Session::improve`](super::Session::improve).
    ///
    /// # Errors
    ///
    /// As [`Session::improve`](super::Session::improve); [`Error::Worker`] for a model in a worker.
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.session()?.improve(min_gain)
    }

    /// The outcome of the last re-placement, of those too that others asked for
    /// ([`Model::request_replace`](crate::Model::request_replace)).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        match &self.source {
            Source::Local(session) => session.last_replaced(),
            Source::Remote(_) => None,
        }
    }

    fn session(&mut self) -> Result<&mut SessionHere, Error> {
        match &mut self.source {
            Source::Local(session) => Ok(session),
            Source::Remote(_) => {
                Err(Error::Worker(worker::Error::Elsewhere { what: "the generation that is under way" }))
            }
        }
    }

    /// The text token by token, instead of as text alone. The last piece has its [`end`](Piece::end), unless the text
    /// ends with an error.
    pub fn pieces(&mut self) -> impl Iterator<Item = Result<Piece, Error>> {
        iter::from_fn(|| self.next_piece())
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

    /// The next piece, which may be without text; `None` after the end.
    pub(super) fn next_piece(&mut self) -> Option<Result<Piece, Error>> {
        if self.progress.finished.is_some() {
            return None;
        }
        let message = match &mut self.source {
            Source::Local(session) => session.next_message(),
            Source::Remote(text) => text.next(),
        };
        let piece = self.progress.read(message)?;
        match (&piece, &self.source) {
            // A token that ends the generation is not one of the text; one that makes it what its constraint has it be
            // is.
            (Ok(piece), _) if self.progress.statistics.generated_tokens > self.tokens.len() => {
                self.tokens.extend(piece.token);
            }
            // It goes on after a re-placement that succeeds.
            (Err(_), Source::Local(session)) if !session.is_loaded() => {
                self.progress.finished = None;
            }
            _ => {}
        }
        Some(piece)
    }
}

impl Iterator for TokenStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(piece) = self.next_piece() {
            match piece {
                Ok(piece) if piece.text.is_empty() => {}
                piece => return Some(piece.map(|piece| piece.text)),
            }
        }
        self.progress.take_error().map(Err)
    }
}

impl iter::FusedIterator for TokenStream {}
