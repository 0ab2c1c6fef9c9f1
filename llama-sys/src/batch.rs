//! Tokens to decode in one call.

use crate::vocab::Token;
use crate::{Position, SeqId};

/// A list of tokens, each with its position, its sequences, and whether its logits are wanted. Reusing one
/// allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) tokens: Vec<Token>,
    pub(crate) positions: Vec<Position>,
    /// Sequences of all tokens, end to end; `seq_counts` says how many belong to each.
    pub(crate) seqs: Vec<SeqId>,
    pub(crate) seq_counts: Vec<i32>,
    pub(crate) outputs: Vec<i8>,
}

impl Batch {
    /// An empty batch that holds `tokens` tokens without allocating again.
    pub fn with_capacity(tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            seqs: Vec::with_capacity(tokens),
            seq_counts: Vec::with_capacity(tokens),
            outputs: Vec::with_capacity(tokens),
        }
    }

    /// Adds a token of one sequence. `output`: its logits are wanted.
    pub fn add(&mut self, token: Token, position: Position, seq: SeqId, output: bool) {
        self.add_shared(token, position, &[seq], output);
    }

    /// Adds a token that several sequences share.
    pub fn add_shared(&mut self, token: Token, position: Position, seqs: &[SeqId], output: bool) {
        self.tokens.push(token);
        self.positions.push(position);
        self.seqs.extend_from_slice(seqs);
        self.seq_counts.push(seqs.len().try_into().unwrap_or(i32::MAX));
        self.outputs.push(output.into());
    }

    /// Removes every token and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.seq_counts.clear();
        self.outputs.clear();
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True without tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of tokens whose logits are wanted.
    pub fn n_outputs(&self) -> usize {
        self.outputs.iter().filter(|output| **output != 0).count()
    }
}
