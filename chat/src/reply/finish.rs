//! The reason why an answer ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why a text or an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a token that ends the text or the turn.
    EndOfGeneration,
    /// A stop string occurred in the text.
    StopString,
    /// The limit of tokens was reached (`max_tokens`).
    MaxTokens,
    /// There is no room in the context for another token.
    ContextFull,
    /// The reader of the text aborted it, or dropped it.
    Aborted,
    /// An error ended the text. The iterator has returned the error.
    Error,
}

impl FinishReason {
    /// Whether the text was cut short by a limit, an abort or an error. It is `false` if the model or a stop string
    /// ended the text.
    ///
    /// ```
    /// use autoplace_chat::FinishReason;
    /// assert!(FinishReason::MaxTokens.is_cut());
    /// assert!(!FinishReason::EndOfGeneration.is_cut());
    /// ```
    #[must_use]
    pub const fn is_cut(self) -> bool {
        !matches!(self, Self::EndOfGeneration | Self::StopString)
    }
}

/// Writes a text that fits before "ended the text", such as `max_tokens` or `the end of the context`.
impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndOfGeneration => "the model",
            Self::StopString => "a stop string",
            Self::MaxTokens => "max_tokens",
            Self::ContextFull => "the end of the context",
            Self::Aborted => "an abort",
            Self::Error => "an error",
        })
    }
}
