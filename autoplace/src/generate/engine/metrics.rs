//! What an engine is at, in numbers.

use serde::{Deserialize, Serialize};

/// What an [`Engine`](super::Engine) is at, and what it has done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Texts that wait: requests, and texts that have made room for others.
    pub queued: usize,
    /// Texts that have a sequence, those included that pause for their readers.
    pub running: usize,
    /// Tokens generated, end-of-generation tokens not counted.
    pub generated_tokens: u64,
    /// Tokens of the prompts that were begun.
    pub prompt_tokens: u64,
    /// Those of them that the context held already.
    pub cached_tokens: u64,
    /// How often a text has made room for others.
    pub suspended: u64,
}
