//! How far one text is read, wherever it is generated.

use super::error::Error;
use super::piece::{FinishReason, Piece};
use super::stats::Statistics;

/// What comes of one text: its next piece with what the text took so far, or why there is none. A session, an engine
/// and a worker all write it.
pub(super) type Message = Result<(Piece, Statistics), Error>;

/// What a reader knows of one text: what it took, how it ended, and the error that follows its last piece where it is
/// read as text.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) statistics: Statistics,
    pub(super) finished: Option<FinishReason>,
    /// A full context is an error ([`WhenFull::Error`](super::WhenFull::Error)).
    full_is_error: bool,
    /// The whole text, where it is held to a constraint.
    text: Option<String>,
    /// Not returned yet.
    error: Option<Error>,
}

impl Progress {
    pub(super) fn new(full_is_error: bool, is_constrained: bool, statistics: Statistics) -> Self {
        Self {
            statistics,
            finished: None,
            full_is_error,
            text: is_constrained.then(String::new),
            error: None,
        }
    }

    pub(super) fn read(&mut self, message: Message) -> Result<Piece, Error> {
        let (piece, statistics) = message.inspect_err(|_| {
            self.finished = Some(FinishReason::Error);
        })?;
        self.statistics = statistics;
        if let Some(text) = &mut self.text {
            text.push_str(&piece.text);
        }
        if let Some(end) = &piece.end {
            self.finished = Some(end.reason);
            if !end.meets_constraint {
                self.error = Some(Error::Incomplete {
                    limit: end.reason,
                    text: self.text.take().unwrap_or_default(),
                });
            } else if self.full_is_error && end.reason == FinishReason::ContextFull {
                self.error = Some(Error::full(&end.statistics));
            }
        }
        Ok(piece)
    }

    /// The error that follows the last piece, once.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::piece::{End, SequenceId};

    /// The error that follows these texts, of which the last ends for this reason.
    fn error(
        full_is_error: bool,
        is_constrained: bool,
        texts: &[&str],
        reason: FinishReason,
    ) -> Option<Error> {
        let statistics = Statistics {
            prompt_tokens: 3,
            generated_tokens: 4,
            ..Statistics::default()
        };
        let end = End {
            reason,
            meets_constraint: !is_constrained,
            statistics,
        };
        let mut progress = Progress::new(full_is_error, is_constrained, Statistics::default());
        for (at, text) in (1..).zip(texts) {
            assert!(progress.take_error().is_none());
            let piece = Piece {
                sequence: SequenceId(0),
                token: None,
                logprobs: None,
                text: (*text).into(),
                end: (at == texts.len()).then_some(end),
            };
            progress.read(Ok((piece, statistics))).unwrap();
        }
        assert_eq!(progress.finished, Some(reason));
        let error = progress.take_error();
        assert!(progress.take_error().is_none());
        error
    }

    #[test]
    fn a_full_context_is_an_error_where_it_was_to_be_one() {
        use FinishReason::{ContextFull, MaxTokens};
        let full = error(true, false, &[""], ContextFull);
        assert!(matches!(full, Some(Error::ContextFull { tokens: 7 })));
        assert!(error(false, false, &[""], ContextFull).is_none());
        assert!(error(true, false, &[""], MaxTokens).is_none());
    }

    #[test]
    fn a_text_that_is_incomplete_comes_with_its_error() {
        let cut = error(true, true, &["{\"a", "\":"], FinishReason::ContextFull);
        let Some(Error::Incomplete { limit, text }) = cut else {
            panic!("no error");
        };
        assert_eq!((limit, &*text), (FinishReason::ContextFull, "{\"a\":"));
    }
}
