//! A context: the KV cache, the compute buffers, and decoding.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::batch::Batch;
use crate::context_params::{ContextParams, Mtp, Pooling, check_threads};
use crate::error::{Error, Failure, FailureCause};
use crate::log::Captured;
use crate::model::Model;
use crate::threadpool::Threadpools;
use crate::vocab::Vocab;
use crate::{LoraAdapter, Position, SeqId, raw, shim};

/// A context of a model. It can move between threads; one thread uses it at a time.
pub struct Context {
    raw: NonNull<raw::llama_context>,
    /// The vocabulary, which keeps the model loaded. Every batch is checked against it.
    vocab: Vocab,
    n_ctx: u32,
    n_batch: u32,
    n_ubatch: u32,
    n_seq_max: u32,
    n_outputs_max: u32,
    kv_unified: bool,
    causal: bool,
    has_memory: bool,
    /// Whether batches are encoded. Without a memory llama_decode does the same, except for encoders that have one
    /// (t5encoder).
    encodes: bool,
    /// Rows of the model's table of learned positions, if there is one.
    n_positions: Option<u32>,
    /// How the embeddings of a sequence are combined.
    pub(crate) pooling: Pooling,
    /// Whether decoding needs an encoder's output first.
    needs_encoder: bool,
    pub(crate) embeddings: bool,
    /// Its role in predicting further tokens.
    pub(crate) mtp: Mtp,
    /// The adapters in use, which this keeps alive.
    pub(crate) lora: Vec<(LoraAdapter, f32)>,
    /// The threads that compute. They are freed after the context, whose backend refers to them.
    threadpools: Threadpools,
    /// Whether a control vector was ever set; its memory stays allocated.
    pub(crate) control_vector: bool,
    abort: Arc<AtomicBool>,
    /// Why the context must not be used any more.
    poisoned: Option<String>,
    /// The output flags of the last batch, for checking indices.
    outputs: Vec<i8>,
    /// The number of sequences of each token of a batch (always 1), and the address of each token's sequence. Kept so
    /// that decoding allocates nothing.
    seq_counts: Vec<i32>,
    seq_pointers: Vec<*mut SeqId>,
}

// SAFETY: llama.cpp binds a context to no thread, and `&mut self` serialises calls. The scratch pointers are written
// before every use.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created by llama_init_from_model and freed once, before the model in the next field.
        unsafe { raw::llama_free(self.raw.as_ptr()) };
    }
}

/// Stops a decode that runs on another thread, to cancel a long prompt. The default handle belongs to no context until
/// one [follows](Context::follow_abort_handle) it.
#[derive(Debug, Clone, Default)]
pub struct AbortHandle(Arc<AtomicBool>);

impl AbortHandle {
    /// Makes the current decode, or the next one, return [`Error::Aborted`]. This works while the CPU computes; a GPU
    /// finishes its part of the graph first.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Context {
    /// Creates a context of `model`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for parameters that llama.cpp would abort on, [`Error::ContextInit`] for every other
    /// failure; [`Error::out_of_memory`] says which allocation failed.
    pub fn new(model: &Model, params: ContextParams) -> Result<Self, Error> {
        params.check(model)?;
        let abort = Arc::new(AtomicBool::new(false));

        let mut native = params.to_native();
        native.abort_callback = Some(on_abort_question);
        native.abort_callback_data = Arc::as_ptr(&abort).cast_mut().cast();

        // llama.cpp looks up accelerators in ggml's registry.
        let _unchanged = crate::sim::registry::reading();
        let _listed = model.adapters();
        let context = shim::accepted(
            // SAFETY: the model is loaded; the parameters point to the flag, which the context keeps alive.
            |error| unsafe { raw::shim_context_init(model.as_ptr(), &raw const native, error) },
            |context| !context.is_null(),
        )
        .map_err(|failure| Error::ContextInit { n_ctx: params.n_ctx, failure })?;
        let raw = NonNull::new(context).expect("accepted above");
        // SAFETY: the context lives.
        let (n_ctx, n_batch, n_ubatch, n_seq_max) = unsafe {
            (
                raw::llama_n_ctx(context),
                raw::llama_n_batch(context),
                raw::llama_n_ubatch(context),
                raw::llama_n_seq_max(context),
            )
        };
        // SAFETY: the context lives; the memory is NULL for models without a cache.
        let has_memory = unsafe { !raw::llama_get_memory(context).is_null() };
        let embedding_shape = model.embedding_shape();
        // llama-context.cpp: 0 means n_batch, and models with an encoder always have n_batch.
        let n_outputs_max =
            if params.n_outputs_max == 0 || model.has_encoder() { n_batch } else { params.n_outputs_max };
        let mut context = Self {
            raw,
            n_ctx,
            n_batch,
            n_ubatch,
            n_seq_max,
            n_outputs_max,
            kv_unified: params.kv_unified,
            causal: model.shape().causal,
            has_memory,
            encodes: !has_memory || (model.has_encoder() && !model.has_decoder()),
            n_positions: embedding_shape.n_positions,
            pooling: match params.pooling {
                Pooling::Unspecified => embedding_shape.pooling,
                stated => Some(stated),
            }
            // llama-context.cpp: without any statement there is no pooling.
            .unwrap_or(Pooling::None),
            embeddings: params.embeddings,
            mtp: params.mtp,
            lora: Vec::new(),
            threadpools: Threadpools::default(),
            control_vector: false,
            abort,
            poisoned: None,
            outputs: Vec::new(),
            seq_counts: Vec::new(),
            seq_pointers: Vec::new(),
            needs_encoder: model.has_encoder() && model.has_decoder(),
            vocab: model.vocab(),
        };
        if params.mtp != Mtp::Off {
            context.output_hidden()?;
        }
        if !model.is_no_alloc() {
            context.attach_threads().map_err(|failure| Error::ContextInit { n_ctx: params.n_ctx, failure })?;
        }
        Ok(context)
    }

    /// Attaches a pool of threads for each number of threads that the context's parameters name. Without a pool ggml
    /// starts new threads for each graph.
    fn attach_threads(&mut self) -> Result<(), Failure> {
        let (one, several) = self.threads();
        let (one, several) = (self.threadpools.get(one)?, self.threadpools.get(several)?);
        if !one.is_null() {
            // SAFETY: the context lives and is borrowed mutably, so nothing is computing; both pools outlive it.
            unsafe { raw::llama_attach_threadpool(self.as_ptr(), one, several) };
        }
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *mut raw::llama_context {
        self.raw.as_ptr()
    }

    /// The model of this context.
    pub fn model(&self) -> &Model {
        self.vocab.model()
    }

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Context length in tokens over all sequences, as llama.cpp rounded it.
    pub fn n_ctx(&self) -> u32 {
        self.n_ctx
    }

    /// Context length in tokens of each sequence.
    pub fn n_ctx_seq(&self) -> u32 {
        // SAFETY: the context lives.
        unsafe { raw::llama_n_ctx_seq(self.as_ptr()) }
    }

    /// The most tokens in one decode.
    pub fn n_batch(&self) -> u32 {
        self.n_batch
    }

    /// The most tokens in one graph.
    pub fn n_ubatch(&self) -> u32 {
        self.n_ubatch
    }

    /// The number of sequences.
    pub fn n_seq_max(&self) -> u32 {
        self.n_seq_max
    }

    /// The most outputs in one decode.
    pub fn n_outputs_max(&self) -> u32 {
        self.n_outputs_max
    }

    /// How many copies of a graph may be in flight at once: 1, or 4 with pipeline parallelism. Each copy has its own
    /// compute memory (llama-context.cpp, the constructor).
    pub fn copies(&self) -> u32 {
        // SAFETY: the context lives, and has a scheduler since its creation.
        unsafe { raw::shim_context_copies(self.as_ptr()) }.try_into().unwrap_or(1)
    }

    /// How many tokens a recurrent state can go back; 0 where llama.cpp cannot do that, or the memory is of another
    /// kind.
    pub fn n_rs_seq(&self) -> u32 {
        // SAFETY: the context lives.
        unsafe { raw::llama_n_rs_seq(self.as_ptr()) }
    }

    /// Whether all sequences share one cache.
    pub fn kv_unified(&self) -> bool {
        self.kv_unified
    }

    /// False for models that keep nothing between batches and therefore cannot generate token by token: BERT, LLaDA.
    pub fn has_memory(&self) -> bool {
        self.has_memory
    }

    /// Forgets an abort that was requested and has not taken effect yet.
    pub fn clear_abort(&mut self) {
        self.abort.store(false, Ordering::Relaxed);
    }

    /// A handle that stops a decode from another thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.abort))
    }

    /// Listens to this handle instead of its current one. That may be the handle of a context that this one replaces,
    /// or a new handle, so that holders of an old handle cannot stop the next use.
    pub fn follow_abort_handle(&mut self, handle: AbortHandle) {
        // SAFETY: the context lives and is borrowed mutably, so nothing is computing; the flag is kept alive below.
        unsafe {
            raw::llama_set_abort_callback(
                self.as_ptr(),
                Some(on_abort_question),
                Arc::as_ptr(&handle.0).cast_mut().cast(),
            );
        }
        self.abort = handle.0;
    }

    /// False once a failed call has left the context in an unknown state.
    pub fn is_usable(&self) -> bool {
        self.poisoned.is_none()
    }

    /// Computes the tokens of `batch` and adds them to the KV cache.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidParameter`]: an empty batch, more tokens than `n_batch`, more outputs than `n_outputs_max`, a
    ///   token outside the vocabulary, or an impossible sequence or position. Nothing was computed.
    /// - [`Error::NoKvSlot`]: the cache is full. Nothing was computed.
    /// - [`Error::Aborted`]: an [`AbortHandle`] stopped it. Parts of the batch may be in the cache.
    /// - [`Error::Decode`]: the computation failed; the context is unusable from then on ([`Error::Poisoned`]).
    pub fn decode(&mut self, batch: &Batch) -> Result<(), Error> {
        self.check_usable()?;
        if self.mtp == Mtp::Heads {
            return Err(Error::parameter(
                "mtp",
                "Heads",
                "such a context computes from hidden states too: decode_heads",
            ));
        }
        self.check_batch(batch)?;
        self.compute(batch, std::ptr::null())
    }

    /// Computes a batch that was checked. `hidden` is a row for each token, or null.
    pub(crate) fn compute(&mut self, batch: &Batch, hidden: *const f32) -> Result<(), Error> {
        // Until this succeeds, no logits may be read: llama.cpp still holds those of the previous batch.
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
        let listed = self.vocab.model().adapters();
        // SAFETY: the context lives and is borrowed mutably. Every array has `n_tokens` entries, and the hidden states
        // have as many rows. llama_decode only reads them (it copies into a llama_batch_ext, llama-context.cpp). The
        // counts were checked against its assertions.
        let code = shim::quick(|error| unsafe {
            if self.encodes {
                raw::shim_encode(self.as_ptr(), &raw const native, error)
            } else {
                raw::shim_decode(self.as_ptr(), &raw const native, error)
            }
        });
        drop(listed);
        // include/llama.h, llama_decode: 0 success, 1 no slot, 2 aborted, -1 bad batch, below -1 fatal.
        match code {
            Ok(0) => {
                self.outputs.extend_from_slice(&batch.outputs);
                if self.embeddings {
                    // llama-batch.cpp: in a context of embeddings every token is an output, even if its flag is off.
                    self.outputs.fill(1);
                }
                Ok(())
            }
            Ok(1) => Err(Error::NoKvSlot { n_tokens: batch.len(), n_ctx: self.n_ctx }),
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
                Err(Error::Decode { n_tokens: batch.len(), failure })
            }
            Err(failure) => {
                self.poison(&failure);
                Err(Error::Decode { n_tokens: batch.len(), failure })
            }
        }
    }

    /// Grows the compute buffers for a graph of `n_tokens` at the full length of the context, distributed evenly over
    /// all sequences. It computes nothing, and never shrinks a buffer.
    ///
    /// llama.cpp itself reserves for `n_ubatch` tokens and for one token of each sequence (llama-context.cpp,
    /// `sched_reserve`). A number of tokens between them may be computed by other devices and need more memory: a GPU
    /// takes over the host's weights only from 32 tokens on. Where sequences are pooled, every sequence has the same
    /// number of tokens, and the total is at most `n_tokens`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 0 tokens or more than [`n_ubatch`](Self::n_ubatch). [`Error::Call`] if a buffer
    /// does not fit ([`Error::out_of_memory`] says which); the context is unusable from then on.
    pub fn reserve(&mut self, n_tokens: u32) -> Result<(), Error> {
        self.check_usable()?;
        if n_tokens == 0 || n_tokens > self.n_ubatch || self.model().is_no_alloc() {
            return Err(Error::parameter(
                "n_tokens",
                n_tokens,
                format!("1 to n_ubatch, {}, of a model with data", self.n_ubatch),
            ));
        }
        let n_tokens = if self.pools() {
            // Pooling must have as many rows as there are tokens. `graph_reserve` in llama-context.cpp would otherwise
            // raise the number.
            n_tokens - n_tokens % self.n_seq_max.max(1)
        } else {
            n_tokens
        };
        if n_tokens == 0 {
            return Ok(());
        }
        shim::accepted(
            // SAFETY: the context lives and is borrowed mutably; the number of tokens was checked against its limits.
            |error| unsafe { raw::shim_context_reserve(self.as_ptr(), n_tokens, error) },
            |reserved| *reserved,
        )
        .map(drop)
        .map_err(|failure| {
            self.poison(&failure);
            Error::Call { what: "reserving compute buffers", failure }
        })
    }

    /// The logits of token `index` of the last batch; -1 is the last output. The row has one number for each token of
    /// the vocabulary.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if that token was no output; [`Error::Poisoned`].
    pub fn logits(&mut self, index: i32) -> Result<&[f32], Error> {
        self.check_output(index)?;
        // SAFETY: `index` is an output of the last batch. The row has one number for each token of the vocabulary and
        // stays valid until the next decode, which the mutable borrow rules out.
        let row = shim::quick(|error| unsafe { raw::shim_logits(self.as_ptr(), index, error) })
            .map_err(|failure| Error::Call { what: "reading logits", failure })?;
        if row.is_null() {
            return Err(Error::parameter("index", index, "the last batch has no such logits"));
        }
        let length = self.vocab.n_tokens() as usize;
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts(row, length) })
    }

    /// The numbers of threads that compute a graph of one token, and a graph of several.
    pub fn threads(&self) -> (u32, u32) {
        // SAFETY: the context lives.
        let (one, several) =
            unsafe { (raw::llama_n_threads(self.as_ptr()), raw::llama_n_threads_batch(self.as_ptr())) };
        (one.unsigned_abs(), several.unsigned_abs())
    }

    /// Sets the numbers of threads that compute a graph of one token, and a graph of several, from the next computation
    /// on (llama-context.cpp, `graph_compute`). Setting the current numbers again costs nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 0 threads, or more than ggml supports. [`Error::Call`] if the system starts no
    /// more threads.
    pub fn set_threads(&mut self, one: u32, several: u32) -> Result<(), Error> {
        for (name, threads) in [("n_threads", one), ("n_threads_batch", several)] {
            check_threads(name, threads)?;
        }
        // llama.cpp logs a line at each call.
        if self.threads() != (one, several) {
            // SAFETY: the context lives and is borrowed mutably, so nothing is computing; both numbers are above 0 and
            // within ggml's limit.
            unsafe { raw::llama_set_n_threads(self.as_ptr(), one as i32, several as i32) };
            if !self.model().is_no_alloc() {
                self.attach_threads().map_err(|failure| Error::Call { what: "starting threads", failure })?;
            }
        }
        Ok(())
    }

    /// Waits until the devices have finished.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] when a device fails; the context is unusable from then on.
    pub fn synchronize(&mut self) -> Result<(), Error> {
        self.check_usable()?;
        // SAFETY: the context lives and is borrowed mutably.
        shim::quick(|error| unsafe { raw::shim_synchronize(self.as_ptr(), error) }).map(drop).map_err(|failure| {
            self.poison(&failure);
            Error::Call { what: "waiting for the devices", failure }
        })
    }

    /// Refuses an index that was no output of the last batch.
    pub(crate) fn check_output(&self, index: i32) -> Result<(), Error> {
        self.check_usable()?;
        if self.is_output(index) && !self.embeddings {
            Ok(())
        } else {
            Err(Error::parameter("index", index, "logits were not asked for at this index of the last batch"))
        }
    }

    /// Whether the last batch has an output at this index.
    pub(crate) fn is_output(&self, index: i32) -> bool {
        match usize::try_from(index) {
            Ok(index) => self.outputs.get(index).is_some_and(|output| *output != 0),
            // llama-context.cpp, output_resolve_row: negative indices count outputs from the end.
            Err(_) => {
                let outputs = self.outputs.iter().filter(|output| **output != 0).count();
                (index.unsigned_abs() as usize) <= outputs
            }
        }
    }

    /// Number of tokens of the last batch.
    pub(crate) fn last_tokens(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the last batch was computed.
    pub(crate) fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        match &self.poisoned {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
        }
    }

    pub(crate) fn poison(&mut self, failure: &Failure) {
        self.poisoned = Some(failure.to_string());
    }

    /// Refuses batches on which llama_decode would fail an assertion (llama-context.cpp, decode) or read out of bounds.
    pub(crate) fn check_batch(&self, batch: &Batch) -> Result<(), Error> {
        if self.model().is_no_alloc() {
            return Err(Error::parameter("no_alloc", true, "a model without data computes nothing"));
        }
        let n_tokens = batch.len();
        if n_tokens == 0 {
            return Err(Error::parameter("n_tokens", 0, "a batch holds at least one token"));
        }
        if n_tokens > self.n_batch as usize {
            return Err(Error::parameter("n_tokens", n_tokens, format!("n_batch is {}", self.n_batch)));
        }
        if self.needs_encoder {
            // llama-graph.cpp asserts that llama_encode was called first.
            return Err(Error::parameter(
                "model",
                self.model().description(),
                "decoding needs the encoder's output, which this layer does not compute",
            ));
        }
        // llama_encode takes the batch as one graph and outputs every token (llama-context.cpp, encode).
        let encodes = self.encodes;
        if (encodes || !self.causal || self.pools()) && n_tokens > self.n_ubatch as usize {
            return Err(Error::parameter(
                "n_tokens",
                n_tokens,
                format!("for this model or pooling a batch is one graph, and n_ubatch is {}", self.n_ubatch),
            ));
        }
        let n_outputs = if self.embeddings || encodes { n_tokens } else { batch.n_outputs() };
        if n_outputs > self.n_outputs_max as usize {
            return Err(Error::parameter("n_outputs", n_outputs, format!("n_outputs_max is {}", self.n_outputs_max)));
        }
        for &token in &batch.tokens {
            self.vocab.check(token)?;
        }
        // The position after the last one must be valid too. Learned positions are rows of a table; ggml ends the
        // process on a row past its end (ggml-cpu/ops.cpp, ggml_compute_forward_get_rows).
        let last = match self.n_positions {
            Some(rows) => Position::try_from(rows).unwrap_or(Position::MAX) - 1,
            None => Position::MAX - 1,
        };
        let bad = |position: &&Position| !(0..=last).contains(*position);
        if let Some(position) = batch.positions.iter().find(bad) {
            return Err(Error::parameter("pos", position, format!("0 to {last}")));
        }
        self.check_embedded(batch)?;
        batch.seqs.iter().try_for_each(|seq| self.check_seq(*seq))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("model", self.model())
            .field("n_ctx", &self.n_ctx)
            .field("n_batch", &self.n_batch)
            .field("n_ubatch", &self.n_ubatch)
            .field("n_seq_max", &self.n_seq_max)
            .finish_non_exhaustive()
    }
}

unsafe extern "C" fn on_abort_question(data: *mut c_void) -> bool {
    // SAFETY: the flag belongs to the context that calls back, and outlives it.
    unsafe { &*data.cast::<AtomicBool>() }.load(Ordering::Relaxed)
}
