//! What a step adds to one text, and how a text ends.

use llama_sys::Token;
use serde::{Deserialize, Serialize};

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
    /// How likely the token was, and which others were, if that was [asked for](super::Generate::logprobs).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub logprobs: Option<TokenLogprobs>,
    /// Whole characters; empty while a character or a stop string is incomplete.
    pub text: String,
    /// Set in the last piece of its text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub end: Option<End>,
}

/// How a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// Whether the text is what its constraint has it be; true without one. Where it is false, the reason is the limit
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
