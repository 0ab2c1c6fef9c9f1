//! Tokens to decode in one call.

use crate::vocab::Token;
use crate::{Position, SeqId};

/// A list of tokens, each with its position, its sequence, and whether its logits are wanted. Reusing a batch allocates
/// nothing.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) tokens: Vec<Token>,
    pub(crate) positions: Vec<Position>,
    pub(crate) seqs: Vec<SeqId>,
    pub(crate) outputs: Vec<i8>,
}

impl Batch {
    /// An empty batch that holds `tokens` tokens without allocating again.
    pub fn with_capacity(tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            seqs: Vec::with_capacity(tokens),
            outputs: Vec::with_capacity(tokens),
        }
    }

    /// Adds a token of a sequence. With `output`, its logits are wanted.
    pub fn add(&mut self, token: Token, position: Position, seq: SeqId, output: bool) {
        self.tokens.push(token);
        self.positions.push(position);
        self.seqs.push(seq);
        self.outputs.push(output.into());
    }

    /// Removes every token and keeps the memory.
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

    /// Number of tokens whose logits are wanted.
    pub fn n_outputs(&self) -> usize {
        self.outputs.iter().filter(|output| **output != 0).count()
    }
}
