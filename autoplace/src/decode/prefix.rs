//! The beginning of a text: the tokens that two texts share, and the position after them.

use llama_sys::{Position, Token};

use super::media::Spans;
use crate::load::Scales;

/// The first tokens of a text and its adapters. The same tokens under other adapters have other keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix<'a> {
    pub(crate) tokens: &'a [Token],
    /// The rows of pictures and sounds of the whole text.
    pub(crate) spans: &'a Spans,
    pub(crate) scales: &'a Scales,
}

impl Prefix<'_> {
    /// The position after the prefix, which does not end within rows.
    pub(crate) fn end(&self) -> usize {
        self.spans.position(self.tokens.len())
    }

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
