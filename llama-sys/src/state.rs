//! The state of a sequence (KV cache, recurrent state), out of a context and in again.
//!
//! llama.cpp trusts the bytes that it restores. A [`State`] holds bytes that a context wrote, and the shapes of its
//! model, which are checked before llama.cpp sees a byte. [`Context::write_state`] and [`Context::read_state`] carry a
//! sequence through a file without a copy of it in memory; there, checking is the caller's.
//!
//! The *partial* state is what cannot go back to an earlier token: a recurrent state, and the windows of layers whose
//! cache is shorter than the others' (`swa_full` off). Full attention keeps every token by itself, so that a sequence
//! goes back to where its partial state was saved: llama.cpp's `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`.

use std::ffi::c_void;
use std::fmt;
use std::io::{self, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use crate::context::Context;
use crate::error::Error;
use crate::{Position, SeqId, raw, shim};

/// What of a sequence's state is written and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// What cannot go back to an earlier token.
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

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, end, .. } = self;
        write!(f, "State {{ {} bytes, {part:?}, end: {end} }}", self.data.len())
    }
}

impl Context {
    /// Saves the state of a sequence. Waits for what is still computing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have, and a model that keeps nothing;
    /// [`Error::State`] for an empty sequence, or where the host has no memory for it; [`Error::Poisoned`];
    /// [`Error::Call`].
    pub fn save_state(&mut self, seq: SeqId) -> Result<State, Error> {
        self.save(seq, Part::Whole)
    }

    /// Saves the partial state of a sequence. Waits for what is still computing.
    ///
    /// # Errors
    ///
    /// As [`save_state`](Self::save_state); [`Error::InvalidParameter`] for a memory [without
    /// one](Self::has_partial_state).
    pub fn save_partial_state(&mut self, seq: SeqId) -> Result<State, Error> {
        self.save(seq, Part::Partial)
    }

    /// Restores a state into a sequence. For a partial one, the sequence must hold the tokens before its end, the same
    /// ones, and forgets what it holds behind it. Where it fails, the sequence is empty, and no other is changed.
    ///
    /// # Errors
    ///
    /// [`Error::State`] when it was taken from a model or cache of other shapes, finds no place, or ends behind the
    /// sequence that it is a part of; otherwise as [`save_state`](Self::save_state).
    pub fn restore_state(&mut self, seq: SeqId, state: &State) -> Result<(), Error> {
        self.check_streamed(seq, state.part)?;
        let restored = self.restore(seq, state);
        if restored.is_err() {
            self.kv_seq_remove(seq, 0..Position::MAX)?;
        }
        restored
    }

    /// True when the memory has a partial state. False for plain attention, of which it would be the whole.
    pub fn has_partial_state(&self) -> bool {
        // SAFETY: the context lives; no memory is none of the kinds that are asked for.
        self.has_memory() && unsafe { raw::shim_memory_has_partial(self.as_ptr()) }
    }

    /// Bytes of the state of a sequence, as [`write_state`](Self::write_state) writes it.
    ///
    /// # Errors
    ///
    /// As [`save_state`](Self::save_state).
    pub fn state_bytes(&mut self, seq: SeqId) -> Result<u64, Error> {
        self.bytes_of(seq, Part::Whole)
    }

    /// Bytes of the partial state of a sequence.
    ///
    /// # Errors
    ///
    /// As [`save_partial_state`](Self::save_partial_state).
    pub fn partial_state_bytes(&mut self, seq: SeqId) -> Result<u64, Error> {
        self.bytes_of(seq, Part::Partial)
    }

    /// Writes the state of one sequence, a megabyte at a time. Returns the bytes.
    ///
    /// # Errors
    ///
    /// As [`save_state`](Self::save_state); [`Error::State`] with what `to` said where it takes no more.
    ///
    /// # Panics
    ///
    /// Resumes a panic of `to`.
    pub fn write_state(&mut self, seq: SeqId, to: &mut dyn Write) -> Result<u64, Error> {
        self.write_part(seq, Part::Whole, to)
    }

    /// Reads what [`write_state`](Self::write_state) wrote, `bytes` of it, into a sequence. The caller has checked that
    /// they are unaltered and of such a model and cache. Where it fails, the sequence is empty, and no other is
    /// changed.
    ///
    /// # Errors
    ///
    /// [`Error::State`] with what llama.cpp or `from` said against it; otherwise as [`save_state`](Self::save_state).
    ///
    /// # Panics
    ///
    /// Resumes a panic of `from`, once the sequence is empty.
    pub fn read_state(&mut self, seq: SeqId, bytes: u64, from: &mut dyn Read) -> Result<(), Error> {
        self.read_part(seq, Part::Whole, bytes, from)
    }

    fn save(&mut self, seq: SeqId, part: Part) -> Result<State, Error> {
        self.check_streamed(seq, part)?;
        let end = self.kv_seq_end(seq)?;
        let end = end.ok_or_else(|| refused("the sequence is empty"))?;
        let bytes = self.bytes_of(seq, part)?;
        let mut data = Vec::new();
        data.try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX))
            .map_err(|error| refused(format!("{bytes} bytes of the host: {error}")))?;
        self.write_part(seq, part, &mut data)?;
        Ok(State { data, part, end, fingerprint: self.fingerprint() })
    }

    fn restore(&mut self, seq: SeqId, state: &State) -> Result<(), Error> {
        if state.fingerprint != self.fingerprint() {
            return Err(refused("it was taken from another model"));
        }
        let held = self.kv_seq_end(seq)?.unwrap_or(0);
        if state.part == Part::Partial && held < state.end {
            let end = state.end;
            return Err(refused(format!("the sequence holds {held} positions, and it was taken at {end}")));
        }
        self.read_part(seq, state.part, state.data.len() as u64, &mut &*state.data)?;
        self.kv_seq_remove(seq, state.end..Position::MAX)?;
        let end = self.kv_seq_end(seq)?.unwrap_or(0);
        if end == state.end {
            return Ok(());
        }
        Err(refused(format!("the sequence ends at {end} then, and not at {}", state.end)))
    }

    fn bytes_of(&mut self, seq: SeqId, part: Part) -> Result<u64, Error> {
        self.check_streamed(seq, part)?;
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        // SAFETY: the context lives, has a memory and is borrowed mutably; the sequence exists.
        shim::checked(|error| unsafe { raw::shim_state_stream_size(ctx, seq, partial, error) })
            .map(|bytes| bytes as u64)
            .map_err(|failure| Error::Call { what: "measuring the state", failure })
    }

    fn write_part(&mut self, seq: SeqId, part: Part, to: &mut dyn Write) -> Result<u64, Error> {
        self.check_streamed(seq, part)?;
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        let mut stream = Stream { of: to, said: Ok(Ok(())) };
        let user = (&raw mut stream).cast();
        // SAFETY: as above; `put` is called during the call only, with the stream that outlives it.
        let written =
            shim::checked(|error| unsafe { raw::shim_state_write(ctx, seq, partial, Some(put), user, error) });
        let said = stream.said.unwrap_or_else(|panic| panic::resume_unwind(panic));
        said.map_err(|said| refused(said.to_string()))?;
        written.map(|bytes| bytes as u64).map_err(|failure| Error::Call { what: "saving the state", failure })
    }

    fn read_part(&mut self, seq: SeqId, part: Part, bytes: u64, from: &mut dyn Read) -> Result<(), Error> {
        self.check_streamed(seq, part)?;
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut stream = Stream { of: from, said: Ok(Ok(())) };
        let user = (&raw mut stream).cast();
        // SAFETY: as above. Every length that llama.cpp reads is held against what is left
        // (native/shim.cpp, stream_reader).
        let read =
            shim::checked(|error| unsafe { raw::shim_state_read(ctx, seq, partial, size, Some(take), user, error) });
        let reason = match (read, &stream.said) {
            (_, Ok(Err(said))) => said.to_string(),
            (Ok(read), Ok(Ok(()))) if read == size => return Ok(()),
            (Ok(read), _) => format!("{read} of {size} bytes are a state"),
            (Err(failure), _) => failure.to_string(),
        };
        self.kv_seq_remove(seq, 0..Position::MAX)?;
        if let Err(panic) = stream.said {
            panic::resume_unwind(panic);
        }
        Err(refused(reason))
    }

    fn check_streamed(&self, seq: SeqId, part: Part) -> Result<(), Error> {
        self.check_usable()?;
        self.check_seq(seq)?;
        let reason = match part {
            Part::Whole if !self.has_memory() => "a model that keeps nothing has no state",
            Part::Partial if !self.has_partial_state() => "its memory goes back to every token by itself",
            _ => return Ok(()),
        };
        Err(Error::parameter("model", self.model().description(), reason))
    }

    /// Shapes and size of the model: two models that share them still differ in weights, which the product
    /// layer identifies.
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
        // FNV-1a, 64 bits: against accidents, not against forgery.
        let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
    }
}

fn refused(reason: impl Into<String>) -> Error {
    Error::State { reason: reason.into() }
}

/// What llama.cpp writes to or reads from, and how its last call ended: a panic must not unwind into C++.
struct Stream<'a, T: ?Sized> {
    of: &'a mut T,
    said: thread::Result<io::Result<()>>,
}

impl<T: ?Sized> Stream<'_, T> {
    fn call(&mut self, of: impl FnOnce(&mut T) -> io::Result<()>) -> bool {
        self.said = panic::catch_unwind(AssertUnwindSafe(|| of(self.of)));
        matches!(self.said, Ok(Ok(())))
    }
}

unsafe extern "C" fn put(user: *mut c_void, data: *const c_void, size: usize) -> bool {
    // SAFETY: `write_part` passes its stream, which nobody else uses meanwhile.
    let stream = unsafe { &mut *user.cast::<Stream<'_, dyn Write>>() };
    // SAFETY: llama.cpp has `size` bytes there (native/shim.cpp, stream_writer).
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    stream.call(|of| of.write_all(data))
}

unsafe extern "C" fn take(user: *mut c_void, data: *mut c_void, size: usize) -> bool {
    // SAFETY: `read_part` passes its stream, which nobody else uses meanwhile.
    let stream = unsafe { &mut *user.cast::<Stream<'_, dyn Read>>() };
    // SAFETY: there are `size` bytes, set to zero before the call (native/shim.cpp, stream_reader).
    let data = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), size) };
    stream.call(|of| of.read_exact(data))
}
