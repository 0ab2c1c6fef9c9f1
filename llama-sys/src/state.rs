//! The state of a context (KV cache, recurrent state), out and in again.
//!
//! llama.cpp trusts the bytes it restores, so they never travel bare: a [`State`] carries a checksum and the
//! shapes of what it was taken from, and both are checked before llama.cpp sees a byte. [`Context::write_state`]
//! and [`Context::read_state`] carry one sequence through a file without a copy of it in memory; there, checking
//! is the caller's.

use std::ffi::c_void;
use std::io::{self, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use crate::context::Context;
use crate::error::Error;
use crate::{Position, SeqId, raw, shim};

const MAGIC: &[u8; 8] = b"llmstate";
const VERSION: u32 = 1;
/// Magic, version, whole-context flag, model fingerprint, data length, checksum.
const HEADER: usize = 8 + 4 + 4 + 8 + 8 + 8;

/// A saved state. [`State::to_bytes`] and [`State::from_bytes`] carry it through a file or a pipe.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    data: Vec<u8>,
    whole: bool,
    fingerprint: u64,
}

impl State {
    /// Bytes of llama.cpp's own data.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// True without data.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// With header and checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.data.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.whole).to_le_bytes());
        bytes.extend_from_slice(&self.fingerprint.to_le_bytes());
        bytes.extend_from_slice(&(self.data.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&fnv1a(&self.data).to_le_bytes());
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// Reads what [`State::to_bytes`] wrote.
    ///
    /// # Errors
    ///
    /// [`Error::State`] for anything else: foreign, truncated, of another version, or altered.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let refuse = |reason: String| Err(Error::State { reason });
        if bytes.len() < HEADER {
            return refuse(format!("{} bytes are too few for a header of {HEADER}", bytes.len()));
        }
        let (header, data) = bytes.split_at(HEADER);
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        if &header[..8] != MAGIC {
            return refuse("it does not begin with `llmstate`".into());
        }
        if u32_at(8) != VERSION {
            return refuse(format!("its version is {}, and this is version {VERSION}", u32_at(8)));
        }
        if u64_at(24) != data.len() as u64 {
            return refuse(format!("its header says {} bytes, and {} follow", u64_at(24), data.len()));
        }
        if u64_at(32) != fnv1a(data) {
            return refuse("its checksum does not match: it was altered".into());
        }
        Ok(Self { data: data.to_vec(), whole: u32_at(12) != 0, fingerprint: u64_at(16) })
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("bytes", &self.data.len()).field("whole", &self.whole).finish_non_exhaustive()
    }
}

impl Context {
    /// Saves one sequence, or with `None` everything.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have; [`Error::Poisoned`]; [`Error::Call`].
    pub fn save_state(&mut self, seq: Option<SeqId>) -> Result<State, Error> {
        self.check_usable()?;
        let id = self.state_seq(seq)?;
        let failed = |failure| Error::Call { what: "saving the state", failure };
        let ctx = self.as_ptr();
        let size =
            // SAFETY: the context lives and is borrowed mutably; the sequence exists or is -1.
            shim::checked(|error| unsafe { raw::shim_state_size(ctx, id, error) }).map_err(failed)?;
        let mut data = vec![0u8; size];
        let written = shim::accepted(
            // SAFETY: as above; `size` bytes are ours.
            |error| unsafe { raw::shim_state_get(ctx, id, data.as_mut_ptr(), size, error) },
            |written| *written > 0 || size == 0,
        )
        .map_err(failed)?;
        data.truncate(written);
        Ok(State { data, whole: seq.is_none(), fingerprint: self.fingerprint() })
    }

    /// Restores a state: of one sequence into sequence `seq`, or with `None` everything.
    ///
    /// # Errors
    ///
    /// [`Error::State`] when it was taken from a model or KV cache of other shapes, or holds the other kind (one
    /// sequence, everything); otherwise as [`Context::save_state`].
    pub fn restore_state(&mut self, state: &State, seq: Option<SeqId>) -> Result<(), Error> {
        self.check_usable()?;
        let id = self.state_seq(seq)?;
        if state.whole != seq.is_none() {
            let (has, asked) =
                if state.whole { ("everything", "one sequence") } else { ("one sequence", "everything") };
            return Err(Error::State { reason: format!("it holds {has}, and {asked} was to be restored") });
        }
        if state.fingerprint != self.fingerprint() {
            return Err(Error::State { reason: "it was taken from another model".into() });
        }
        let ctx = self.as_ptr();
        shim::accepted(
            // SAFETY: the context lives and is borrowed mutably; the bytes are those that llama.cpp wrote
            // for such a model.
            |error| unsafe { raw::shim_state_set(ctx, id, state.data.as_ptr(), state.data.len(), error) },
            |read| *read > 0,
        )
        .map(drop)
        .map_err(|failure| {
            // Half a state may be in the cache. If even that cannot be forgotten, the call below says
            // so of the context.
            let _ = self.kv_clear();
            Error::State { reason: failure.to_string() }
        })
    }

    /// Bytes that [`write_state`](Self::write_state) writes.
    ///
    /// # Errors
    ///
    /// As [`save_state`](Self::save_state).
    pub fn state_bytes(&mut self, seq: SeqId) -> Result<u64, Error> {
        self.bytes_of(seq, Part::Whole)
    }

    pub(crate) fn bytes_of(&mut self, seq: SeqId, part: Part) -> Result<u64, Error> {
        self.check_streamed(seq)?;
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        // SAFETY: the context lives, has a memory and is borrowed mutably; the sequence exists.
        shim::checked(|error| unsafe { raw::shim_state_stream_size(ctx, seq, partial, error) })
            .map(|bytes| bytes as u64)
            .map_err(|failure| Error::Call { what: "measuring the state", failure })
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

    pub(crate) fn write_part(&mut self, seq: SeqId, part: Part, to: &mut dyn Write) -> Result<u64, Error> {
        self.check_streamed(seq)?;
        let (ctx, partial) = (self.as_ptr(), part == Part::Partial);
        let mut stream = Stream { of: to, said: Ok(Ok(())) };
        let user = (&raw mut stream).cast();
        // SAFETY: as above; `put` is called during the call only, with the stream that outlives it.
        let written =
            shim::checked(|error| unsafe { raw::shim_state_write(ctx, seq, partial, Some(put), user, error) });
        let said = stream.said.unwrap_or_else(|panic| panic::resume_unwind(panic));
        said.map_err(|said| Error::State { reason: said.to_string() })?;
        written.map(|bytes| bytes as u64).map_err(|failure| Error::Call { what: "saving the state", failure })
    }

    /// Reads what [`write_state`](Self::write_state) wrote, `bytes` of it, into a sequence. The caller has
    /// checked that they are unaltered and of such a model and cache. Where it fails, the sequence is empty, and
    /// no other is changed.
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

    pub(crate) fn read_part(&mut self, seq: SeqId, part: Part, bytes: u64, from: &mut dyn Read) -> Result<(), Error> {
        self.check_streamed(seq)?;
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
        Err(Error::State { reason })
    }

    fn check_streamed(&self, seq: SeqId) -> Result<(), Error> {
        self.check_usable()?;
        self.check_seq(seq)?;
        if self.has_memory() {
            return Ok(());
        }
        Err(Error::parameter("model", self.model().description(), "a model that keeps nothing has no state"))
    }

    fn state_seq(&self, seq: Option<SeqId>) -> Result<SeqId, Error> {
        if let Some(seq) = seq {
            self.check_seq(seq)?;
        }
        Ok(seq.unwrap_or(-1))
    }

    /// Shapes and size of the model: two models that share them still differ in weights, which the product
    /// layer identifies.
    pub(crate) fn fingerprint(&self) -> u64 {
        let model = self.model();
        let shape = model.shape();
        let text = format!(
            "{} {} {} {} {} {} {}",
            model.description(),
            model.n_params(),
            model.bytes(),
            model.n_embd(),
            shape.n_layer,
            shape.head_k,
            shape.head_v
        );
        fnv1a(text.as_bytes())
    }
}

/// What of a sequence's state is written and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// What cannot go back to an earlier token.
    Partial,
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
    // SAFETY: `write_state` passes its stream, which nobody else uses meanwhile.
    let stream = unsafe { &mut *user.cast::<Stream<'_, dyn Write>>() };
    // SAFETY: llama.cpp has `size` bytes there (native/shim.cpp, stream_writer).
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    stream.call(|of| of.write_all(data))
}

unsafe extern "C" fn take(user: *mut c_void, data: *mut c_void, size: usize) -> bool {
    // SAFETY: `read_state` passes its stream, which nobody else uses meanwhile.
    let stream = unsafe { &mut *user.cast::<Stream<'_, dyn Read>>() };
    // SAFETY: there are `size` bytes, set to zero before the call (native/shim.cpp, stream_reader).
    let data = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), size) };
    stream.call(|of| of.read_exact(data))
}

/// FNV-1a, 64 bits: against accidents, not against forgery.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
