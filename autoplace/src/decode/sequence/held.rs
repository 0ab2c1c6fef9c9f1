//! The part of the context that a text holds.

use llama_sys::{SeqId, State};

use crate::decode::checkpoints::Stops;
use crate::decode::piece::SequenceId;

#[derive(Debug)]
pub(crate) struct Held {
    /// Sequence number in the context.
    pub(crate) seq: SeqId,
    /// Number of leading tokens in the KV cache.
    pub(crate) computed: usize,
    /// Number of leading tokens that are computed in full batches. The tokens after them are computed one by one, in
    /// the same way as when they were generated.
    pub(crate) in_batches: usize,
    /// Number of leading tokens that no shift has moved. Tokens that were moved depend on discarded tokens, so no other
    /// text reuses them.
    pub(crate) unshifted: usize,
    pub(crate) stops: Stops,
    /// The running text whose cells hold the beginning of this text, and the number of tokens that the two share.
    pub(crate) shares: Option<(SequenceId, usize)>,
    /// The KV cache of the computed tokens, saved while the model is unloaded.
    pub(crate) saved: Option<State>,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            seq: 0,
            computed: 0,
            in_batches: 0,
            unshifted: usize::MAX,
            stops: Stops::default(),
            shares: None,
            saved: None,
        }
    }
}

impl Held {
    /// Number of leading tokens that another text can reuse.
    pub(super) fn reusable(&self) -> usize {
        self.computed.min(self.unshifted)
    }
}
