//! One text of an engine, as its reader sees it.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::queue::Shared;
use crate::generate::channel::Receiver;
use crate::generate::error::Error;
use crate::generate::last_word::LastWord;
use crate::generate::pieces::Pieces;
use crate::generate::session::{FinishReason, Piece};
use crate::generate::stats::Statistics;
use crate::generate::wait::block_on;

/// What comes from the engine's thread: a piece with what the text took so far, or why there is none.
pub(super) type Message = Result<(Piece, Statistics), Error>;

/// A text of an [`Engine`](super::Engine): an iterator of whole characters, and with the feature `async` a `Stream`.
/// Dropping it cancels the text within one token, or takes it out of the queue.
///
/// After the end or an error it stays at `None`; [`finish_reason`](Self::finish_reason) tells which end it was.
#[derive(Debug)]
pub struct Answer {
    receiver: Receiver<Message>,
    shared: Arc<Shared>,
    arrival: u64,
    finished: Option<FinishReason>,
    last_word: LastWord,
    statistics: Statistics,
}

impl Answer {
    pub(super) fn new(
        receiver: Receiver<Message>,
        shared: Arc<Shared>,
        arrival: u64,
        last_word: LastWord,
        statistics: Statistics,
    ) -> Self {
        Self {
            receiver,
            shared,
            arrival,
            finished: None,
            last_word,
            statistics,
        }
    }

    /// Counts and times so far, as of the last piece that was read.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Why the text ended; `None` while it is not read to its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// The text token by token, instead of as text alone.
    pub fn pieces(&mut self) -> Pieces<'_, Self> {
        Pieces(self)
    }

    /// Reads to the end and returns the whole text.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn into_text(mut self) -> Result<(String, Statistics), Error> {
        let text = self.by_ref().collect::<Result<String, Error>>()?;
        Ok((text, self.statistics))
    }

    /// The next piece, which may be without text; `None` after the end. What [`pieces`](Self::pieces) asks for, for
    /// tasks without the feature `async`: the task is woken when there is more.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        if self.finished.is_some() {
            return Poll::Ready(None);
        }
        let message = ready!(self.receiver.poll_next(context));
        Poll::Ready(Some(self.take(message)))
    }

    /// The next piece with text; `None` after the end.
    pub(super) fn poll_text(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<String, Error>>> {
        loop {
            match ready!(self.poll_piece(context)) {
                Some(Ok(piece)) if piece.text.is_empty() => {}
                None => return Poll::Ready(self.last_word.take().map(Err)),
                piece => return Poll::Ready(piece.map(|piece| piece.map(|piece| piece.text))),
            }
        }
    }

    fn take(&mut self, message: Option<Message>) -> Result<Piece, Error> {
        match message.unwrap_or(Err(Error::EngineEnded)) {
            Ok((piece, statistics)) => {
                self.statistics = statistics;
                self.finished = piece.end.map(|end| end.reason);
                self.last_word.hear(&piece);
                Ok(piece)
            }
            Err(error) => {
                self.finished = Some(FinishReason::Error);
                Err(error)
            }
        }
    }
}

impl Iterator for Answer {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(|context| self.poll_text(context))
    }
}

impl std::iter::FusedIterator for Answer {}

impl Iterator for Pieces<'_, Answer> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(|context| self.0.poll_piece(context))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.receiver.close();
        if self.finished.is_none() {
            self.shared.forget(self.arrival);
        }
    }
}
