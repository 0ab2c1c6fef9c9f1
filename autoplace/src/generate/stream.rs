//! One text as it is generated, as an iterator.

use llama_sys::AbortHandle;

use super::error::Error;
use super::replace::Replaced;
use super::session::{FinishReason, Piece, Session};
use super::stats::Statistics;
use crate::plan::Plan;

/// Text as it is generated: an iterator of pieces that are always whole characters. Dropping it cancels the generation.
///
/// The first `next` computes the prompt. After the end or an error the iterator stays at `None`; [`finish_reason`](Self::finish_reason)
/// tells which end it was. Only after a [re-placement](Self::replace) that failed does it stay at that error, until one succeeds.
#[derive(Debug)]
pub struct TokenStream {
    /// With one sequence, until that ends.
    session: Session,
    finished: Option<FinishReason>,
    statistics: Statistics,
}

impl TokenStream {
    /// Of a session with one text.
    pub(super) fn new(session: Session, statistics: Statistics, max_tokens: usize) -> Self {
        Self {
            session,
            finished: (max_tokens == 0).then_some(FinishReason::MaxTokens),
            statistics,
        }
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Why the stream ended; `None` while it runs.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Stops a prompt or token that another thread is waiting for; the iterator then returns an error. It stays good when the model is
    /// placed anew.
    pub fn abort_handle(&self) -> AbortHandle {
        self.session.abort_handle()
    }

    /// Places the model anew between two pieces: see [`Session::replace`].
    ///
    /// # Errors
    ///
    /// As [`Session::replace`].
    pub fn replace(&mut self, plan: Option<Plan>) -> Result<Replaced, Error> {
        self.session.replace(plan)
    }

    /// Places the model anew if that makes it better by this [gain](crate::load::BetterPlan::gain) at least: see [`Session::improve`].
    ///
    /// # Errors
    ///
    /// As [`Session::improve`].
    pub fn improve(&mut self, min_gain: f64) -> Result<Option<Replaced>, Error> {
        self.session.improve(min_gain)
    }

    /// The outcome of the last re-placement, of those too that others asked for ([`Model::request_replace`](crate::Model::request_replace)).
    pub fn last_replaced(&self) -> Option<&Result<Replaced, Error>> {
        self.session.last_replaced()
    }

    /// Runs to the end and returns the whole text.
    ///
    /// # Errors
    ///
    /// The first error of the iterator.
    pub fn into_text(mut self) -> Result<(String, Statistics), Error> {
        let mut text = String::new();
        for piece in &mut self {
            text.push_str(&piece?);
        }
        Ok((text, self.statistics))
    }

    /// The next piece, which may be without text; `None` after the end.
    fn next_piece(&mut self) -> Option<Result<Piece, Error>> {
        while self.finished.is_none() {
            let step = self.session.step().map(|mut pieces| pieces.next());
            match step {
                Ok(Some(piece)) => {
                    self.statistics = match piece.end {
                        Some(end) => {
                            self.finished = Some(end.reason);
                            end.statistics
                        }
                        None => self.session.statistics(piece.sequence).unwrap_or_default(),
                    };
                    return Some(Ok(piece));
                }
                // A part of the prompt.
                Ok(None) => {}
                Err(error) => {
                    if self.session.is_loaded() {
                        self.finished = Some(FinishReason::Error);
                    }
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl Iterator for TokenStream {
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

impl std::iter::FusedIterator for TokenStream {}
