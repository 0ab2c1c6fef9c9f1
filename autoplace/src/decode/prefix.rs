//! The beginning of a text: the tokens that two texts share, and the position after them.

use llama_sys::{Position, Token};

use crate::load::Scales;

/// The first tokens of a text and its adapters. The same tokens under other adapters have other keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix<'a> {
    pub(crate) tokens: &'a [Token],
    pub(crate) scales: &'a Scales,
}

impl Prefix<'_> {
    /// The first `tokens` tokens of the prefix.
    pub(crate) fn first(self, tokens: usize) -> Self {
        Self { tokens: &self.tokens[..tokens], ..self }
    }
}

/// The position after `tokens` tokens.
pub(crate) fn position(tokens: usize) -> Position {
    Position::try_from(tokens).unwrap_or(Position::MAX)
}

/// Number of tokens at the beginning that both texts have.
pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
