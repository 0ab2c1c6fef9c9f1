//! What of the end of a text is told as an error, after its last piece.

use super::error::Error;
use super::session::{FinishReason, Piece};

/// Hears the pieces of one text, and has the last word where its end is an error to whoever reads it as text.
#[derive(Debug, Clone)]
pub(super) struct LastWord {
    /// That the context is full is an error ([`WhenFull::Error`](super::WhenFull::Error)).
    full_is_error: bool,
    /// The whole text, where it is held to a constraint.
    text: Option<String>,
    /// Not told yet.
    error: Option<Error>,
}

impl LastWord {
    pub(super) fn new(full_is_error: bool, is_constrained: bool) -> Self {
        Self {
            full_is_error,
            text: is_constrained.then(String::new),
            error: None,
        }
    }

    /// Whether the text is held to a constraint.
    pub(super) fn is_constrained(&self) -> bool {
        self.text.is_some()
    }

    /// Leaves it to others to tell that the context is full.
    pub(super) fn keep_quiet_of_full(&mut self) {
        self.full_is_error = false;
    }

    /// Takes note of the next piece.
    pub(super) fn hear(&mut self, piece: &Piece) {
        if let Some(text) = &mut self.text {
            text.push_str(&piece.text);
        }
        let Some(end) = piece.end else {
            return;
        };
        if !end.meets_constraint {
            self.error = Some(Error::Incomplete {
                limit: end.reason,
                text: self.text.take().unwrap_or_default(),
            });
        } else if self.full_is_error && end.reason == FinishReason::ContextFull {
            self.error = Some(Error::full(&end.statistics));
        }
    }

    /// Whether it is still to be told that the text is not what its constraint has it be.
    pub(super) fn is_incomplete(&self) -> bool {
        matches!(self.error, Some(Error::Incomplete { .. }))
    }

    /// The error, once.
    pub(super) fn take(&mut self) -> Option<Error> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::session::{End, SequenceId};
    use crate::generate::stats::Statistics;

    fn piece(text: &str, end: Option<(FinishReason, bool)>) -> Piece {
        Piece {
            sequence: SequenceId(0),
            token: None,
            logprobs: None,
            text: text.into(),
            end: end.map(|(reason, meets_constraint)| End {
                reason,
                meets_constraint,
                statistics: Statistics {
                    prompt_tokens: 3,
                    generated_tokens: 4,
                    ..Statistics::default()
                },
            }),
        }
    }

    #[test]
    fn a_full_context_is_an_error_where_it_was_to_be_one() {
        let full = piece("", Some((FinishReason::ContextFull, true)));
        let mut last = LastWord::new(true, false);
        last.hear(&full);
        assert!(matches!(
            last.take(),
            Some(Error::ContextFull { tokens: 7 })
        ));
        assert!(last.take().is_none());
        let mut last = LastWord::new(false, false);
        last.hear(&full);
        assert!(last.take().is_none());
        let mut last = LastWord::new(true, false);
        last.hear(&piece("", Some((FinishReason::MaxTokens, true))));
        assert!(last.take().is_none());
    }

    #[test]
    fn a_text_that_is_incomplete_comes_with_its_error() {
        let mut last = LastWord::new(true, true);
        last.hear(&piece("{\"a", None));
        assert!(!last.is_incomplete());
        last.hear(&piece("\":", Some((FinishReason::ContextFull, false))));
        assert!(last.is_incomplete());
        let Some(Error::Incomplete { limit, text }) = last.take() else {
            panic!("no error");
        };
        assert_eq!((limit, &*text), (FinishReason::ContextFull, "{\"a\":"));
    }
}
