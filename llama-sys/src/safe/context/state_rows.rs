//! The state of a sequence, divided into the rows that full attention keeps for each token, and the rest.
//!
//! llama.cpp writes the state of a whole sequence. For each token and layer, full attention keeps a row of keys and a
//! row of values. A row depends only on its token and on earlier tokens. So the rows of a sequence's first tokens are
//! the state of just these tokens, and rows of several ranges can be joined. Windows and recurrent states cannot be
//! divided. In the stream they come after the rows, as the *rest*. A rest belongs to exactly the tokens that were in
//! the sequence.
//!
//! The stream is read as llama-kv-cache.cpp writes it (`state_write`). If the reader does not understand a stream up to
//! its last byte, the result is [`None`], and the state is not divided.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use super::stream::{MAX_PLACES, put, refused};
use super::{Context, Position, SeqId};
use crate::raw;
use crate::safe::call::{self, Error};

/// Bytes of `llama_kv_cell_ext`, which some models keep for each token.
const EXT: usize = 12;

/// Bytes of a cell in the stream: its position, and its number of sequences. A `llama_kv_cell_ext` is not counted.
const CELL: usize = 8;

/// Maximum number of rows of a sequence, in a cache with a `llama_kv_cell_ext` in each cell. A stream with a higher
/// number of rows has another layout.
const MAX_CELLS: usize = 1 << 27;

/// Rows are read through a buffer of this size, if their ranges have at least `LONG_RANGE` bytes. For shorter ranges,
/// one pass of llama.cpp over all cells takes less time than a call for each range.
const BUFFER: usize = 1 << 20;
const LONG_RANGE: usize = 4096;

/// In the bytes of a shape, this byte marks a cache whose rows contain a position and a `llama_kv_cell_ext`.
const WITH_POSITIONS: u8 = 2;

/// Limits for a shape that is read from bytes: the bytes of a token in one lane, and the number of equal lanes.
/// [`RowShape::from_bytes`] refuses a shape that exceeds them.
const MAX_LANE_BYTES: usize = 1 << 24;
const MAX_LANES: u32 = 1 << 20;

/// How the rows of a context's states are laid out. All contexts of a model with the same cache types have the same
/// shape, even if their sizes and placements differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowShape {
    pub(super) sections: Vec<Section>,
    /// Whether the state has a part that cannot be divided.
    has_rest: bool,
}

/// One cache in the stream. Models with an indexer have two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    /// For each token, the number of bytes before its keys. These bytes are the token's position and its
    /// `llama_kv_cell_ext`, if the cache keeps one, because with M-RoPE all rows of a picture have the same position.
    /// In all other caches the number is 0.
    pub(super) head: usize,
    /// The fixed fields before the layers: whether values are transposed, the number of layers, and the rotations.
    pub(super) fixed: [u8; 16],
    pub(super) lanes: Vec<Lane>,
}

/// Rows of equal size that are stored together: the rows of a layer's keys, or of a layer's values. For transposed
/// values, each dimension has its own lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lane {
    /// The bytes in the stream before the lane's rows.
    pub(super) header: Vec<u8>,
    /// Bytes that each token has in this lane.
    pub(super) unit: usize,
}

impl RowShape {
    #[cfg(test)]
    pub(super) fn of(sections: Vec<Section>) -> Self {
        Self { sections, has_rest: false }
    }

    /// Bytes that one token has in all lanes together.
    pub fn row_bytes(&self) -> usize {
        self.units().sum()
    }

    /// Whether a state has a part that belongs to all of its tokens together.
    pub fn has_rest(&self) -> bool {
        self.has_rest
    }

    /// The shape as bytes, which can be stored together with the rows.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.has_rest)];
        for Section { head, fixed, lanes } in &self.sections {
            bytes.push(if *head > 0 { WITH_POSITIONS } else { 0 });
            bytes.extend(fixed);
            // For transposed values each dimension has its own lane, and these lanes are equal.
            for alike in lanes.chunk_by(|a, b| a.unit == b.unit && b.header.is_empty()) {
                let Some(Lane { header, unit }) = alike.first() else { continue };
                bytes.push(header.len() as u8);
                bytes.extend(header);
                bytes.extend((*unit as u32).to_le_bytes());
                bytes.extend((alike.len() as u32).to_le_bytes());
            }
            bytes.push(u8::MAX);
        }
        bytes
    }

    /// The shape that these bytes describe; `None` if they do not describe a shape.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields { left: bytes, at: 0 };
        let has_rest = fields.flag()?;
        let mut sections = Vec::new();
        while !fields.left.is_empty() {
            let head = match fields.take(1)?[0] {
                0 => 0,
                WITH_POSITIONS => CELL + EXT,
                _ => return None,
            };
            let fixed = fields.take(16)?.try_into().ok()?;
            let mut lanes = Vec::new();
            loop {
                let length = fields.take(1)?[0];
                if length == u8::MAX {
                    break;
                }
                let header = fields.take(usize::from(length))?.to_vec();
                let (unit, count) = (fields.u32()? as usize, fields.u32()?);
                if unit > MAX_LANE_BYTES || count > MAX_LANES {
                    return None;
                }
                let others = (1..count).map(|_| Lane { header: Vec::new(), unit });
                lanes.extend(std::iter::once(Lane { header, unit }).chain(others));
            }
            sections.push(Section { head, fixed, lanes });
        }
        Some(Self { sections, has_rest })
    }

    /// For each lane, the bytes of one token. The lanes are in the order of the stream.
    fn units(&self) -> impl Iterator<Item = usize> + '_ {
        let of = |section: &Section| (section.head, section.lanes.iter().map(|lane| lane.unit).collect::<Vec<_>>());
        self.sections.iter().map(of).flat_map(|(head, lanes)| std::iter::once(head).chain(lanes))
    }
}

/// The places of a sequence's rows in the stream of its state.
#[derive(Debug, Clone)]
pub struct StateRows {
    shape: RowShape,
    /// For each lane, in the order of [`RowShape::units`]: the offset of its first row in the stream, and the bytes
    /// from one row to the next.
    lanes: Vec<(u64, u64)>,
    /// For each token, the number of its row. The tokens are in the order of their positions.
    cells: Vec<u32>,
    /// The position of the first token.
    first: Position,
    /// The place of the rest in the stream.
    rest: Range<u64>,
    /// The serial number of the context that has the rows, and the places of the rows, each with its offset in the
    /// stream. The list is `None` if there are more than [`MAX_PLACES`] places. llama.cpp then goes through the whole
    /// stream for each part that is read.
    context: u64,
    places: Option<Arc<Vec<(u64, Place)>>>,
}

/// A range of a tensor of a context.
#[derive(Debug, Clone, Copy)]
struct Place(raw::shim_place);

// SAFETY: the pointer to the tensor is used only together with the context of the tensor, which is borrowed mutably.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// A state as llama.cpp writes it without the rows: the bytes between the rows, and the places of the rows.
#[derive(Debug, Default)]
struct Cells {
    between: Vec<u8>,
    places: Vec<(u64, Place)>,
    /// Whether there were more places than a list may have. The list is then empty.
    are_too_many: bool,
    /// Bytes of the stream so far.
    at: u64,
}

impl Cells {
    fn note(&mut self, place: Place) {
        let from = self.at;
        self.at += place.0.size;
        if self.are_too_many {
            return;
        }
        // This is called from C++, so a lack of memory must not panic. Without a list, reading only takes longer.
        self.are_too_many = self.places.len() == MAX_PLACES || self.places.try_reserve(1).is_err();
        match self.are_too_many {
            true => self.places = Vec::new(),
            false => self.places.push((from, place)),
        }
    }
}

impl StateRows {
    /// The shape of the rows.
    pub fn shape(&self) -> &RowShape {
        &self.shape
    }

    /// Number of tokens in the sequence.
    pub fn tokens(&self) -> usize {
        self.cells.len()
    }

    /// The position of the first token.
    pub fn first(&self) -> Position {
        self.first
    }

    /// Bytes of the part that belongs to all tokens together; 0 for plain attention.
    pub fn rest_bytes(&self) -> usize {
        usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX)
    }

    /// The ranges of the stream with the rows of these cells, lane by lane.
    fn ranges(&self, cells: &[u32]) -> Vec<raw::shim_range> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for &cell in cells {
            match runs.last_mut() {
                Some(run) if run.end == cell => run.end += 1,
                _ => runs.push(cell..cell + 1),
            }
        }
        let mut ranges = Vec::with_capacity(self.lanes.len() * runs.len());
        for (&(first, step), unit) in self.lanes.iter().zip(self.shape.units()).filter(|(_, unit)| *unit > 0) {
            for run in &runs {
                if step == unit as u64 {
                    let size = u64::from(run.end - run.start) * step;
                    ranges.push(raw::shim_range { from: first + u64::from(run.start) * step, size });
                } else {
                    let of_cell =
                        |cell: u32| raw::shim_range { from: first + u64::from(cell) * step, size: unit as u64 };
                    ranges.extend(run.clone().map(of_cell));
                }
            }
        }
        ranges
    }

    /// In `data`, the rows of each lane are in the order of the sorted cells. Returns them in the order of `cells`.
    fn reorder(&self, data: &[u8], cells: &[u32], sorted: &[u32]) -> Vec<u8> {
        let mut ordered = Vec::with_capacity(data.len());
        let mut lane = data;
        for unit in self.shape.units() {
            let (rows, others) = lane.split_at(unit * cells.len());
            lane = others;
            for cell in cells {
                let at = sorted.partition_point(|other| other < cell) * unit;
                ordered.extend_from_slice(&rows[at..at + unit]);
            }
        }
        ordered
    }
}

impl Context {
    /// Finds the rows of a sequence, without reading any. Returns `None` for a state that cannot be divided: it has
    /// another layout, or between the sequence's first and last position a position is missing or occurs twice. With
    /// M-RoPE all rows of a picture have the same position in time; they are told apart by their places in the picture.
    /// Waits for computations in progress.
    ///
    /// # Errors
    ///
    /// The errors of [`save_state`](Self::save_state).
    pub fn rows(&mut self, seq: SeqId) -> Result<Option<StateRows>, Error> {
        self.check_state(seq)?;
        let Some(end) = self.kv_seq_end(seq)? else { return Ok(None) };
        let (Cells { between, places, are_too_many, .. }, total) = self.cells(seq)?;
        let (of_rest, rest) = self.between_rows(seq, true)?;
        // Plain attention has no rest. Then llama.cpp writes an empty partial state; versions before 0.8 write the
        // whole state.
        let has_rest = self.has_partial_state() || (1..total).contains(&rest);
        let (rest, of_rest) = if has_rest { (rest, of_rest) } else { (0, Vec::new()) };
        let Some(between) = between.strip_suffix(&of_rest[..]) else { return Ok(None) };
        let rows = parse(between, total, rest, usize::try_from(end).unwrap_or(0), has_rest);
        let places = (!are_too_many).then(|| Arc::new(places));
        Ok(rows.map(|rows| StateRows { context: self.serial, places, ..rows }))
    }

    /// The rows of these tokens of a sequence: lane by lane, each lane in the order of the tokens. After each change of
    /// the sequence, `rows` must be [found](Self::rows) again.
    ///
    /// # Errors
    ///
    /// The errors of [`save_state`](Self::save_state); [`Error::State`] for tokens that the sequence does not have.
    pub fn read_rows(&mut self, seq: SeqId, rows: &StateRows, tokens: Range<usize>) -> Result<Vec<u8>, Error> {
        let count = tokens.len();
        let cells = rows.cells.get(tokens).ok_or_else(|| refused("it has no such tokens"))?;
        let mut sorted = cells.to_vec();
        sorted.sort_unstable();
        let data = self.read_ranges(seq, &rows.ranges(&sorted), rows.shape.row_bytes() * count)?;
        // The cells have another order than the tokens if the cache was full and continued at its first cell.
        Ok(if cells == sorted { data } else { rows.reorder(&data, cells, &sorted) })
    }

    /// The rows of these tokens in pieces of `piece` tokens; the last piece may have fewer. Each piece begins with the
    /// bytes of `before`. The rows follow, as [`read_rows`](Self::read_rows) returns them. This is faster than a call
    /// of `read_rows` for each piece: llama.cpp goes through the sequence's cells only once, or not at all if the rows
    /// lie together.
    ///
    /// # Errors
    ///
    /// The errors of [`read_rows`](Self::read_rows).
    pub fn read_pieces(
        &mut self,
        seq: SeqId,
        rows: &StateRows,
        tokens: Range<usize>,
        piece: usize,
        before: &[u8],
    ) -> Result<Vec<Vec<u8>>, Error> {
        let cells = rows.cells.get(tokens.clone()).ok_or_else(|| refused("it has no such tokens"))?;
        let mut pieces = Pieces::new(&rows.shape, tokens.len(), piece, before)?;
        if !cells.is_sorted() {
            let data = self.read_rows(seq, rows, tokens)?;
            pieces.add(&data);
            return Ok(pieces.all);
        }
        let bytes = rows.shape.row_bytes() * cells.len();
        if bytes == 0 {
            return Ok(pieces.all);
        }
        let ranges = rows.ranges(cells);
        let are_long = bytes / ranges.len().max(1) >= LONG_RANGE;
        match &rows.places {
            Some(places) if are_long && rows.shape.sections.iter().all(|section| section.head == 0) => {
                self.read_places(seq, (rows.context, places), &ranges, |data| pieces.add(data))?;
            }
            _ => {
                let user = (&raw mut pieces).cast();
                // SAFETY: `add_to_pieces` takes a pointer to these pieces, which outlive the call.
                unsafe { self.write_ranges(seq, &ranges, add_to_pieces, user) }?;
            }
        }
        let read: usize = pieces.all.iter().map(|piece| piece.len() - before.len()).sum();
        if read == bytes {
            return Ok(pieces.all);
        }
        Err(refused(format!("the sequence has changed: {read} of {bytes} bytes")))
    }

    /// The part of a sequence's state that belongs to all of its tokens together; empty for plain attention.
    ///
    /// # Errors
    ///
    /// The errors of [`save_state`](Self::save_state).
    pub fn read_rest(&mut self, seq: SeqId, rows: &StateRows) -> Result<Vec<u8>, Error> {
        self.read_rest_part(seq, rows, 0..rows.rest_bytes())
    }

    /// A part of the bytes that [`read_rest`](Self::read_rest) returns.
    ///
    /// # Errors
    ///
    /// The errors of [`save_state`](Self::save_state); [`Error::State`] for bytes beyond the end of the rest.
    pub fn read_rest_part(&mut self, seq: SeqId, rows: &StateRows, part: Range<usize>) -> Result<Vec<u8>, Error> {
        if part.end > rows.rest_bytes() {
            return Err(refused(format!("its rest has no bytes {part:?}")));
        }
        let (from, size) = (rows.rest.start + part.start as u64, part.len() as u64);
        self.read_ranges(seq, &[raw::shim_range { from, size }], part.len())
    }

    /// Passes these ranges of the stream to `take`, in pieces of at most [`BUFFER`] bytes.
    fn read_places(
        &mut self,
        seq: SeqId,
        (context, places): (u64, &[(u64, Place)]),
        ranges: &[raw::shim_range],
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Error> {
        self.check_state(seq)?;
        if context != self.serial {
            return Err(refused("its rows were found in another context"));
        }
        let changed = || refused("the sequence has changed");
        if self.kv_seq_end(seq)?.is_none() {
            return Err(changed());
        }
        let mut buffer = vec![0_u8; BUFFER];
        for range in ranges {
            let (mut at, end) = (range.from, range.from + range.size);
            while at < end {
                let after = places.partition_point(|(from, _)| *from <= at);
                let (from, Place(place)) = after.checked_sub(1).map(|index| places[index]).ok_or_else(changed)?;
                let offset = at - from;
                let left = place.size.checked_sub(offset).filter(|left| *left > 0).ok_or_else(changed)?;
                let n = left.min(end - at).min(BUFFER as u64) as usize;
                let (ctx, data) = (self.as_ptr(), buffer.as_mut_ptr().cast());
                // SAFETY: this is the context that has the tensor, whose memory it never replaces; it is borrowed
                // mutably. The buffer has room for `n` bytes.
                let read =
                    call::quick(|error| unsafe { raw::shim_place_read(ctx, &raw const place, offset, data, n, error) });
                read.map_err(|failure| Error::Call { what: "saving the state", failure })?;
                if !take(&buffer[..n]) {
                    return Err(changed());
                }
                at += n as u64;
            }
        }
        Ok(())
    }

    /// The bytes of a state that lie between the rows of tensors, the places of the rows, and the length of the whole
    /// state.
    fn cells(&mut self, seq: SeqId) -> Result<(Cells, u64), Error> {
        let mut cells = Cells::default();
        let (ctx, user) = (self.as_ptr(), (&raw mut cells).cast());
        // SAFETY: the context lives, has a memory and is borrowed mutably; the sequence exists. The callbacks are
        // called only during the call, with these cells, which outlive it.
        let total = call::checked(|error| unsafe {
            raw::shim_state_write_cells(ctx, seq, Some(put_between), Some(put_place), user, error)
        });
        let total = total.map_err(|failure| Error::Call { what: "measuring the state", failure })?;
        Ok((cells, total as u64))
    }

    /// The bytes of a state that lie between the rows of tensors, and the length of the whole state.
    fn between_rows(&mut self, seq: SeqId, partial: bool) -> Result<(Vec<u8>, u64), Error> {
        let mut data: Vec<u8> = Vec::new();
        let ctx = self.as_ptr();
        let user = (&raw mut data).cast();
        // SAFETY: the context lives, has a memory and is borrowed mutably; the sequence exists. `put` is called only
        // during the call, with bytes that outlive it. There are no ranges, so the pointer to them is not read.
        let total = call::checked(|error| unsafe {
            raw::shim_state_write_ranges(ctx, seq, partial, std::ptr::null(), 0, Some(put), user, error)
        });
        let total = total.map_err(|failure| Error::Call { what: "measuring the state", failure })?;
        Ok((data, total as u64))
    }

    fn read_ranges(&mut self, seq: SeqId, ranges: &[raw::shim_range], bytes: usize) -> Result<Vec<u8>, Error> {
        self.check_state(seq)?;
        let mut data: Vec<u8> = Vec::new();
        data.try_reserve_exact(bytes)
            .map_err(|error| refused(format!("the host has no {bytes} bytes for it: {error}")))?;
        if bytes == 0 {
            return Ok(data);
        }
        let user = (&raw mut data).cast();
        // SAFETY: `put` takes a pointer to these bytes, which outlive the call.
        unsafe { self.write_ranges(seq, ranges, put, user) }?;
        if data.len() == bytes {
            return Ok(data);
        }
        Err(refused(format!("the sequence has changed: {} of {bytes} bytes", data.len())))
    }

    /// Makes llama.cpp write these ranges of a sequence's stream.
    ///
    /// # Safety
    ///
    /// `user` points to the value that `to` expects. The value must live until the call returns, and nobody else may
    /// use it meanwhile.
    unsafe fn write_ranges(
        &mut self,
        seq: SeqId,
        ranges: &[raw::shim_range],
        to: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> bool,
        user: *mut c_void,
    ) -> Result<(), Error> {
        self.check_state(seq)?;
        let (ctx, first, n) = (self.as_ptr(), ranges.as_ptr(), ranges.len());
        // SAFETY: the context lives, has a memory and is borrowed mutably; the sequence exists. `to` is called only
        // during the call, with the caller's `user`, and the `n` ranges outlive the call.
        let written = call::checked(|error| unsafe {
            raw::shim_state_write_ranges(ctx, seq, false, first, n, Some(to), user, error)
        });
        written.map(drop).map_err(|failure| Error::Call { what: "saving the state", failure })
    }
}

/// Pieces that are filled lane by lane, because llama.cpp writes each lane's rows for all tokens together.
#[derive(Debug)]
struct Pieces {
    all: Vec<Vec<u8>>,
    /// For each lane that is not empty, the bytes of one token.
    units: Vec<usize>,
    /// Number of tokens in each piece.
    tokens: Vec<usize>,
    /// The lane and the piece into which the next bytes go, and how many bytes are still to come for them.
    lane: usize,
    piece: usize,
    left: usize,
}

impl Pieces {
    /// Reserves pieces of `piece` tokens for `count` tokens.
    fn new(shape: &RowShape, count: usize, piece: usize, before: &[u8]) -> Result<Self, Error> {
        let piece = piece.max(1);
        let tokens: Vec<usize> = (0..count).step_by(piece).map(|from| piece.min(count - from)).collect();
        let units: Vec<usize> = shape.units().filter(|unit| *unit > 0).collect();
        let row = shape.row_bytes();
        let reserve = |tokens: &usize| {
            let (mut data, bytes) = (Vec::new(), before.len() + row * tokens);
            let no_room = |error| refused(format!("the host has no {bytes} bytes for it: {error}"));
            data.try_reserve_exact(bytes).map_err(no_room)?;
            data.extend_from_slice(before);
            Ok(data)
        };
        let all = tokens.iter().map(reserve).collect::<Result<_, Error>>()?;
        let left = units.first().zip(tokens.first()).map_or(0, |(unit, tokens)| unit * tokens);
        Ok(Self { all, units, tokens, lane: 0, piece: 0, left })
    }

    /// Appends the next bytes. Returns false if there is not enough room in the pieces.
    fn add(&mut self, mut data: &[u8]) -> bool {
        while !data.is_empty() {
            let Some(piece) = self.all.get_mut(self.piece).filter(|_| self.left > 0) else { return false };
            let (now, later) = data.split_at(self.left.min(data.len()));
            piece.extend_from_slice(now);
            data = later;
            self.left -= now.len();
            if self.left == 0 {
                self.piece += 1;
                if self.piece == self.all.len() {
                    (self.piece, self.lane) = (0, self.lane + 1);
                }
                self.left = self.units.get(self.lane).map_or(0, |unit| unit * self.tokens[self.piece]);
            }
        }
        true
    }
}

/// Appends bytes that llama.cpp writes to the [`Pieces`] that `user` points to.
unsafe extern "C" fn add_to_pieces(user: *mut c_void, data: *const c_void, size: usize) -> bool {
    // SAFETY: `read_pieces` passes a pointer to its pieces, which nobody else uses during the call.
    let pieces = unsafe { &mut *user.cast::<Pieces>() };
    // SAFETY: `data` has `size` bytes (native/shim.cpp, range_writer).
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    // `add` cannot panic, because room for all of its bytes was reserved.
    pieces.add(data)
}

/// Appends bytes to the [`Cells`] that `user` points to.
unsafe extern "C" fn put_between(user: *mut c_void, data: *const c_void, size: usize) -> bool {
    // SAFETY: `cells` passes a pointer to its cells, which nobody else uses during the call.
    let cells = unsafe { &mut *user.cast::<Cells>() };
    cells.at += size as u64;
    // SAFETY: `put` gets a pointer to a `Vec<u8>`, and `data` has `size` bytes (native/shim.cpp, range_writer).
    unsafe { put((&raw mut cells.between).cast(), data, size) }
}

/// Appends a place to the [`Cells`] that `user` points to.
unsafe extern "C" fn put_place(user: *mut c_void, place: *const raw::shim_place) -> bool {
    // SAFETY: as above.
    let cells = unsafe { &mut *user.cast::<Cells>() };
    // SAFETY: the place lives during the call (native/shim.cpp, range_writer).
    let place = unsafe { *place };
    cells.note(Place(place));
    true
}

/// Reads the bytes between the rows. The state has `total` bytes, and the last `rest` of them cannot be divided. All
/// positions of the sequence are below `end_position`.
fn parse(between: &[u8], total: u64, rest: u64, end_position: usize, has_rest: bool) -> Option<StateRows> {
    let end = total.checked_sub(rest)?;
    let mut sections = Vec::new();
    let mut rows = StateRows {
        shape: RowShape { sections: Vec::new(), has_rest },
        lanes: Vec::new(),
        cells: Vec::new(),
        first: 0,
        rest: end..total,
        context: 0,
        places: None,
    };
    let mut fields = Fields { left: between, at: 0 };
    while !fields.left.is_empty() {
        // The stream does not state how many layers have values. Either all layers have them, or no layer has them
        // because the keys contain the values (MLA).
        let (FoundSection { section, lanes, cells, first }, next) = [true, false]
            .into_iter()
            .flat_map(|values| [0, EXT].map(|ext| (values, ext)))
            .find_map(|(values, ext)| {
                let mut fields = fields;
                let found = fields.section(values, ext, end_position)?;
                let is_plausible = !fields.left.is_empty() || fields.at == end;
                is_plausible.then_some((found, fields))
            })?;
        if !sections.is_empty() && (&cells, first) != (&rows.cells, rows.first) {
            return None;
        }
        rows.lanes.extend(lanes);
        (rows.cells, rows.first) = (cells, first);
        sections.push(section);
        fields = next;
    }
    if sections.is_empty() {
        // A recurrent state has no rows.
        rows.cells = (0..u32::try_from(end_position).ok()?).collect();
    }
    rows.shape.sections = sections;
    (fields.at == end).then_some(rows)
}

/// A reader of fields, with the bytes that it has not read yet and their offset in the stream.
#[derive(Debug, Clone, Copy)]
struct Fields<'a> {
    left: &'a [u8],
    at: u64,
}

/// A cache that was found in the stream: the places of its lanes, and its cells in the order of their positions.
struct FoundSection {
    section: Section,
    lanes: Vec<(u64, u64)>,
    cells: Vec<u32>,
    /// The lowest position.
    first: Position,
}

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, left) = self.left.split_at_checked(bytes)?;
        (self.left, self.at) = (left, self.at + bytes as u64);
        Some(first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take(1)?[0] {
            flag @ 0..=1 => Some(flag == 1),
            _ => None,
        }
    }

    /// Skips the rows of a lane. Returns their offset in the stream.
    fn skip(&mut self, unit: usize, tokens: usize) -> Option<u64> {
        let first = self.at;
        self.at = first.checked_add((unit as u64).checked_mul(tokens as u64)?)?;
        Some(first)
    }

    /// Reads a cache of a sequence whose positions are below `end`. Each cell has `ext` bytes for a
    /// `llama_kv_cell_ext`. `values` says whether the layers have values.
    fn section(&mut self, values: bool, ext: usize, end: usize) -> Option<FoundSection> {
        let streams = self.u32().filter(|streams| (1..=1 << 16).contains(streams))?;
        let mut found = None;
        for _ in 0..streams {
            let count = self.u32()? as usize;
            if count == 0 {
                continue;
            }
            // A sequence lies in one stream only. Several of its rows may have the same position if the cells have a
            // `llama_kv_cell_ext`.
            let most = if ext > 0 { MAX_CELLS } else { end };
            if count > most || found.is_some() {
                return None;
            }
            let first = if ext > 0 { 0 } else { end - count };
            found = Some(self.stream(values, ext, count, u32::try_from(first).ok()?)?);
        }
        found
    }

    /// Reads a stream with a sequence of `tokens` tokens, the first of which is at position `first`.
    fn stream(&mut self, values: bool, ext: usize, tokens: usize, first: u32) -> Option<FoundSection> {
        let (begin, step) = (self.at, (12 + ext) as u64);
        // For each cell its place: the position and, with a `llama_kv_cell_ext`, the row and column in a picture.
        let mut found = Vec::new();
        for cell in 0..u32::try_from(tokens).ok()? {
            let position = self.u32()?;
            if self.u32()? != 1 {
                return None;
            }
            let mut of_cell = Fields { left: self.take(ext)?, at: 0 };
            let (x, y) = if ext > 0 { (of_cell.u32()?, of_cell.u32()?) } else { (0, 0) };
            self.take(4)?;
            found.push(((position, y, x), cell));
        }
        found.sort_unstable();
        let is_first = found.first().is_none_or(|((position, ..), _)| *position == first);
        // No place may occur twice. Without a `llama_kv_cell_ext`, no position may be missing either.
        let is_once = match ext {
            0 => found.iter().zip(first..).all(|(((position, ..), _), expected)| *position == expected),
            _ => found.is_sorted_by(|(a, _), (b, _)| a < b),
        };
        if !is_first || !is_once {
            return None;
        }
        let cells = found.into_iter().map(|(_, cell)| cell).collect();
        let mut places = vec![(begin, step)];
        let fixed: [u8; 16] = self.take(16)?.try_into().ok()?;
        let [transposed, layers] =
            [0, 4].map(|at| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]));
        if transposed > 1 {
            return None;
        }
        let mut lanes = Vec::new();
        let mut lane = |fields: &mut Self, header: &[u8], unit: usize| {
            let first = fields.skip(unit, tokens)?;
            places.push((first, unit as u64));
            lanes.push(Lane { header: header.to_vec(), unit });
            Some(())
        };
        let long = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
        for _ in 0..layers {
            let header = self.take(12)?;
            lane(self, header, long(&header[4..])?)?;
        }
        for _ in 0..if values { layers } else { 0 } {
            let header = self.take(12)?;
            if transposed == 0 {
                lane(self, header, long(&header[4..])?)?;
                continue;
            }
            let [unit, dimensions] =
                [4, 8].map(|at| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
            for dimension in 0..dimensions {
                lane(self, if dimension == 0 { header } else { &[] }, unit as usize)?;
            }
        }
        let head = if ext > 0 { CELL + ext } else { 0 };
        let section = Section { head, fixed, lanes };
        Some(FoundSection { section, lanes: places, cells, first: Position::try_from(first).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_places_is_bounded() {
        let place = || Place(raw::shim_place { tensor: std::ptr::null_mut(), offset: 0, size: 2 });
        let mut cells = Cells::default();
        (0..MAX_PLACES).for_each(|_| cells.note(place()));
        assert_eq!((cells.places.len(), cells.are_too_many), (MAX_PLACES, false));
        (0..10).for_each(|_| cells.note(place()));
        assert_eq!((cells.places.capacity(), cells.are_too_many), (0, true));
        assert_eq!(cells.at, 2 * (MAX_PLACES as u64 + 10));
    }
}
