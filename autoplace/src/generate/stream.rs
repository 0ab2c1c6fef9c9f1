//! One text as it is generated, as an iterator: of a model in this process.

use std::collections::VecDeque;

use llama_sys::{AbortHandle, Token};

use super::error::Error;
use super::last_word::LastWord;
use super::logprobs::TokenLogprobs;
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
    last_word: LastWord,
    statistics: Statistics,
}

impl LocalStream {
    /// Of a session with one text.
    pub(super) fn new(
        session: Session,
        tokens: Vec<Token>,
        statistics: Statistics,
        max_tokens: usize,
        last_word: LastWord,
    ) -> Self {
        // A constraint has its say before.
        let is_over = max_tokens == 0 && !last_word.is_constrained();
        Self {
            session,
            pending: VecDeque::new(),
            tokens,
            finished: is_over.then_some(FinishReason::MaxTokens),
            last_word,
            statistics,
        }
    }

    /// Leaves it to the process that reads to tell that the context is full.
    pub(crate) fn keep_quiet_of_full(&mut self) {
        self.last_word.keep_quiet_of_full();
    }

    /// What is told after the pieces that are still to come.
    #[cfg(feature = "async")]
    pub(super) fn last_word(&self) -> &LastWord {
        &self.last_word
    }

    /// Counts and times so far.
    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Why the stream ended; `None` while it runs.
    pub(crate) fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Whether the last that comes is still to come: that the text is incomplete.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.last_word.is_incomplete()
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
    pub(super) fn next_piece(&mut self) -> Option<Result<Piece, Error>> {
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
        None
    }

    /// The next text, and how likely the tokens up to it were, if that was asked for.
    pub(crate) fn next_with(
        &mut self,
        mut hear: impl FnMut(TokenLogprobs),
    ) -> Option<Result<String, Error>> {
        while let Some(piece) = self.next_piece() {
            match piece {
                Ok(piece) => {
                    piece.logprobs.map(&mut hear);
                    if !piece.text.is_empty() {
                        return Some(Ok(piece.text));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.last_word.take().map(Err)
    }

    /// Takes note of a piece.
    fn take(&mut self, piece: &Piece) {
        self.statistics = match piece.end {
            Some(end) => {
                self.finished = Some(end.reason);
                end.statistics
            }
            // It has ended already where that is in a piece that was not asked for yet.
            None => (self.session.statistics(piece.sequence)).unwrap_or(self.statistics),
        };
        self.last_word.hear(piece);
        // A token that ends the generation is not one of the text; one that makes it what its constraint has it be is.
        let told = self.tokens.len();
        if (piece.end).is_none_or(|end| end.statistics.generated_tokens > told) {
            self.tokens.extend(piece.token);
        }
        self.statistics.generated_tokens = self.tokens.len();
    }
}

impl Iterator for LocalStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with(|_| {})
    }
}
