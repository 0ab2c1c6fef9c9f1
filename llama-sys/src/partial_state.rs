//! The part of a sequence's state that cannot go back to an earlier token, out and in again: a recurrent state, and the
//! windows of layers whose cache is shorter than the others' (`swa_full` off).
//!
//! Full attention keeps every token by itself, so that a sequence goes back to where its partial state was saved:
//! llama.cpp's `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`.

use crate::context::Context;
use crate::error::Error;
use crate::state::Part;
use crate::{Position, SeqId, raw};

/// A partial state, in host memory. Only a context makes one, so that its bytes are those that llama.cpp wrote.
#[derive(Clone, PartialEq, Eq)]
pub struct PartialState {
    data: Vec<u8>,
    end: Position,
    fingerprint: u64,
}

impl PartialState {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// One past the last position of the sequence when it was saved.
    pub fn end(&self) -> Position {
        self.end
    }
}

impl std::fmt::Debug for PartialState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartialState").field("bytes", &self.data.len()).field("end", &self.end).finish_non_exhaustive()
    }
}

impl Context {
    /// True when the memory holds something that cannot go back to an earlier token: a recurrent state, or windows in a
    /// cache that is shorter than the other layers'. False for plain attention, of which a partial state would be the
    /// whole.
    pub fn has_partial_state(&self) -> bool {
        // SAFETY: the context lives; no memory is none of the kinds that are asked for.
        self.has_memory() && unsafe { raw::shim_memory_has_partial(self.as_ptr()) }
    }

    /// Bytes of the [partial state](Self::save_partial_state) of a sequence.
    ///
    /// # Errors
    ///
    /// As [`save_partial_state`](Self::save_partial_state).
    pub fn partial_state_bytes(&mut self, seq: SeqId) -> Result<u64, Error> {
        self.check_partial()?;
        self.bytes_of(seq, Part::Partial)
    }

    /// Saves the part of a sequence's state that cannot go back to an earlier token. Waits for what is still computing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have, and for a memory [without such a
    /// part](Self::has_partial_state); [`Error::State`] for an empty sequence, or where the host has no memory for it;
    /// [`Error::Poisoned`]; [`Error::Call`].
    pub fn save_partial_state(&mut self, seq: SeqId) -> Result<PartialState, Error> {
        self.check_partial()?;
        let refused = |reason: String| Error::State { reason };
        let end = self.kv_seq_end(seq)?;
        let end = end.ok_or_else(|| refused("the sequence is empty".into()))?;
        let bytes = self.bytes_of(seq, Part::Partial)?;
        let mut data = Vec::new();
        data.try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX))
            .map_err(|error| refused(format!("{bytes} bytes of the host: {error}")))?;
        self.write_part(seq, Part::Partial, &mut data)?;
        Ok(PartialState { data, end, fingerprint: self.fingerprint() })
    }

    /// Goes back to where a partial state was saved: restores it into a sequence, and forgets what that holds behind
    /// it. The sequence must hold the tokens before it, the same ones: of full attention nothing is restored. Where it
    /// fails, the sequence is empty, and no other is changed.
    ///
    /// # Errors
    ///
    /// [`Error::State`] when it was taken from a model or cache of other shapes, finds no place, or ends behind the
    /// sequence; otherwise as [`save_partial_state`](Self::save_partial_state).
    pub fn restore_partial_state(&mut self, seq: SeqId, state: &PartialState) -> Result<(), Error> {
        self.check_partial()?;
        let restored = self.restored(seq, state);
        if restored.is_err() {
            self.kv_seq_remove(seq, 0..Position::MAX)?;
        }
        restored
    }

    fn restored(&mut self, seq: SeqId, state: &PartialState) -> Result<(), Error> {
        let refused = |reason: String| Err(Error::State { reason });
        if state.fingerprint != self.fingerprint() {
            return refused("it was taken from another model".into());
        }
        let held = self.kv_seq_end(seq)?.unwrap_or(0);
        if held < state.end {
            return refused(format!("the sequence holds {held} positions, and it was taken at {}", state.end));
        }
        let bytes = state.data.len() as u64;
        self.read_part(seq, Part::Partial, bytes, &mut &*state.data)?;
        self.kv_seq_remove(seq, state.end..Position::MAX)?;
        let end = self.kv_seq_end(seq)?.unwrap_or(0);
        if end == state.end {
            return Ok(());
        }
        refused(format!("the sequence ends at {end} then, and not at {}", state.end))
    }

    fn check_partial(&self) -> Result<(), Error> {
        if self.has_partial_state() {
            return Ok(());
        }
        Err(Error::parameter("model", self.model().description(), "its memory goes back to every token by itself"))
    }
}
