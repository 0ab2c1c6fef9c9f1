//! A sequence that is restored only partly: where its next rows come from, and where they belong.

use super::row_piece::LaneOfRow;
use crate::raw;

/// A sequence whose cells are assigned, and whose rows are only partly written.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) seq: raw::llama_seq_id,
    /// Where the rows belong, in the order of the stream.
    pub(super) places: Vec<raw::shim_place>,
    pub(super) lanes: Vec<LaneOfRow>,
    /// Bytes of a token in all lanes.
    pub(super) row: usize,
    /// For each piece, its tokens and how many of them are wanted.
    pub(super) pieces: Vec<(usize, usize)>,
    /// The lane, the piece, and the bytes of the piece's lane that are already written.
    pub(super) from: (usize, usize, usize),
    /// The place, and its bytes that are already written.
    pub(super) to: (usize, u64),
    pub(super) buffer: Vec<u8>,
}
