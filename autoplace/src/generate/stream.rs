//! One text as it is generated, as an iterator: of a model in this process.

use std::collections::VecDeque;

use llama_sys::{AbortHandle, Token};

use super::error::Error;
use super::replace::Replaced;
use super::session::{FinishReason, Piece, Session};
use super::stats::Statistics;
use crate::plan::Plan;

/// A generation in this process. Dropping it gives the context back.
#[derive(Debug)]
pub(crate) struct LocalStream {
    /// With one sequence, until that ends.
    session: Session,
    /// What a step gave that was not asked for yet.
    pending: VecDeque<Piece>,
    /// Generated so far, those of an earlier process first.
    tokens: Vec<Token>,
    finished: Option<FinishReason>,
    statistics: Statistics,
    /// A full context is to be told as an error.
    full_is_error: bool,
    /// It has not been told yet.
    full: bool,
}

impl LocalStream {
    /// Of a session with one text.
    pub(super) fn new(
        session: Session,
        tokens: Vec<Token>,
        statistics: Statistics,
        max_tokens: usize,
    ) -> Self {
        Self {
            session,
            pending: VecDeque::new(),
            tokens,
            finished: (max_tokens == 0).then_some(FinishReason::MaxTokens),
            statistics,
            full_is_error: false,
            full: false,
        }
    }

    /// Whether a full context is an error ([`WhenFull::Error`](super::WhenFull::Error)).
    pub(super) fn full_is_error(&mut self, is_error: bool) {
        self.full_is_error = is_error;
    }

    /// Counts and times so far.
    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Why the stream ended; `None` while it runs.
    pub(crate) fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Stops a prompt or token that another thread is waiting for; the iterator then returns an error.
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.session.abort_handle()
    }

    /// The tokens so far, those of an earlier process first. Text of the last ones may still be held back.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(super) fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.session.replace(plan)
    }

    pub(super) fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.session.improve(min_gain)
    }

    pub(super) fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        self.session.last_replaced()
    }

    /// The next piece, which may be without text; `None` after the end.
    fn next_piece(&mut self) -> Option<Result<Piece, Error>> {
        while self.finished.is_none() {
            if let Some(piece) = self.pending.pop_front() {
                self.take(&piece);
                return Some(Ok(piece));
            }
            // None for a part of the prompt.
            let pending = &mut self.pending;
            let step = self.session.step().map(|pieces| pending.extend(pieces));
            if let Err(error) = step {
                if self.session.is_loaded() {
                    self.finished = Some(FinishReason::Error);
                }
                return Some(Err(error));
            }
        }
        std::mem::take(&mut self.full).then(|| Err(Error::full(&self.statistics)))
    }

    /// Takes note of a piece.
    fn take(&mut self, piece: &Piece) {
        self.statistics = match piece.end {
            Some(end) => {
                self.finished = Some(end.reason);
                self.full = self.full_is_error && end.reason == FinishReason::ContextFull;
                end.statistics
            }
            None => self.session.statistics(piece.sequence).unwrap_or_default(),
        };
        // A token that ends the generation is not one of the text.
        if self.statistics.generated_tokens > self.tokens.len() {
            self.tokens.extend(piece.token);
        }
    }
}

impl Iterator for LocalStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_piece()? {
                Ok(piece) if piece.text.is_empty() => {}
                piece => return Some(piece.map(|piece| piece.text)),
            }
        }
    }
}
