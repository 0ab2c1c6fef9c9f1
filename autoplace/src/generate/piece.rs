//! What a step adds to one text, and how a text ends.

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::stats::Statistics;

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a token that ends the text or turn.
    EndOfGeneration,
    /// A stop string came.
    StopString,
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// It was aborted, or is not wanted any more.
    Aborted,
    /// An error, which the iterator returned.
    Error,
}

/// One of the texts of a [`Session`](super::Session). No two of a session are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequenceId(pub(super) u64);

/// What a [step](super::Session::step) adds to one text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Piece {
    /// The text that it belongs to.
    pub sequence: SequenceId,
    /// The token that was chosen; `None` where a text ends without one.
    pub token: Option<Token>,
    /// How likely the token was, and the likeliest tokens, if that was [asked for](super::Generate::logprobs).
    pub logprobs: Option<TokenLogprobs>,
    /// Whole characters; empty while a character or a stop string is incomplete.
    pub text: String,
    /// Set in the last piece of its text.
    pub end: Option<End>,
}

impl Piece {
    /// Of a token, or of none; its text is still to come.
    pub(super) fn new(sequence: SequenceId, token: Option<Token>) -> Self {
        Self { sequence, token, logprobs: None, text: String::new(), end: None }
    }
}

/// How a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// Whether the text meets its constraint; true without one. Where it is false, the reason is the limit
    /// that has cut it short.
    pub meets_constraint: bool,
    /// What it took.
    pub statistics: Statistics,
}

/// Log-probabilities of one step: of the model's own distribution over all tokens, before any sampler,
/// bias or constraint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TokenLogprobs {
    /// The token that was chosen.
    pub token: Token,
    /// Natural logarithm of its probability. What a model gives no chance at all has [`f32::MIN`].
    pub logprob: f32,
    /// The likeliest tokens with their log-probabilities, the likeliest first; as many as were asked for.
    pub top: Vec<(Token, f32)>,
}

/// What comes of one text: its next piece with what the text took so far, or why there is none. A session, an engine
/// and a worker all write it.
pub(super) type Message = Result<(Piece, Statistics), Error>;

/// What a reader knows of one text: what it took, how it ended, and the error that follows its last piece where it is
/// read as text.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) statistics: Statistics,
    pub(super) finished: Option<FinishReason>,
    /// A full context is an error ([`WhenFull::Error`](super::WhenFull::Error)).
    full_is_error: bool,
    /// The whole text, where it is held to a constraint.
    text: Option<String>,
    /// Not returned yet.
    pub(super) error: Option<Error>,
}

impl Progress {
    pub(super) fn new(full_is_error: bool, is_constrained: bool) -> Self {
        let (statistics, text) = (Statistics::default(), is_constrained.then(String::new));
        Self { statistics, finished: None, full_is_error, text, error: None }
    }

    /// The piece, or the error instead of it; `None` where the text was aborted.
    pub(super) fn read(&mut self, message: Message) -> Option<Result<Piece, Error>> {
        let (piece, statistics) = match message {
            Ok(generated) => generated,
            Err(Error::Native(llama_sys::Error::Aborted)) => {
                self.abort();
                return None;
            }
            Err(error) => {
                self.finished = Some(FinishReason::Error);
                return Some(Err(error));
            }
        };
        self.statistics = statistics;
        if let Some(text) = &mut self.text {
            text.push_str(&piece.text);
        }
        if let Some(end) = &piece.end {
            self.finished = Some(end.reason);
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

    /// The text ends here, unless it has ended.
    pub(super) fn abort(&mut self) {
        if self.finished.is_none() {
            self.finished = Some(FinishReason::Aborted);
            self.error = self.text.take().map(|text| Error::Incomplete { limit: FinishReason::Aborted, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_is_an_end_and_of_a_constrained_text_an_error() {
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
