//! Writes [rows](super::StateRows) back into a sequence, if needed in parts between computations of other sequences.
//!
//! llama.cpp restores a whole sequence in one call. The shim lets this call assign the cells and read everything except
//! the rows, and notes where in the tensors the rows belong. Cells of full attention stay where they are as long as
//! they belong to a sequence, so the rows can be written there later. Windows and recurrent states have no such places:
//! another sequence may take a cell that has left its window, and recurrent states are moved. So the rest is always
//! written by the first call. If the rows belong to too many places, the first call writes them as well.

use super::row_piece::{LaneOfRow, RowPiece};
use super::state_rows::RowShape;
use super::stream::{Part, refused};
use super::unfinished::Unfinished;
use super::{Context, Position, SeqId};
use crate::raw;
use crate::safe::call::{self, Error};

/// Rows are gathered in a buffer of this size before a tensor gets them.
const BUFFER: usize = 1 << 20;

impl Unfinished {
    /// The next bytes of the rows, at most `most` of them, all from one lane of one piece. Empty if all rows are
    /// written.
    fn next<'a>(&mut self, pieces: &[RowPiece<'a>], most: usize) -> &'a [u8] {
        while let Some(&lane) = self.lanes.get(self.from.0) {
            let (_, at, written) = self.from;
            let Some(piece) = pieces.get(at) else {
                self.from = (self.from.0 + 1, 0, 0);
                continue;
            };
            let left = lane.of(*piece).get(written..).unwrap_or_default();
            if left.is_empty() {
                self.from = (self.from.0, at + 1, 0);
                continue;
            }
            let now = &left[..left.len().min(most)];
            self.from.2 += now.len();
            return now;
        }
        &[]
    }

    /// The next place, and the number of its bytes that are already written; `None` if all places are written.
    fn place(&mut self) -> Option<(raw::shim_place, u64)> {
        loop {
            let (at, written) = self.to;
            let place = *self.places.get(at)?;
            if written < place.size {
                return Some((place, written));
            }
            self.to = (at + 1, 0);
        }
    }
}

impl Context {
    /// Puts rows and a rest into a sequence. The sequence then contains exactly the wanted tokens of the pieces, and
    /// its first token is at position 0. After a failure the sequence is empty, and no other sequence is changed.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the pieces do not fit the shape, or the context refuses them. Otherwise the errors of
    /// [`save_state`](Self::save_state).
    pub fn write_rows(
        &mut self,
        seq: SeqId,
        shape: &RowShape,
        pieces: &[RowPiece<'_>],
        rest: &[u8],
    ) -> Result<(), Error> {
        self.begin_rows(seq, 0, shape, pieces, rest)?;
        self.write_more_rows(seq, pieces, usize::MAX).map(drop)
    }

    /// Begins to put rows into a sequence, whose first token is then at position `first`. The sequence gets its cells
    /// and its rest, and [`write_more_rows`](Self::write_more_rows) writes the rows. Until all rows are written, other
    /// sequences can be computed, and this sequence can only be removed. After a failure the sequence is empty, and no
    /// other sequence is changed.
    ///
    /// If the free cells are scattered and values are transposed (without flash attention), the rows may belong to more
    /// than 65,536 places, and to more than four in each lane. No list of so many places is kept: all rows are written
    /// at once here.
    ///
    /// # Errors
    ///
    /// The errors of [`write_rows`](Self::write_rows).
    pub fn begin_rows(
        &mut self,
        seq: SeqId,
        first: Position,
        shape: &RowShape,
        pieces: &[RowPiece<'_>],
        rest: &[u8],
    ) -> Result<(), Error> {
        self.leave_unfinished(seq);
        self.check_state(seq)?;
        let begun = self.assign_cells(seq, first, shape, pieces, rest);
        match begun {
            Ok(unfinished) => self.unfinished.push(unfinished),
            Err(error) => {
                self.kv_seq_remove(seq, 0..Position::MAX)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes the next rows of a sequence that was [begun](Self::begin_rows) with these pieces: about `bytes` bytes.
    /// Returns whether more rows are left. After a failure the sequence is empty.
    ///
    /// # Errors
    ///
    /// [`Error::State`] for a sequence that was not begun, and for other pieces; [`Error::Call`].
    pub fn write_more_rows(&mut self, seq: SeqId, pieces: &[RowPiece<'_>], bytes: usize) -> Result<bool, Error> {
        let at = self.unfinished.iter().position(|unfinished| unfinished.seq == seq);
        let at = at.ok_or_else(|| refused("no rows of this sequence are left to be written"))?;
        let mut unfinished = self.unfinished.swap_remove(at);
        match self.write_part_of(&mut unfinished, pieces, bytes) {
            Ok(is_left) => {
                if is_left {
                    self.unfinished.push(unfinished);
                }
                Ok(is_left)
            }
            Err(error) => {
                self.kv_seq_remove(seq, 0..Position::MAX)?;
                Err(error)
            }
        }
    }

    fn write_part_of(
        &mut self,
        unfinished: &mut Unfinished,
        pieces: &[RowPiece<'_>],
        bytes: usize,
    ) -> Result<bool, Error> {
        check_pieces(unfinished.row, pieces)?;
        if divisions(pieces) != unfinished.pieces {
            return Err(refused("the pieces are not those with which it was begun"));
        }
        let mut left = bytes;
        while let Some((place, written)) = unfinished.place() {
            if left == 0 {
                return Ok(true);
            }
            let room = usize::try_from(place.size - written).unwrap_or(usize::MAX).min(BUFFER).min(left.max(1));
            let mut buffer = std::mem::take(&mut unfinished.buffer);
            buffer.clear();
            while buffer.len() < room {
                let next = unfinished.next(pieces, room - buffer.len());
                if next.is_empty() {
                    return Err(refused("the pieces have too few rows"));
                }
                buffer.extend_from_slice(next);
            }
            let (ctx, data, size) = (self.as_ptr(), buffer.as_ptr().cast(), buffer.len());
            // SAFETY: the context lives and is borrowed mutably. The place is one of its memory's, and the cells are
            // still this sequence's, because everything that removes them also drops `unfinished`. `data` has `size`
            // bytes.
            let done = call::checked(|error| unsafe {
                raw::shim_place_write(ctx, &raw const place, written, data, size, error)
            });
            done.map_err(|failure| Error::Call { what: "restoring the state", failure })?;
            unfinished.to.1 += size as u64;
            left = left.saturating_sub(size);
            unfinished.buffer = buffer;
        }
        Ok(false)
    }

    fn assign_cells(
        &mut self,
        seq: SeqId,
        first: Position,
        shape: &RowShape,
        pieces: &[RowPiece<'_>],
        rest: &[u8],
    ) -> Result<Unfinished, Error> {
        let row = shape.row_bytes();
        let tokens = check_pieces(row, pieces)?;
        let end = match last_position(shape, pieces) {
            Some(last) => last.saturating_add(1),
            None => Position::try_from(tokens)
                .ok()
                .and_then(|tokens| tokens.checked_add(first))
                .ok_or_else(|| refused(format!("{tokens} tokens are too many")))?,
        };
        let streams = if self.kv_unified() { 1 } else { self.n_seq_max() };
        let (parts, lanes) = assemble(shape, streams, pieces, (first, tokens), rest, false);
        let rows: usize = lanes.iter().map(|lane| lane.unit * tokens).sum();
        let places = match self.read_cells(seq, &parts, (rows, lanes.len()), rest.len())? {
            Some(places) if places.iter().map(|place| place.size).sum::<u64>() == rows as u64 => places,
            Some(_) => return Err(refused("llama.cpp expects another number of rows")),
            None => {
                self.kv_seq_remove(seq, 0..Position::MAX)?;
                let (parts, _) = assemble(shape, streams, pieces, (first, tokens), rest, true);
                self.read_parts(seq, false, &parts)?;
                Vec::new()
            }
        };
        let held = self.kv_seq_end(seq)?.unwrap_or(0);
        if held != end {
            return Err(refused(format!("it ends at {end}, and the restored sequence at {held}")));
        }
        let pieces = divisions(pieces);
        Ok(Unfinished { seq, places, lanes, row, pieces, from: (0, 0, 0), to: (0, 0), buffer: Vec::new() })
    }

    /// Forgets that rows of a sequence are left to be written, because its cells are about to be removed.
    pub(super) fn leave_unfinished(&mut self, seq: SeqId) {
        self.unfinished.retain(|unfinished| unfinished.seq != seq);
    }

    /// Refuses a sequence of which rows are left to be written.
    pub(super) fn check_finished(&self, seq: SeqId) -> Result<(), Error> {
        match self.unfinished.iter().any(|unfinished| unfinished.seq == seq) {
            true => Err(refused(format!("sequence {seq} is not completely restored yet"))),
            false => Ok(()),
        }
    }
}

/// Checks that pieces have as many bytes as their tokens need. Returns the number of wanted tokens.
fn check_pieces(row: usize, pieces: &[RowPiece<'_>]) -> Result<usize, Error> {
    let is_wrong = |piece: &&RowPiece<'_>| piece.data.len() != row * piece.tokens || piece.wanted > piece.tokens;
    if let Some(RowPiece { data, tokens, wanted }) = pieces.iter().find(is_wrong) {
        let have = data.len();
        return Err(refused(format!("a piece has {have} bytes for {wanted} of {tokens} tokens of {row} bytes")));
    }
    Ok(pieces.iter().map(|piece| piece.wanted).sum())
}

/// For each piece, its tokens and how many of them are wanted.
fn divisions(pieces: &[RowPiece<'_>]) -> Vec<(usize, usize)> {
    pieces.iter().map(|piece| (piece.tokens, piece.wanted)).collect()
}

/// The stream of a sequence that contains the wanted tokens of the pieces, at the positions from `first` on, with or
/// without its rows. Also returns the lanes of the rows, as [`Unfinished`] has them. `streams` is the number of streams
/// in each of the context's caches; the sequence lies in only one of them.
fn assemble<'a>(
    shape: &RowShape,
    streams: u32,
    pieces: &'a [RowPiece<'a>],
    (first, tokens): (Position, usize),
    rest: &'a [u8],
    has_rows: bool,
) -> (Vec<Part<'a>>, Vec<LaneOfRow>) {
    let (mut parts, mut lanes) = (Vec::new(), Vec::new());
    // In the row of one token, the offset of the current lane.
    let mut before = 0;
    for section in &shape.sections {
        let mut head = streams.to_le_bytes().to_vec();
        let count = u32::try_from(tokens).unwrap_or(u32::MAX);
        head.extend(count.to_le_bytes());
        if tokens > 0 {
            let of_cells = LaneOfRow { before, unit: section.head };
            let cells = pieces.iter().flat_map(|piece| of_cells.of(*piece).chunks(section.head.max(1)));
            let mut cells = cells.fuse();
            for position in (first..).take(tokens) {
                match cells.next() {
                    Some(cell) => head.extend(cell),
                    None => {
                        head.extend(position.to_le_bytes());
                        head.extend(1u32.to_le_bytes());
                    }
                }
                // This is the sequence's number, which llama.cpp does not read.
                head.extend(0u32.to_le_bytes());
            }
            head.extend(section.fixed);
            before += section.head;
            for lane in &section.lanes {
                head.extend(&lane.header);
                let of_lane = LaneOfRow { before, unit: lane.unit };
                if has_rows {
                    parts.push(Part::Made(std::mem::take(&mut head)));
                    parts.push(Part::Lane(pieces, of_lane));
                }
                lanes.push(of_lane);
                before += lane.unit;
            }
        }
        // The other streams of the cache are empty.
        head.extend((1..streams).flat_map(|_| 0u32.to_le_bytes()));
        parts.push(Part::Made(head));
    }
    parts.push(Part::Given(rest));
    parts.retain(|part| part.len() > 0);
    (parts, lanes)
}

/// The highest position of the wanted rows; `None` if the rows contain no positions.
fn last_position(shape: &RowShape, pieces: &[RowPiece<'_>]) -> Option<Position> {
    let head = shape.sections.first()?.head;
    let of_cells = LaneOfRow { before: 0, unit: head };
    let cells = pieces.iter().flat_map(|piece| of_cells.of(*piece).chunks(head.max(1)));
    let position = |cell: &[u8]| cell.first_chunk().map(|bytes| Position::from_le_bytes(*bytes));
    cells.filter_map(position).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safe::context::state_rows::{Lane, Section};

    #[test]
    fn a_stream_of_many_lanes_and_pieces_has_few_parts() {
        let lane = |header: &[u8]| Lane { header: header.to_vec(), unit: 2 };
        let lanes = std::iter::once(lane(&[7; 12])).chain((1..1000).map(|_| lane(&[]))).collect();
        let shape = RowShape::of(vec![Section { head: 0, fixed: [0; 16], lanes }]);
        let data = vec![1; 64 * 2000];
        let pieces = vec![RowPiece { data: &data, tokens: 64, wanted: 64 }; 300];
        let tokens = 64 * pieces.len();
        let (parts, lanes) = assemble(&shape, 1, &pieces, (0, tokens), &[], true);
        assert_eq!(lanes.len(), 1000);
        assert!(parts.len() < 1010, "{}", parts.len());
        let bytes: usize = parts.iter().map(Part::len).sum();
        assert_eq!(bytes, 4 + 4 + 12 * tokens + 16 + 12 + 2000 * tokens);
    }
}
