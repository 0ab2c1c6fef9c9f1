//! The rows of some tokens, lane by lane.

/// Rows of consecutive tokens, as [`Context::read_rows`](super::Context::read_rows) returns them.
#[derive(Debug, Clone, Copy)]
pub struct RowPiece<'a> {
    /// The rows.
    pub data: &'a [u8],
    /// Number of tokens in the piece.
    pub tokens: usize,
    /// How many tokens at the beginning of the piece are wanted.
    pub wanted: usize,
}

/// A lane in the row of a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneOfRow {
    /// Bytes that a token has in the lanes before this one.
    pub(super) before: usize,
    /// Bytes that a token has in this lane.
    pub(super) unit: usize,
}

impl LaneOfRow {
    /// The wanted rows of this lane of a piece.
    pub(super) fn of<'a>(self, piece: RowPiece<'a>) -> &'a [u8] {
        let from = self.before * piece.tokens;
        &piece.data[from..from + self.unit * piece.wanted]
    }
}
