//! One text of an engine, for tasks.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::Answer;
use crate::generate::error::Error;
use crate::generate::pieces::Pieces;
use crate::generate::session::{FinishReason, Piece};
use crate::generate::stats::Statistics;

/// A text of an [`Engine`](super::Engine) as a `Stream` of whole characters, for any runtime: made by
/// [`Answer::into_async`]. Dropping it cancels the text as dropping the [`Answer`] does.
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

    /// Why the text ended; `None` while it is not read to its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.0.finish_reason()
    }

    /// The text token by token, instead of as text alone.
    pub fn pieces(&mut self) -> Pieces<'_, Self> {
        Pieces(self)
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

impl Stream for Pieces<'_, AsyncAnswer> {
    type Item = Result<Piece, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.0.poll_piece(context)
    }
}
