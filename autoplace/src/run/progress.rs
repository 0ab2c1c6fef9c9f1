//! The reader's state of a text. In: messages with the text's pieces. Out: the pieces, the statistics, the text's end,
//! and the error that follows the last piece.

use crate::chat::FinishReason;
use crate::decode::error::Error;
use crate::decode::piece::Piece;
use crate::decode::request::{Spec, WhenFull};
use crate::decode::stats::Statistics;

/// A message to the reader of one text: the next piece with the statistics so far, or an error. Sessions, engines and
/// workers send such messages.
pub(crate) type Message = Result<(Piece, Statistics), Error>;

/// The reader's state of one text: its statistics, its end, and the error that follows the last piece.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) statistics: Statistics,
    pub(crate) finished: Option<FinishReason>,
    /// Whether a full context is an error ([`WhenFull::Error`](crate::generate::WhenFull::Error)).
    full_is_error: bool,
    /// If the text has a constraint, the whole text so far.
    text: Option<String>,
    /// An error that the reader has not returned yet.
    pub(crate) error: Option<Error>,
}

impl Progress {
    /// The state before the first message of a request.
    pub(crate) fn of_request(spec: &Spec) -> Self {
        Self::new(spec.when_full == WhenFull::Error, spec.constraint.is_some())
    }

    fn new(full_is_error: bool, is_constrained: bool) -> Self {
        let (statistics, text) = (Statistics::default(), is_constrained.then(String::new));
        Self { statistics, finished: None, full_is_error, text, error: None }
    }

    /// Takes a message and returns its piece or error; `None` for an aborted text.
    pub(crate) fn read(&mut self, message: Message) -> Option<Result<Piece, Error>> {
        let (piece, statistics) = match message {
            Ok(generated) => generated,
            Err(Error::Native(llama_sys::Error::Aborted)) => {
                self.abort();
                return None;
            }
            Err(error) => {
                self.finish(FinishReason::Error);
                return Some(Err(error));
            }
        };
        self.statistics = statistics;
        if let Some(text) = &mut self.text {
            text.push_str(&piece.text);
        }
        if let Some(end) = &piece.end {
            self.finish(end.reason);
            if !end.meets_constraint {
                let text = self.text.take().unwrap_or_default();
                self.error = Some(Error::Incomplete { limit: end.reason, text });
            } else if self.full_is_error && end.reason == FinishReason::ContextFull {
                let Statistics { prompt_tokens, generated_tokens, .. } = end.statistics;
                self.error = Some(Error::ContextFull { tokens: prompt_tokens.saturating_add(generated_tokens) });
            }
        }
        Some(Ok(piece))
    }

    fn finish(&mut self, reason: FinishReason) {
        self.finished = Some(reason);
        self.statistics.finish_reason = Some(reason);
    }

    /// Marks the text as aborted, unless it has ended.
    pub(crate) fn abort(&mut self) {
        if self.finished.is_none() {
            self.finish(FinishReason::Aborted);
            self.error = self.text.take().map(|text| Error::Incomplete { limit: FinishReason::Aborted, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_ends_a_text_and_is_an_error_under_a_constraint() {
        for is_constrained in [false, true] {
            let mut progress = Progress::new(true, is_constrained);
            assert!(progress.read(Err(llama_sys::Error::Aborted.into())).is_none());
            assert_eq!(progress.finished, Some(FinishReason::Aborted));
            let error = progress.error.take().map(|error| error.to_string());
            assert_eq!(error.is_some(), is_constrained);
            assert!(error.is_none_or(|error| error.starts_with("an abort ended the text")));
        }
    }
}
