//! Decoding: takes a batch of tokens, and returns the logits of the batch's outputs.

use std::sync::atomic::Ordering;

use super::params::Mtp;
use super::{Batch, Context, Position};
use crate::raw;
use crate::safe::call::log::Captured;
use crate::safe::call::{self, Error, Failure, FailureCause};

impl Context {
    /// Computes the tokens of `batch` and adds them to the KV cache.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidParameter`]: an empty batch, more tokens than `n_batch`, more outputs than `n_outputs_max`, a
    ///   token outside the vocabulary, or an impossible sequence or position. Nothing was computed.
    /// - [`Error::NoKvSlot`]: the cache is full. Nothing was computed.
    /// - [`Error::Aborted`]: an [`AbortHandle`](crate::AbortHandle) stopped the computation. Parts of the batch may be
    ///   in the cache.
    /// - [`Error::Decode`]: the computation failed; the context is unusable from then on ([`Error::Poisoned`]).
    pub fn decode(&mut self, batch: &Batch) -> Result<(), Error> {
        self.check_usable()?;
        if self.mtp == Mtp::Heads {
            return Err(Error::parameter("mtp", "Heads", "such a context also needs hidden states: call decode_heads"));
        }
        self.check_batch(batch)?;
        self.compute(batch, std::ptr::null())
    }

    /// Computes a batch that was checked. `hidden` points to a row for each token, or is null.
    pub(super) fn compute(&mut self, batch: &Batch, hidden: *const f32) -> Result<(), Error> {
        // Until this call succeeds, no logits may be read, because llama.cpp still keeps the logits of the previous
        // batch.
        self.outputs.clear();
        self.seq_counts.resize(batch.len(), 1);
        self.seq_pointers.clear();
        self.seq_pointers.extend(batch.seqs.iter().map(|seq| std::ptr::from_ref(seq).cast_mut()));
        let native = raw::llama_batch {
            n_tokens: batch.len() as i32,
            token: batch.tokens.as_ptr().cast_mut(),
            embd: hidden.cast_mut(),
            pos: batch.positions.as_ptr().cast_mut(),
            n_seq_id: self.seq_counts.as_mut_ptr(),
            seq_id: self.seq_pointers.as_mut_ptr(),
            logits: batch.outputs.as_ptr().cast_mut(),
        };
        if let Some(counts) = &self.moe_counts {
            // SAFETY: the context lives and is borrowed mutably; the counts outlive the computation.
            unsafe { raw::shim_context_count_experts(self.as_ptr(), counts.get()) };
        }
        let listed = self.vocab.model().adapters();
        // SAFETY: the context lives and is borrowed mutably. Every array has `n_tokens` entries, and the hidden states
        // have as many rows. llama_decode only reads them (it copies into a llama_batch_ext, llama-context.cpp). The
        // counts were checked against its assertions.
        let code = call::quick(|error| unsafe {
            if self.encodes {
                raw::shim_encode(self.as_ptr(), &raw const native, error)
            } else {
                raw::shim_decode(self.as_ptr(), &raw const native, error)
            }
        });
        drop(listed);
        self.decoded(code, &batch.outputs)
    }

    /// The outcome of a decode. `outputs` has a flag for each token.
    pub(super) fn decoded(&mut self, code: Result<i32, Failure>, outputs: &[i8]) -> Result<(), Error> {
        let n_tokens = outputs.len();
        // include/llama.h, llama_decode: 0 success, 1 no slot, 2 aborted, -1 bad batch, below -1 fatal.
        match code {
            Ok(0) => {
                self.outputs.extend_from_slice(outputs);
                if self.outputs_all() {
                    self.outputs.fill(1);
                }
                Ok(())
            }
            Ok(1) => Err(Error::NoKvSlot { n_tokens, n_ctx: self.n_ctx }),
            Ok(2) => {
                self.abort.store(false, Ordering::Relaxed);
                Err(Error::Aborted)
            }
            Ok(code) => {
                let failure =
                    Failure::new(FailureCause::Refused, format!("llama_decode returned {code}"), Captured::default());
                if code != -1 {
                    self.poison(&failure);
                }
                Err(Error::Decode { n_tokens, failure })
            }
            Err(failure) => {
                self.poison(&failure);
                Err(Error::Decode { n_tokens, failure })
            }
        }
    }

    /// Grows the compute buffers for a graph of `n_tokens` tokens in a full context, with the tokens divided evenly
    /// among all sequences. Nothing is computed, and no buffer shrinks.
    ///
    /// llama.cpp itself reserves for `n_ubatch` tokens and for one token of each sequence (llama-context.cpp,
    /// `sched_reserve`). A graph of a size between these two may run on other devices and need more memory: only from
    /// 32 tokens on does a GPU compute with weights that lie on the host. If the context pools its sequences, all of
    /// them get the same number of tokens, so the graph may have fewer than `n_tokens`. If the context computes
    /// [rows](crate::ContextParams::rows), a graph of as many rows is reserved too.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 0 tokens or more than [`n_ubatch`](Self::n_ubatch), and for a model without
    /// data. [`Error::Call`] if a buffer does not fit ([`Error::out_of_memory`] says which); the context is unusable
    /// from then on.
    pub fn reserve(&mut self, n_tokens: u32) -> Result<(), Error> {
        self.check_usable()?;
        if n_tokens == 0 || n_tokens > self.n_ubatch || self.model().is_no_alloc() {
            return Err(Error::parameter(
                "n_tokens",
                n_tokens,
                format!("it must be 1 to n_ubatch ({}), and the model must have data", self.n_ubatch),
            ));
        }
        let n_tokens = if self.pools() {
            // Pooling needs as many rows as tokens. `graph_reserve` in llama-context.cpp would round the number of
            // tokens up to a multiple of the sequences, so it is rounded down here.
            n_tokens - n_tokens % self.n_seq_max.max(1)
        } else {
            n_tokens
        };
        if n_tokens == 0 {
            return Ok(());
        }
        let graphs = if self.rows { &[false, true][..] } else { &[false] };
        graphs.iter().try_for_each(|rows| self.reserve_graph(n_tokens, *rows)).map_err(|failure| {
            self.poison(&failure);
            Error::Call { what: "reserving compute buffers", failure }
        })
    }

    /// Reserves a graph of tokens or of rows. Their number must be 1 to `n_ubatch`.
    pub(super) fn reserve_graph(&mut self, n_tokens: u32, rows: bool) -> Result<(), Failure> {
        call::accepted(
            // SAFETY: the context lives and is borrowed mutably; the caller has checked the number of tokens against
            // its limits.
            |error| unsafe { raw::shim_context_reserve(self.as_ptr(), n_tokens, rows, error) },
            |reserved| *reserved,
        )
        .map(drop)
    }

    /// The logits of token `index` of the last batch; -1 is the last output. The row has one number for each token of
    /// the vocabulary.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if that token was not an output; [`Error::Poisoned`].
    pub fn logits(&mut self, index: i32) -> Result<&[f32], Error> {
        self.check_output(index)?;
        // SAFETY: `index` is an output of the last batch. The row has one number for each token of the vocabulary. It
        // stays valid until the next decode, and the mutable borrow excludes a decode.
        let row = call::quick(|error| unsafe { raw::shim_logits(self.as_ptr(), index, error) })
            .map_err(|failure| Error::Call { what: "reading logits", failure })?;
        if row.is_null() {
            return Err(Error::parameter("index", index, "the last batch has no logits at this index"));
        }
        let length = self.vocab.n_tokens() as usize;
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts(row, length) })
    }

    /// Waits until the devices have finished.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] when a device fails; the context is unusable from then on.
    pub fn synchronize(&mut self) -> Result<(), Error> {
        self.check_usable()?;
        // SAFETY: the context lives and is borrowed mutably.
        call::quick(|error| unsafe { raw::shim_synchronize(self.as_ptr(), error) }).map(drop).map_err(|failure| {
            self.poison(&failure);
            Error::Call { what: "waiting for the devices", failure }
        })
    }

    /// Refuses an index that was not an output of the last batch.
    pub(crate) fn check_output(&self, index: i32) -> Result<(), Error> {
        self.check_usable()?;
        if self.is_output(index) && !self.embeddings {
            Ok(())
        } else {
            Err(Error::parameter("index", index, "the last batch did not request logits at this index"))
        }
    }

    /// Whether every token is an output, even if its flag is not set. This is so in a context that computes embeddings,
    /// and in an encoder with a memory (llama-context.cpp, `encode` and `decode`).
    fn outputs_all(&self) -> bool {
        self.embeddings || (self.encodes && self.has_memory)
    }

    /// Whether the last batch has an output at this index.
    pub(super) fn is_output(&self, index: i32) -> bool {
        match usize::try_from(index) {
            Ok(index) => self.outputs.get(index).is_some_and(|output| *output != 0),
            // llama-context.cpp, output_resolve_row: a negative index counts outputs from the end.
            Err(_) => {
                let outputs = self.outputs.iter().filter(|output| **output != 0).count();
                (index.unsigned_abs() as usize) <= outputs
            }
        }
    }

    /// Number of tokens of the last batch.
    pub(super) fn last_tokens(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the last batch was computed.
    pub(super) fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Refuses a batch of which llama.cpp would pool only a part.
    fn check_embedded(&self, batch: &Batch) -> Result<(), Error> {
        // llama-kv-cache.cpp, init_batch: sequences with separate caches are computed in several graphs if their
        // lengths differ. Recurrent memory computes each whole sequence in one graph.
        let model = self.model();
        let shares = self.kv_unified() || model.is_recurrent() || model.is_hybrid();
        let splits = self.has_memory() && !shares && self.n_seq_max() > 1;
        let first = batch.seqs.first();
        if self.pools() && splits && batch.seqs.iter().any(|seq| Some(seq) != first) {
            return Err(Error::parameter(
                "kv_unified",
                false,
                "only a unified cache can pool several sequences at once",
            ));
        }
        Ok(())
    }

    /// Refuses batches on which llama_decode would fail an assertion (llama-context.cpp, decode) or read out of bounds.
    pub(super) fn check_batch(&self, batch: &Batch) -> Result<(), Error> {
        if self.model().is_no_alloc() {
            return Err(Error::parameter("no_alloc", true, "a model without data cannot compute"));
        }
        let n_tokens = batch.len();
        if n_tokens == 0 {
            return Err(Error::parameter("n_tokens", 0, "a batch must hold at least one token"));
        }
        if n_tokens > self.n_batch as usize {
            return Err(Error::parameter(
                "n_tokens",
                n_tokens,
                format!("it must be at most n_batch ({})", self.n_batch),
            ));
        }
        if self.needs_encoder {
            // llama-graph.cpp asserts that llama_encode was called before.
            return Err(Error::parameter(
                "model",
                self.model().description(),
                "models with an encoder and a decoder are not supported",
            ));
        }
        // llama_encode computes the whole batch in one graph (llama-context.cpp, encode).
        let encodes = self.encodes;
        if (encodes || !self.causal || self.pools()) && n_tokens > self.n_ubatch as usize {
            return Err(Error::parameter(
                "n_tokens",
                n_tokens,
                format!(
                    "this model or pooling computes a batch as one graph, of at most n_ubatch ({}) tokens",
                    self.n_ubatch
                ),
            ));
        }
        let n_outputs = if self.outputs_all() { n_tokens } else { batch.n_outputs() };
        if n_outputs > self.n_outputs_max as usize {
            return Err(Error::parameter(
                "n_outputs",
                n_outputs,
                format!("it must be at most n_outputs_max ({})", self.n_outputs_max),
            ));
        }
        for &token in &batch.tokens {
            self.vocab.check(token)?;
        }
        // The position after the last token must be valid too. Learned positions are rows of a table, and ggml ends the
        // process if a row past the table's end is read (ggml-cpu/ops.cpp, ggml_compute_forward_get_rows).
        let last = match self.n_positions {
            Some(rows) => Position::try_from(rows).unwrap_or(Position::MAX) - 1,
            None => Position::MAX - 1,
        };
        let bad = |position: &&Position| !(0..=last).contains(*position);
        if let Some(position) = batch.positions.iter().find(bad) {
            return Err(Error::parameter("pos", position, format!("it must be 0 to {last}")));
        }
        self.check_embedded(batch)?;
        batch.seqs.iter().try_for_each(|seq| self.check_seq(*seq).and_then(|()| self.check_finished(*seq)))
    }
}
