//! What this process and a worker say to each other of a generation.

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use crate::generate::Spec;
use crate::generate::error::Error;
use crate::generate::logprobs::TokenLogprobs;
use crate::generate::session::FinishReason;
use crate::generate::stats::Statistics;
use crate::worker;

/// What a worker is asked for, of a generation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Check everything, and wait for tokens to be allowed.
    Generate(Box<Generation>),
    /// So many more tokens may be generated.
    Allow { id: u64, tokens: usize },
    /// Stop with an error.
    Abort { id: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Generation {
    pub(crate) id: u64,
    pub(crate) spec: Spec,
    /// What an earlier worker has generated.
    pub(crate) so_far: Vec<Token>,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Accepted { seed: Option<u32> },
    Piece(Piece),
    Done { last: Piece, reason: FinishReason },
    Failed(#[serde(with = "worker::crossing")] Error),
}

/// Some text, and the tokens since the last one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    /// Of each of them, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) logprobs: Vec<TokenLogprobs>,
    /// Of the whole generation, so far.
    pub(crate) nanoseconds: u64,
    /// With the first and the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) statistics: Option<Box<Statistics>>,
}
