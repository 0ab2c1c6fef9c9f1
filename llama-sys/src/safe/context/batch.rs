//! Tokens to decode in one call.

use crate::safe::model::Token;

/// A sequence in the KV cache. Sequences are numbered from 0; the number must be below the context's `n_seq_max`.
pub type SeqId = i32;

/// A position in a sequence, counted from 0.
pub type Position = i32;

/// A list of tokens, each with its position, its sequence, and a flag that requests its logits. Reusing a batch
/// allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(super) tokens: Vec<Token>,
    pub(super) positions: Vec<Position>,
    pub(super) seqs: Vec<SeqId>,
    pub(super) outputs: Vec<i8>,
}

impl Batch {
    /// An empty batch with room for `tokens` tokens. It does not allocate again until it contains more tokens.
    pub fn with_capacity(tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            seqs: Vec::with_capacity(tokens),
            outputs: Vec::with_capacity(tokens),
        }
    }

    /// Adds a token of a sequence. If `output` is set, the logits of this token are computed.
    pub fn add(&mut self, token: Token, position: Position, seq: SeqId, output: bool) {
        self.tokens.push(token);
        self.positions.push(position);
        self.seqs.push(seq);
        self.outputs.push(output.into());
    }

    /// Removes every token. The memory stays allocated.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.outputs.clear();
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the batch has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of tokens with requested logits.
    pub fn n_outputs(&self) -> usize {
        self.outputs.iter().filter(|output| **output != 0).count()
    }
}
