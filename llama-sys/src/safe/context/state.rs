//! Saves and restores the state of a sequence (KV cache, recurrent state).
//!
//! llama.cpp trusts the bytes that it restores. So a [`State`] contains only bytes that a context wrote, together with
//! the shapes of the context's model. The shapes are checked before llama.cpp reads a byte.
//!
//! The *partial* state is the part of a state that cannot go back to an earlier token: a recurrent state, and the
//! windows of layers with a shorter cache (`swa_full` off). Full attention keeps a separate entry for every token, so
//! it can go back. A sequence with a partial state can go back only to a point where that partial state was saved
//! (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY` in llama.cpp).

use std::fmt;

use super::stream::{self, put, refused};
use super::{Context, Position, SeqId};
use crate::raw;
use crate::safe::call::{self, Error};

/// Which part of a sequence's state is written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// The part that cannot go back to an earlier token.
    Partial,
}

/// The state of a sequence, or its partial state, in host memory.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    data: Vec<u8>,
    part: Part,
    end: Position,
    fingerprint: u64,
}

impl State {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether the state has no bytes.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The bytes as llama.cpp wrote them.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// The position after the sequence's last one, at the time when the state was saved.
    pub fn end(&self) -> Position {
        self.end
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, end, .. } = self;
        write!(f, "State {{ {} bytes, {part:?}, end: {end} }}", self.data.len())
    }
}

impl Context {
    /// Saves the state of a sequence. Waits for computations in progress.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have, and for a model without memory;
    /// [`Error::State`] for an empty sequence, or if the host has no memory for the state; [`Error::Poisoned`];
    /// [`Error::Call`].
    pub fn save_state(&mut self, seq: SeqId) -> Result<State, Error> {
        self.save(seq, Part::Whole)
    }

    /// Saves the partial state of a sequence. Waits for computations in progress.
    ///
    /// # Errors
    ///
    /// The errors of [`save_state`](Self::save_state); [`Error::InvalidParameter`] for a memory [without a partial
    /// state](Self::has_partial_state).
    pub fn save_partial_state(&mut self, seq: SeqId) -> Result<State, Error> {
        self.save(seq, Part::Partial)
    }

    /// Restores a state into a sequence. For a partial state, the sequence must contain the same tokens up to the
    /// state's end; its later tokens are forgotten. After a failure the sequence is empty, and no other sequence is
    /// changed.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the state comes from a model or cache with other shapes, does not fit, or ends after the end
    /// of the sequence. Otherwise the errors of [`save_state`](Self::save_state).
    pub fn restore_state(&mut self, seq: SeqId, state: &State) -> Result<(), Error> {
        if state.part == Part::Whole {
            self.leave_unfinished(seq);
        }
        self.check_part(seq, state.part)?;
        let restored = self.restore(seq, state);
        if restored.is_err() {
            self.kv_seq_remove(seq, 0..Position::MAX)?;
        }
        restored
    }

    /// Whether the memory has a partial state. False for plain attention, which keeps a separate entry for every token.
    pub fn has_partial_state(&self) -> bool {
        // SAFETY: the context lives; a missing memory is checked first.
        self.has_memory() && unsafe { raw::shim_memory_has_partial(self.as_ptr()) }
    }

    /// Bytes of the partial state of a sequence.
    ///
    /// # Errors
    ///
    /// The errors of [`save_partial_state`](Self::save_partial_state).
    pub fn partial_state_bytes(&mut self, seq: SeqId) -> Result<u64, Error> {
        self.bytes_of(seq, Part::Partial)
    }

    fn save(&mut self, seq: SeqId, part: Part) -> Result<State, Error> {
        self.check_part(seq, part)?;
        let end = self.kv_seq_end(seq)?;
        let end = end.ok_or_else(|| refused("the sequence is empty"))?;
        let bytes = self.bytes_of(seq, part)?;
        let mut data = Vec::new();
        data.try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX))
            .map_err(|error| refused(format!("the host has no {bytes} bytes for it: {error}")))?;
        self.write_part(seq, part, &mut data)?;
        Ok(State { data, part, end, fingerprint: self.fingerprint() })
    }

    fn restore(&mut self, seq: SeqId, state: &State) -> Result<(), Error> {
        if state.fingerprint != self.fingerprint() {
            return Err(refused("it was saved from another model"));
        }
        let held = self.kv_seq_end(seq)?.unwrap_or(0);
        if state.part == Part::Partial && held < state.end {
            let end = state.end;
            return Err(refused(format!("it was saved at position {end}, and the sequence holds only {held}")));
        }
        self.read_part(seq, state.part, &state.data)?;
        self.kv_seq_remove(seq, state.end..Position::MAX)?;
        let end = self.kv_seq_end(seq)?.unwrap_or(0);
        if end == state.end {
            return Ok(());
        }
        Err(refused(format!("it was saved at position {}, and the restored sequence ends at {end}", state.end)))
    }

    fn bytes_of(&mut self, seq: SeqId, part: Part) -> Result<u64, Error> {
        self.check_part(seq, part)?;
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        // SAFETY: the context lives, has a memory and is borrowed mutably; the sequence exists.
        call::checked(|error| unsafe { raw::shim_state_stream_size(ctx, seq, partial, error) })
            .map(|bytes| bytes as u64)
            .map_err(|failure| Error::Call { what: "measuring the state", failure })
    }

    /// Appends the state to `data`, which has room for [`bytes_of`](Self::bytes_of) bytes.
    fn write_part(&mut self, seq: SeqId, part: Part, data: &mut Vec<u8>) -> Result<(), Error> {
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        let user = (&raw mut *data).cast();
        // SAFETY: as above; `put` is called only during the call, with bytes that outlive it.
        call::checked(|error| unsafe { raw::shim_state_write(ctx, seq, partial, Some(put), user, error) })
            .map(drop)
            .map_err(|failure| Error::Call { what: "saving the state", failure })
    }

    /// Reads the state into the sequence. After a failure the sequence is empty.
    fn read_part(&mut self, seq: SeqId, part: Part, data: &[u8]) -> Result<(), Error> {
        let read = self.read_parts(seq, part == Part::Partial, &[stream::Part::Given(data)]);
        if read.is_err() {
            self.kv_seq_remove(seq, 0..Position::MAX)?;
        }
        read
    }

    pub(super) fn check_state(&self, seq: SeqId) -> Result<(), Error> {
        self.check_part(seq, Part::Whole)
    }

    fn check_part(&self, seq: SeqId, part: Part) -> Result<(), Error> {
        self.check_usable()?;
        self.check_seq(seq)?;
        self.check_finished(seq)?;
        let reason = match part {
            Part::Whole if !self.has_memory() => "this model keeps no state between batches",
            Part::Partial if !self.has_partial_state() => {
                "this model's memory can return to any token, so it has no partial state"
            }
            _ => return Ok(()),
        };
        Err(Error::parameter("model", self.model().description(), reason))
    }

    /// A hash of the model's shapes and size. Two models with the same hash may have different weights; the `autoplace`
    /// crate tells them apart.
    fn fingerprint(&self) -> u64 {
        let model = self.model();
        let text = format!(
            "{} {} {} {} {:?}",
            model.description(),
            model.n_params(),
            model.bytes(),
            model.n_embd(),
            model.shape()
        );
        // FNV-1a with 64 bits. It detects accidents, not forgery.
        let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
    }
}
