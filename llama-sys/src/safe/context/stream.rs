//! The stream with which llama.cpp writes and reads the state of a sequence: the callbacks for the shim.

use std::ffi::c_void;

use super::row_piece::{LaneOfRow, RowPiece};
use super::{Context, SeqId};
use crate::raw;
use crate::safe::call::{self, Error};

/// Maximum number of places in a list, which then has 2 MiB. Usually each layer has two places. But if values are
/// transposed, each dimension of each run of cells has a place of its own: if the cells of a text of 4,000 tokens lie
/// between the cells of other texts, there are up to a hundred million places.
pub(super) const MAX_PLACES: usize = 1 << 16;

/// A list may have more than [`MAX_PLACES`] places if no lane has more than this number. So a large model with
/// transposed values (80 layers of 1,024 dimensions) has a list, too, as long as its cells lie in few runs.
const PLACES_OF_A_LANE: usize = 4;

/// Maximum number of places in a list for this many lanes.
fn most_places(lanes: usize) -> usize {
    MAX_PLACES.max(PLACES_OF_A_LANE * lanes)
}

/// A part of a stream from which llama.cpp restores a sequence.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Made(Vec<u8>),
    Given(&'a [u8]),
    /// The rows of all pieces in one lane. They are one part, because without flash attention there are tens of
    /// thousands of lanes, and a text has hundreds of pieces.
    Lane(&'a [RowPiece<'a>], LaneOfRow),
}

impl Part<'_> {
    /// The bytes that lie together at this place of the part; `None` after its last bytes.
    fn slice(&self, at: usize) -> Option<&[u8]> {
        match self {
            Self::Made(bytes) => (at == 0).then_some(bytes),
            Self::Given(bytes) => (at == 0).then_some(bytes),
            Self::Lane(pieces, lane) => pieces.get(at).map(|piece| lane.of(*piece)),
        }
    }

    pub(super) fn len(&self) -> usize {
        (0..).map_while(|at| self.slice(at)).map(<[u8]>::len).sum()
    }
}

/// The parts of a stream that llama.cpp has not read yet.
struct Left<'a> {
    parts: &'a [Part<'a>],
    /// The slice of the first part that llama.cpp reads next, and the number of its bytes that are already read.
    at: (usize, usize),
    /// Where the bytes belong that are not among the parts.
    places: Vec<raw::shim_place>,
    most_places: usize,
    /// Whether there are more places than a list may have.
    are_too_many: bool,
}

impl<'a> Left<'a> {
    fn new(parts: &'a [Part<'a>], most_places: usize) -> Self {
        Self { parts, at: (0, 0), places: Vec::new(), most_places, are_too_many: false }
    }
}

impl Context {
    /// Reads a stream into a sequence. The context must have a memory, and the sequence must exist. If this fails, the
    /// sequence may contain a part of the stream.
    pub(super) fn read_parts(&mut self, seq: SeqId, partial: bool, parts: &[Part<'_>]) -> Result<(), Error> {
        let size = parts.iter().map(Part::len).sum();
        let ctx = self.as_ptr();
        let mut left = Left::new(parts, 0);
        let user = (&raw mut left).cast();
        // SAFETY: the context lives and is borrowed mutably; the caller has checked its memory and the sequence. `take`
        // is called only during the call, with parts that outlive it. Every length that llama.cpp reads is compared
        // with the bytes that are left (native/shim.cpp, stream_reader).
        let read =
            call::checked(|error| unsafe { raw::shim_state_read(ctx, seq, partial, size, Some(take), user, error) });
        match read {
            Ok(read) if read == size => Ok(()),
            Ok(read) => Err(refused(format!("llama.cpp read only {read} of its {size} bytes"))),
            Err(failure) => Err(refused(failure.to_string())),
        }
    }

    /// Reads a stream whose `rows` bytes of rows, in this number of lanes, are not among the parts. The last `rest`
    /// bytes of the stream have no rows. Returns where the rows belong, in the order of the stream. `None` if there are
    /// more than [`most_places`]: the sequence may then contain a part of the stream. The conditions are those of
    /// [`read_parts`](Self::read_parts).
    pub(super) fn read_cells(
        &mut self,
        seq: SeqId,
        parts: &[Part<'_>],
        (rows, lanes): (usize, usize),
        rest: usize,
    ) -> Result<Option<Vec<raw::shim_place>>, Error> {
        let size = parts.iter().map(Part::len).sum::<usize>() + rows;
        let ctx = self.as_ptr();
        let mut left = Left::new(parts, most_places(lanes));
        let user = (&raw mut left).cast();
        // SAFETY: as in `read_parts`; `note_place` gets the same `user`.
        let read = call::checked(|error| unsafe {
            raw::shim_state_read_cells(ctx, seq, size, size - rest, Some(take), Some(note_place), user, error)
        });
        match read {
            Ok(read) if read == size => Ok(Some(left.places)),
            Err(_) if left.are_too_many => Ok(None),
            Ok(read) => Err(refused(format!("llama.cpp read only {read} of its {size} bytes"))),
            Err(failure) => Err(refused(failure.to_string())),
        }
    }
}

pub(super) fn refused(reason: impl Into<String>) -> Error {
    Error::State { reason: reason.into() }
}

/// Appends bytes that llama.cpp writes to the `Vec<u8>` that `user` points to.
pub(super) unsafe extern "C" fn put(user: *mut c_void, data: *const c_void, size: usize) -> bool {
    // SAFETY: together with this function, the shim gets a pointer to a `Vec<u8>`, which nobody else uses during the
    // call.
    let to = unsafe { &mut *user.cast::<Vec<u8>>() };
    // SAFETY: `data` has `size` bytes (native/shim.cpp, stream_writer and range_writer).
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    // If there is no memory, this must not panic, because a panic must not unwind into C++.
    let has_room = to.try_reserve(size).is_ok();
    if has_room {
        to.extend_from_slice(data);
    }
    has_room
}

/// Copies the next bytes of the remaining parts to llama.cpp's buffer.
unsafe extern "C" fn take(user: *mut c_void, data: *mut c_void, size: usize) -> bool {
    // SAFETY: `read_parts` passes the parts that are left, which nobody else uses meanwhile.
    let left = unsafe { &mut *user.cast::<Left<'_>>() };
    // SAFETY: `data` has `size` bytes, set to zero before the call (native/shim.cpp, stream_reader).
    let mut data = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), size) };
    while !data.is_empty() {
        let Some((first, others)) = left.parts.split_first() else { return false };
        let (slice, read) = left.at;
        let Some(bytes) = first.slice(slice) else {
            (left.parts, left.at) = (others, (0, 0));
            continue;
        };
        let bytes = &bytes[read..];
        let n = bytes.len().min(data.len());
        let (now, later) = data.split_at_mut(n);
        now.copy_from_slice(&bytes[..n]);
        data = later;
        left.at = if n == bytes.len() { (slice + 1, 0) } else { (slice, read + n) };
    }
    true
}

/// Appends a place to the list of the stream that `user` points to.
unsafe extern "C" fn note_place(user: *mut c_void, place: *const raw::shim_place) -> bool {
    // SAFETY: `read_cells` passes the parts that are left, which nobody else uses meanwhile.
    let left = unsafe { &mut *user.cast::<Left<'_>>() };
    // If there is no memory, this must not panic, because a panic must not unwind into C++.
    left.are_too_many = left.places.len() == left.most_places || left.places.try_reserve(1).is_err();
    if !left.are_too_many {
        // SAFETY: the place lives during the call (native/shim.cpp, stream_reader).
        left.places.push(unsafe { *place });
    }
    !left.are_too_many
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_at_least_some_places_of_each_lane() {
        assert_eq!(most_places(60), MAX_PLACES);
        // 80 layers, with keys in rows and 1,024 dimensions of transposed values.
        let lanes = 80 * 1025;
        assert!(most_places(lanes) > lanes);
    }
}
