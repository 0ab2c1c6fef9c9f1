//! What a load makes a driver and its pools do. A model's profile and the sizes of its context flow in.

use crate::memory::ContextSizes;
use crate::profile::{ModelProfile, Weight};

/// What a load makes a driver and its pools do, beside the buffers that are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Workload {
    /// Bytes of the widest activations of the largest batch, in 32-bit floats.
    pub activations: u64,
    /// Bytes of the largest matrix of a block, decoded to 16-bit floats.
    pub decoded_matrix: u64,
    /// Bytes of the vocabulary on the host, about.
    pub vocabulary: u64,
}

impl Workload {
    /// What this model does at these sizes.
    #[must_use]
    pub fn of(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let hparams = &profile.hparams;
        let widest = hparams.widest_ff().max(hparams.widest_stream());
        let per_token = widest.saturating_mul(sizes.n_tokens);
        let logits = u64::from(hparams.n_vocab).saturating_mul(sizes.n_outputs);
        let blocks = profile.weights.blocks.iter();
        let weights = blocks.flat_map(|block| &block.weights);
        let elements = |weight: &Weight| weight.shape[0].saturating_mul(weight.shape[1]);
        let largest = weights.map(elements).max().unwrap_or(0);
        Self {
            activations: per_token.max(logits).saturating_mul(4),
            decoded_matrix: largest.saturating_mul(2),
            // A token's text, its score and type, two hash-map entries: measured at 100 to 200 bytes (llama-vocab.cpp).
            vocabulary: u64::from(hparams.n_vocab).saturating_mul(256),
        }
    }
}
