//! A prefix: tokens at the beginning of a text, which two texts may share, and the position after them.

use llama_sys::{Position, Token};

use super::media::Spans;
use crate::load::{Checkpoint, Marks, Scales};

/// The first tokens of a text, and the text's adapters. With other adapters, the same tokens have other keys and
/// values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix<'a> {
    pub(crate) tokens: &'a [Token],
    /// The rows of pictures and sounds of the whole text.
    pub(crate) spans: &'a Spans,
    /// The hashes of those rows.
    pub(crate) marks: &'a Marks,
    pub(crate) scales: &'a Scales,
}

impl Prefix<'_> {
    /// The position after the prefix. A prefix never ends within the rows of a picture.
    pub(crate) fn end(&self) -> usize {
        self.spans.position(self.tokens.len())
    }

    /// The number of tokens with which both the prefix and this text begin. Rows count only if they belong to the same
    /// pictures and sounds.
    pub(crate) fn common(&self, tokens: &[Token], marks: &Marks) -> usize {
        common_prefix(self.tokens, tokens).min(self.marks.first_difference(marks))
    }

    /// Whether the text begins with the tokens of a checkpoint, with the same adapters.
    pub(crate) fn begins_with(&self, checkpoint: &Checkpoint) -> bool {
        let Checkpoint { scales, tokens, marks, .. } = checkpoint;
        scales == self.scales && self.tokens.starts_with(tokens) && self.common(tokens, marks) == tokens.len()
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

/// The number of tokens with which both lists begin. For texts with pictures, see [`Prefix::common`].
pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::{Prefix, Spans};
    use crate::load::{Marks, Scales};
    use crate::store::MediaRows;

    #[test]
    fn rows_with_the_same_numbers_are_common_only_if_their_pictures_are() {
        let of = |number| [MediaRows { from: 1, len: 2, part: 0, hash: [number; 32] }].into_iter().collect::<Marks>();
        let (tokens, spans, scales, marks) = ([5, -7, -9, 6], Spans::default(), Scales::default(), of(1));
        let text = Prefix { tokens: &tokens, spans: &spans, marks: &marks, scales: &scales };
        assert_eq!(text.common(&tokens, &of(1)), 4);
        assert_eq!(text.common(&tokens, &of(2)), 1);
        assert_eq!(text.common(&tokens[..1], &Marks::default()), 1);
        assert_eq!(text.common(&[5, -7, 6], &of(1)), 2);
    }
}
