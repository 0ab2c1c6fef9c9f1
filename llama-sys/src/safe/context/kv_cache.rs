//! Operations on the sequences in the KV cache (or recurrent state) of a context.

use std::ops::Range;

use super::{Context, Position, SeqId};
use crate::raw;
use crate::safe::call::{self, Error};

impl Context {
    /// Forgets every sequence.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`], [`Error::Call`].
    pub fn kv_clear(&mut self) -> Result<(), Error> {
        self.unfinished.clear();
        // SAFETY: the context lives and is borrowed mutably.
        self.memory_call("clearing the KV cache", |ctx, error| unsafe { raw::shim_memory_clear(ctx, true, error) })
            .map(drop)
    }

    /// Forgets the positions in `range` of one sequence. Returns `false` if the memory cannot do that: a recurrent
    /// state can only forget a whole sequence or, once, up to [`n_rs_seq`](Self::n_rs_seq) tokens at its end. To forget
    /// such tokens, they and the token before them must have been computed in one graph, which had at most `n_rs_seq` +
    /// 1 tokens of the sequence. No other sequence may share the state (llama-memory-recurrent.cpp, `seq_rm`).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have; [`Error::State`] for a part of a
    /// sequence that is not [completely restored](Self::write_more_rows) yet; [`Error::Poisoned`], [`Error::Call`].
    pub fn kv_seq_remove(&mut self, seq: SeqId, range: Range<Position>) -> Result<bool, Error> {
        self.check_seq(seq)?;
        check_range(&range)?;
        if !self.unfinished.is_empty() {
            if range.start == 0 && self.kv_seq_end(seq)?.is_none_or(|end| range.end >= end) {
                self.leave_unfinished(seq);
            }
            self.check_finished(seq)?;
        }
        // SAFETY: the sequence exists (`seq_rm` in llama-kv-cache.cpp asserts it), the context lives and is
        // borrowed mutably.
        self.memory_call("removing from the KV cache", |ctx, error| unsafe {
            raw::shim_memory_seq_rm(ctx, seq, range.start, range.end, error)
        })
    }

    /// Makes the positions in `range` of `source` belong to `target` too.
    ///
    /// # Errors
    ///
    /// The errors of [`Context::kv_seq_remove`]. [`Error::InvalidParameter`] also for a part of a sequence, if every
    /// sequence has a separate cache (`kv_unified` off) or the memory has an indexer: llama.cpp would fail an
    /// assertion.
    pub fn kv_seq_copy(&mut self, source: SeqId, target: SeqId, range: Range<Position>) -> Result<(), Error> {
        self.check_seq(source)?;
        self.check_seq(target)?;
        self.check_finished(source)?;
        self.check_finished(target)?;
        check_range(&range)?;
        let whole = range.start == 0 && self.kv_seq_end(source)?.is_none_or(|end| range.end >= end);
        if !self.kv_unified() && self.n_seq_max() > 1 && source != target && !whole {
            return Err(Error::parameter(
                "range",
                format!("{}..{}", range.start, range.end),
                "without kv_unified, only a whole sequence can be copied",
            ));
        }
        // SAFETY: the context lives; the shim accepts a NULL memory.
        if !whole && source != target && !unsafe { raw::shim_memory_copies_parts(self.as_ptr()) } {
            return Err(Error::parameter(
                "range",
                format!("{}..{}", range.start, range.end),
                "this model's memory has an indexer, and copies only whole sequences",
            ));
        }
        // `seq_cp` in llama-kv-cache.cpp takes the bounds -1 for "everything".
        let (start, end) = if whole { (-1, -1) } else { (range.start, range.end) };
        // SAFETY: both sequences exist; a part is copied only within one stream (llama-kv-cache.cpp, `seq_cp`).
        self.memory_call("copying a sequence", |ctx, error| unsafe {
            raw::shim_memory_seq_cp(ctx, source, target, start, end, error)
        })
        .map(drop)
    }

    /// Moves the positions in `range` of a sequence by `delta`. The keys are rotated at the next decode, or by
    /// [`kv_update`](Self::kv_update). A cell that belongs to several sequences moves for all of them.
    ///
    /// # Errors
    ///
    /// The errors of [`Context::kv_seq_remove`], and [`Error::InvalidParameter`] when the memory cannot shift
    /// ([`Context::kv_can_shift`]).
    pub fn kv_seq_shift(&mut self, seq: SeqId, range: Range<Position>, delta: Position) -> Result<(), Error> {
        self.check_seq(seq)?;
        self.check_finished(seq)?;
        check_range(&range)?;
        if !self.kv_can_shift() {
            return Err(Error::parameter("delta", delta, "this model's memory cannot shift positions"));
        }
        // This position moves too, and must be valid after the shift.
        let last = self.kv_seq_end(seq)?.unwrap_or(0).min(range.end);
        let moved = |position: Position| position.checked_add(delta).filter(|moved| *moved >= 0);
        if moved(range.start).is_none() || moved(last).is_none() {
            return Err(Error::parameter("delta", delta, "positions must stay between 0 and 2147483646"));
        }
        // SAFETY: the sequence exists and the memory can shift (llama-kv-cache.cpp, `seq_add`, `update`).
        self.memory_call("shifting positions", |ctx, error| unsafe {
            raw::shim_memory_seq_add(ctx, seq, range.start, range.end, delta, error)
        })
        .map(drop)
    }

    /// Carries out pending copies and shifts. The next decode would carry them out too, but llama.cpp would only log a
    /// failure and compute with wrong keys.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`]; [`Error::Call`] if a buffer does not fit: the context is unusable from then on.
    pub fn kv_update(&mut self) -> Result<(), Error> {
        // SAFETY: the context lives and is borrowed mutably, and has a memory.
        self.memory_call("updating the KV cache", |ctx, error| unsafe { raw::shim_memory_update(ctx, error) }).map(drop)
    }

    /// Whether a shift of positions only rotates the keys. With YaRN's factors, each shift also scales the whole cache,
    /// including the sequences that were not moved (ggml-cpu/ops.cpp, `rope_yarn`).
    pub fn rope_only_rotates(&self) -> bool {
        // SAFETY: the context lives.
        unsafe { raw::shim_context_rope_only_rotates(self.as_ptr()) }
    }

    /// Whether positions can be shifted (`llama_memory_can_shift`).
    pub fn kv_can_shift(&self) -> bool {
        // SAFETY: the context lives; for a NULL memory (encoders) the answer is false (llama-context.cpp).
        unsafe {
            let memory = raw::llama_get_memory(self.as_ptr());
            !memory.is_null() && raw::llama_memory_can_shift(memory)
        }
    }

    /// Forgets the positions that have left the sliding window of a sequence, in the layers whose cache is limited to a
    /// window (`swa_full` off).
    ///
    /// llama.cpp reuses such cells by itself, but not cells that [several sequences](Self::kv_seq_copy) share
    /// (llama-kv-cache.cpp, find_slot). With `kv_unified`, such shared cells may fill the whole cache.
    ///
    /// # Errors
    ///
    /// The errors of [`Context::kv_seq_remove`].
    pub fn kv_leave_window(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_seq(seq)?;
        // SAFETY: the sequence exists, the context lives and is borrowed mutably.
        self.memory_call("forgetting what has left a window", |ctx, error| unsafe {
            raw::shim_memory_leave_window(ctx, seq, error)
        })
        .map(drop)
    }

    /// The position after the last one of a sequence; `None` if the sequence is empty.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have.
    pub fn kv_seq_end(&self, seq: SeqId) -> Result<Option<Position>, Error> {
        let last = self.position(seq, raw::llama_memory_seq_pos_max)?;
        Ok(last.map(|last| last.saturating_add(1)))
    }

    /// The first position of a sequence that is in the cache; `None` if the sequence is empty. It is above 0 once a
    /// sliding window has moved on: the cache then contains the positions from this one to the [last](Self::kv_seq_end)
    /// (llama-kv-cache.cpp, apply_ubatch), and earlier positions are lost.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a sequence that the context does not have.
    pub fn kv_seq_start(&self, seq: SeqId) -> Result<Option<Position>, Error> {
        self.position(seq, raw::llama_memory_seq_pos_min)
    }

    /// A position of a sequence, which llama.cpp returns to `ask`; `None` if the sequence is empty.
    fn position(
        &self,
        seq: SeqId,
        ask: unsafe extern "C" fn(raw::llama_memory_t, raw::llama_seq_id) -> raw::llama_pos,
    ) -> Result<Option<Position>, Error> {
        self.check_seq(seq)?;
        // SAFETY: the context lives and the sequence exists. For an empty sequence llama.cpp returns -1.
        let position = unsafe {
            let memory = raw::llama_get_memory(self.as_ptr());
            if memory.is_null() { -1 } else { ask(memory, seq) }
        };
        Ok(Some(position).filter(|position| *position >= 0))
    }

    fn memory_call(
        &mut self,
        what: &'static str,
        call: impl FnOnce(*mut raw::llama_context, *mut raw::shim_error) -> bool,
    ) -> Result<bool, Error> {
        self.check_usable()?;
        let ctx = self.as_ptr();
        // SAFETY: the context lives.
        if unsafe { raw::llama_get_memory(ctx) }.is_null() {
            return Ok(false);
        }
        call::checked(|error| call(ctx, error)).map_err(|failure| {
            self.poison(&failure);
            Error::Call { what, failure }
        })
    }
}

fn check_range(range: &Range<Position>) -> Result<(), Error> {
    if range.start < 0 || range.end < range.start {
        return Err(Error::parameter(
            "range",
            format!("{}..{}", range.start, range.end),
            "it must be 0 <= start <= end",
        ));
    }
    Ok(())
}
