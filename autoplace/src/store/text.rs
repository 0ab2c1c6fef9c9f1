//! A text as the store compares it: its tokens, and the pictures and sounds whose rows are among them.
//!
//! The token of a row has 31 bits of its picture's hash, so that lists of tokens can be compared. In the store, two
//! rows are equal only if the whole hashes and the projectors are equal too.

use std::ops::Range;

use llama_sys::Token;

use super::found::Id;

/// Rows of a picture or a sound among the tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MediaRows {
    /// Index of the first row among the text's tokens.
    pub(crate) from: usize,
    /// Number of rows.
    pub(crate) len: usize,
    /// Index among the parts that the projector makes of a picture or a sound.
    pub(crate) part: u32,
    /// The SHA-256 of the pixels or samples.
    pub(crate) hash: [u8; 32],
}

/// The tokens of a text, or of its beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) tokens: &'a [Token],
    /// The rows in the order of the text. Rows after the end of the tokens do not count.
    pub(crate) media: &'a [MediaRows],
    /// Identifies the projector that makes rows of the pictures and sounds.
    pub(crate) projector: Id,
}

/// Rows of a picture or a sound among the tokens of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PieceMedia {
    /// Index of the first of these rows among the piece's tokens.
    pub(super) offset: u32,
    /// Index of that first row among all rows of its part.
    pub(super) row: u32,
    pub(super) part: u32,
    pub(super) projector: Id,
    pub(super) hash: [u8; 32],
}

impl<'a> Text<'a> {
    /// A text without pictures and sounds.
    pub(crate) fn plain(tokens: &'a [Token]) -> Self {
        Self { tokens, media: &[], projector: 0 }
    }

    /// The text's first `tokens` tokens.
    pub(crate) fn first(self, tokens: usize) -> Self {
        Self { tokens: &self.tokens[..tokens], ..self }
    }

    /// Whether `media` has the picture or sound of each row. The token of a row is negative.
    pub(crate) fn is_known(self) -> bool {
        let mut media = self.media.iter().peekable();
        self.tokens.iter().enumerate().filter(|(_, token)| **token < 0).all(|(at, _)| {
            while media.next_if(|rows| rows.from + rows.len <= at).is_some() {}
            media.peek().is_some_and(|rows| rows.from <= at)
        })
    }

    /// The rows among these tokens, in the form that a piece of these tokens needs.
    pub(super) fn media_of(self, tokens: Range<usize>) -> Box<[PieceMedia]> {
        let among = self.media.iter().filter(|rows| rows.from < tokens.end && tokens.start < rows.from + rows.len);
        let of_piece = |rows: &MediaRows| {
            let first = rows.from.max(tokens.start);
            PieceMedia {
                offset: (first - tokens.start) as u32,
                row: (first - rows.from) as u32,
                part: rows.part,
                projector: self.projector,
                hash: rows.hash,
            }
        };
        among.map(of_piece).collect()
    }

    /// Number of tokens of a piece, from its beginning on, that are equal to the text's tokens from `at` on.
    pub(super) fn common(self, at: usize, tokens: &[Token], media: &[PieceMedia]) -> usize {
        let common = tokens.iter().zip(&self.tokens[at..]).take_while(|(a, b)| a == b).count();
        // If tokens of rows are equal, the rows most probably belong to the same picture. The whole hashes decide.
        let differs = |piece: &&PieceMedia| {
            let index = at + piece.offset as usize;
            let rows = self.media.iter().find(|rows| (rows.from..rows.from + rows.len).contains(&index));
            rows.is_none_or(|rows| {
                let ours = (index - rows.from, rows.part, self.projector, &rows.hash);
                ours != (piece.row as usize, piece.part, piece.projector, &piece.hash)
            })
        };
        let among = media.iter().take_while(|piece| (piece.offset as usize) < common);
        among.into_iter().find(differs).map_or(common, |piece| piece.offset as usize)
    }
}

/// Whether `media` describes exactly the rows among a piece's tokens. The tokens of rows are negative; no other tokens
/// are.
pub(super) fn fits(tokens: &[Token], media: &[PieceMedia]) -> bool {
    let begins = |at: usize| media.iter().any(|rows| rows.offset as usize == at);
    let is_row = |at: usize| tokens.get(at).is_some_and(|token| *token < 0);
    media.is_sorted_by(|a, b| a.offset < b.offset)
        && media.iter().all(|rows| is_row(rows.offset as usize))
        && (0..tokens.len()).all(|at| !is_row(at) || begins(at) || (at > 0 && is_row(at - 1)))
}

#[cfg(test)]
mod tests {
    use super::{MediaRows, Text, fits};

    fn rows(from: usize, len: usize, picture: u8) -> MediaRows {
        MediaRows { from, len, part: 0, hash: [picture; 32] }
    }

    #[test]
    fn two_pictures_with_equal_tokens_and_other_hashes_are_two_beginnings() {
        let tokens = [1, 2, -7, -8, -9, 3];
        let [one, other] = [[rows(2, 3, 1)], [rows(2, 3, 2)]];
        let text = |media| Text { tokens: &tokens, media, projector: 5 };
        let piece = text(&one).media_of(0..6);
        assert_eq!(text(&one).common(0, &tokens, &piece), 6);
        assert_eq!(text(&other).common(0, &tokens, &piece), 2);
        assert_eq!(Text { projector: 6, ..text(&one) }.common(0, &tokens, &piece), 2);
        assert_eq!(Text::plain(&tokens).common(0, &tokens, &piece), 2);
        // A piece that begins within a picture has the index of the piece's first row in the picture.
        let within = text(&one).media_of(3..6);
        assert_eq!(text(&one).common(3, &tokens[3..], &within), 3);
        let shifted = [rows(1, 4, 1)];
        assert_eq!(text(&shifted).common(3, &tokens[3..], &within), 0);
    }

    #[test]
    fn a_row_whose_picture_nobody_knows_is_noticed() {
        let tokens = [1, -7, -8, 2, -9];
        let [first, second] = [rows(1, 2, 1), rows(4, 1, 2)];
        let both = [first, second];
        let text = |media| Text { tokens: &tokens, media, projector: 0 };
        assert!(text(&both).is_known() && text(&both[..1]).first(4).is_known());
        assert!(!text(&both[..1]).is_known() && !text(&both[1..]).is_known() && !Text::plain(&tokens).is_known());
        assert!(Text::plain(&[1, 2, 3]).is_known());
    }

    #[test]
    fn the_pictures_of_a_piece_are_its_negative_tokens() {
        let tokens = [1, -7, -8, 2, -9];
        let media = [rows(1, 2, 1), rows(4, 1, 2)];
        let of = |media| Text { tokens: &tokens, media, projector: 0 }.media_of(0..5);
        assert!(fits(&tokens, &of(&media)) && fits(&[1, 2], &[]));
        assert!(!fits(&tokens, &of(&media[..1])) && !fits(&tokens, &of(&media[1..])) && !fits(&[1, 2], &of(&media)));
        let mut twice = of(&media).to_vec();
        twice.push(twice[0].clone());
        assert!(!fits(&tokens, &twice));
    }
}
