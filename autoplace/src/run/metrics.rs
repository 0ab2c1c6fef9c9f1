//! The numbers that an engine reports about itself.

use serde::{Deserialize, Serialize};

/// The present load of an [`Engine`](crate::generate::Engine), and its totals since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// The number of waiting texts: new requests, and texts that were suspended.
    pub queued: usize,
    /// The number of texts that have a sequence. For a model in a worker, the number of texts whose first token has
    /// arrived.
    pub running: usize,
    /// The number of generated tokens, without end-of-generation tokens.
    pub generated_tokens: u64,
    /// The number of tokens of all prompts that have begun.
    pub prompt_tokens: u64,
    /// The number of prompt tokens that the context already held.
    pub cached_tokens: u64,
}
