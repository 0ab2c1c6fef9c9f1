//! A generation as the application sees it, wherever it runs.

use std::fmt;
use std::sync::Arc;

use llama_sys::Token;

use super::error::Error;
#[cfg(feature = "async")]
use super::last_word::LastWord;
use super::pieces::Pieces;
use super::remote::{self, RemoteStream};
use super::replace::Replaced;
use super::session::{FinishReason, Piece};
use super::stats::Statistics;
use super::stream::LocalStream;
use crate::plan::Plan;
use crate::worker;

/// Text as it is generated: an iterator of pieces that are always whole characters. Dropping it cancels the generation.
///
/// The first `next` computes the prompt. After the end or an error the iterator stays at `None`;
/// [`finish_reason`](Self::finish_reason) tells which end it was. Only after a [re-placement](Self::replace) that
/// failed does it stay at that error, until one succeeds.
///
/// A [worker](crate::Isolation::Process) computes ahead of its reader, by 64 tokens at most.
#[derive(Debug)]
pub struct TokenStream(Inner);

#[derive(Debug)]
enum Inner {
    Local(Box<LocalStream>),
    Remote(Box<RemoteStream>),
}

/// Stops a generation from another thread; made by [`TokenStream::abort_handle`].
#[derive(Clone)]
pub struct AbortHandle(Aborting);

#[derive(Clone)]
enum Aborting {
    Local(llama_sys::AbortHandle),
    Remote(Arc<remote::Abort>),
}

impl AbortHandle {
    /// Makes the current computation of the generation, or its next one, return [`llama_sys::Error::Aborted`]; nothing
    /// once it has ended. Works while the CPU computes; a GPU finishes its part of the graph first.
    pub fn abort(&self) {
        match &self.0 {
            Aborting::Local(handle) => handle.abort(),
            Aborting::Remote(abort) => abort.abort(),
        }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}

impl From<LocalStream> for TokenStream {
    fn from(stream: LocalStream) -> Self {
        Self(Inner::Local(Box::new(stream)))
    }
}

impl From<RemoteStream> for TokenStream {
    fn from(stream: RemoteStream) -> Self {
        Self(Inner::Remote(Box::new(stream)))
    }
}

impl TokenStream {
    /// Counts and times so far.
    pub fn statistics(&self) -> Statistics {
        match &self.0 {
            Inner::Local(stream) => stream.statistics(),
            Inner::Remote(stream) => stream.statistics(),
        }
    }

    /// The tokens of the text so far. Text of the last ones may still be held back.
    pub(super) fn tokens(&self) -> &[Token] {
        match &self.0 {
            Inner::Local(stream) => stream.tokens(),
            Inner::Remote(stream) => stream.tokens(),
        }
    }

    /// Why the stream ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        match &self.0 {
            Inner::Local(stream) => stream.finish_reason(),
            Inner::Remote(stream) => stream.finish_reason(),
        }
    }

    /// Stops a prompt or token that another thread is waiting for; the iterator then returns an error. It stays good
    /// when the model is placed anew.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(match &self.0 {
            Inner::Local(stream) => Aborting::Local(stream.abort_handle()),
            Inner::Remote(stream) => Aborting::Remote(stream.abort_handle()),
        })
    }

    /// Places the model anew between two pieces: see [`Session::replace`](super::Session::replace).
    ///
    /// # Errors
    ///
    /// As [`Session::replace`](super::Session::replace); [`Error::Worker`] for a model in a worker, which is placed
    /// anew while nothing is generated ([`Model::replace`](crate::Model::replace)).
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.local()?.replace(plan)
    }

    /// Places the model anew if that makes it better by this [gain](crate::load::BetterPlan::gain) at least: see
    /// [`Session::improve`](super::Session::improve).
    ///
    /// # Errors
    ///
    /// As [`Session::improve`](super::Session::improve); [`Error::Worker`] for a model in a worker.
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.local()?.improve(min_gain)
    }

    /// The outcome of the last re-placement, of those too that others asked for
    /// ([`Model::request_replace`](crate::Model::request_replace)).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        match &self.0 {
            Inner::Local(stream) => stream.last_replaced(),
            Inner::Remote(_) => None,
        }
    }

    /// What is told after the pieces that are still to come.
    #[cfg(feature = "async")]
    pub(super) fn last_word(&self) -> &LastWord {
        match &self.0 {
            Inner::Local(stream) => stream.last_word(),
            Inner::Remote(stream) => stream.last_word(),
        }
    }

    fn local(&mut self) -> Result<&mut LocalStream, Error> {
        match &mut self.0 {
            Inner::Local(stream) => Ok(stream),
            Inner::Remote(_) => Err(Error::Worker(worker::Error::Elsewhere {
                what: "the generation that is under way",
            })),
        }
    }

    /// The text token by token, instead of as text alone. Of a model in a worker, the token that ends a
    /// generation is not told.
    pub fn pieces(&mut self) -> Pieces<'_, Self> {
        Pieces(self)
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
}

impl Iterator for TokenStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Inner::Local(stream) => stream.next(),
            Inner::Remote(stream) => stream.next(),
        }
    }
}

impl std::iter::FusedIterator for TokenStream {}

impl Iterator for Pieces<'_, TokenStream> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0.0 {
            Inner::Local(stream) => stream.next_piece(),
            Inner::Remote(stream) => stream.next_piece(),
        }
    }
}
