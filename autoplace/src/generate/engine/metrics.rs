//! What an engine is at, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// Running totals. The engine's thread writes.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) generated_tokens: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) suspended: AtomicU64,
}

impl Totals {
    pub(super) fn metrics(&self, queued: usize, running: usize) -> Metrics {
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Metrics {
            queued,
            running,
            generated_tokens: read(&self.generated_tokens),
            prompt_tokens: read(&self.prompt_tokens),
            cached_tokens: read(&self.cached_tokens),
            suspended: read(&self.suspended),
        }
    }
}

pub(super) fn add(total: &AtomicU64, n: usize) {
    total.fetch_add(n as u64, Ordering::Relaxed);
}
