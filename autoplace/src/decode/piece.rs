//! A piece: the part of a text that one step adds, and the way a text ended.

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::stats::Statistics;

use crate::chat::FinishReason;

/// Identifies a text of a [`Session`](crate::generate::Session). A session never uses an identifier twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequenceId(pub(crate) u64);

/// A piece of one text, as a [step](crate::generate::Session::step) returns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Piece {
    /// The text to which the piece belongs.
    pub sequence: SequenceId,
    /// The chosen token; `None` when a text ends without one.
    pub token: Option<Token>,
    /// Log-probabilities of the token, if [requested](crate::generate::GenerateRequest::logprobs).
    pub logprobs: Option<TokenLogprobs>,
    /// Whole characters. Empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// Set in the last piece of a text.
    pub end: Option<End>,
}

impl Piece {
    /// A piece whose text is still to be added.
    pub(crate) fn new(sequence: SequenceId, token: Option<Token>) -> Self {
        Self { sequence, token, logprobs: None, text: String::new(), end: None }
    }
}

/// How a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct End {
    /// The reason.
    pub reason: FinishReason,
    /// Whether the text meets its constraint; true without a constraint. When false, `reason` is the limit that cut the
    /// text short.
    pub meets_constraint: bool,
    /// Index of the stop string that ended the text, in the order of the
    /// [calls](crate::generate::GenerateRequest::stop). `None` if a token or a limit ended the text.
    pub stop_string: Option<usize>,
    /// Counts and times of the text.
    pub statistics: Statistics,
}

/// Log-probabilities of one step, from the model's own distribution over all tokens, before any sampler, bias or
/// constraint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TokenLogprobs {
    /// The chosen token.
    pub token: Token,
    /// Natural logarithm of the token's probability; [`f32::MIN`] for a probability of zero.
    pub logprob: f32,
    /// The likeliest tokens with their log-probabilities, as many as were requested, in descending order.
    pub top: Vec<(Token, f32)>,
}
