//! A context: the KV cache, the compute buffers, and decoding.
//!
//! In: a [`Model`], [`ContextParams`] and batches of tokens. Out: logits or embeddings, saved states, and the number of
//! bytes that the context takes.

mod adapters;
mod batch;
mod decode;
mod embeddings;
mod kv_cache;
mod memory;
mod mtp;
mod params;
mod rope;
mod row_piece;
mod rows;
mod state;
mod state_rows;
mod stream;
mod unfinished;
mod written_rows;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::raw;
use crate::safe::call::{self, Error, Failure};
use crate::safe::device::{ThreadWait, Threadpools, registry};
use crate::safe::model::{LoraAdapter, Model, Pooling, Vocab};
use params::check_threads;

pub use batch::{Batch, Position, SeqId};
pub use memory::{BufferUse, ComputeBuffers, MemoryBreakdown, MoeCacheUses};
pub use params::{ContextParams, FlashAttention, Mtp};
pub use rope::{Rope, RopeScaling};
pub use row_piece::RowPiece;
pub use rows::Rows;
pub use state::State;
pub use state_rows::{RowShape, StateRows};

/// A context of a model. It can move between threads, but only one thread may use it at a time.
pub struct Context {
    raw: NonNull<raw::llama_context>,
    /// No other context of this process has this number.
    serial: u64,
    /// The vocabulary, which keeps the model loaded. The tokens of every batch are checked against it.
    vocab: Vocab,
    n_ctx: u32,
    n_batch: u32,
    n_ubatch: u32,
    n_seq_max: u32,
    n_outputs_max: u32,
    kv_unified: bool,
    causal: bool,
    has_memory: bool,
    /// Whether batches are computed with `llama_encode`. For a model without a memory, `llama_decode` calls
    /// `llama_encode` anyway. But some encoders have a memory (t5encoder).
    encodes: bool,
    /// The number of rows in the model's table of learned positions, if there is such a table.
    n_positions: Option<u32>,
    /// How the embeddings of a sequence are combined.
    pooling: Pooling,
    /// Whether an encoder must run before the first decode.
    needs_encoder: bool,
    embeddings: bool,
    /// The context's role in predicting further tokens.
    mtp: Mtp,
    /// Whether there is room for graphs of rows.
    rows: bool,
    /// The adapters in use, which the context keeps alive.
    lora: Vec<(LoraAdapter, f32)>,
    /// The threads that compute for this context. The context's backend refers to them, so they are freed after the
    /// context.
    threadpools: Threadpools,
    thread_wait: ThreadWait,
    /// How often the cache of experts was used, if there is such a cache. llama.cpp writes here while it computes.
    moe_counts: Option<Box<UnsafeCell<raw::shim_moe_counts>>>,
    /// Whether a control vector was ever set. Its memory is never freed before the context.
    control_vector: bool,
    abort: Arc<AtomicBool>,
    /// The sequences that are restored only partly.
    unfinished: Vec<unfinished::Unfinished>,
    /// Why the context must not be used any more.
    poisoned: Option<String>,
    /// The output flags of the last batch. Indices are checked against them.
    outputs: Vec<i8>,
    /// The number of sequences of each token of a batch (always 1), and the address of each token's sequence. These
    /// lists are kept so that decoding allocates nothing.
    seq_counts: Vec<i32>,
    seq_pointers: Vec<*mut SeqId>,
}

// SAFETY: llama.cpp binds a context to no thread, and `&mut self` serialises calls. The scratch pointers are written
// before every use. The pointers to tensors in `unfinished` are those of this context's memory, and are used only with
// the context.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created by llama_init_from_model and freed once, before the model in the next field.
        unsafe { raw::llama_free(self.raw.as_ptr()) };
    }
}

/// Stops a decode that runs on another thread, to cancel a long prompt. A default handle belongs to no context until a
/// context [follows](Context::follow_abort_handle) it.
#[derive(Debug, Clone, Default)]
pub struct AbortHandle(Arc<AtomicBool>);

impl AbortHandle {
    /// Makes the current decode, or the next one, return [`Error::Aborted`]. A CPU stops soon; a GPU first finishes its
    /// part of the graph.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Context {
    /// Creates a context of `model`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for parameters with which llama.cpp would end the process. [`Error::ContextInit`]
    /// for every other failure; [`Error::out_of_memory`] says which allocation failed.
    pub fn new(model: &Model, params: ContextParams) -> Result<Self, Error> {
        params.check(model)?;
        let abort = Arc::new(AtomicBool::new(false));

        let mut native = params.to_native();
        native.abort_callback = Some(on_abort_question);
        native.abort_callback_data = Arc::as_ptr(&abort).cast_mut().cast();

        // While this guard exists, ggml's registry does not change. llama.cpp looks up accelerators in the registry.
        let _unchanged = registry::reading();
        let _listed = model.adapters();
        let context = call::accepted(
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
        static CONTEXTS: AtomicU64 = AtomicU64::new(1);
        let mut context = Self {
            raw,
            serial: CONTEXTS.fetch_add(1, Ordering::Relaxed),
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
            // llama-context.cpp: if neither the parameters nor the model state a pooling, there is none.
            .unwrap_or(Pooling::None),
            embeddings: params.embeddings,
            mtp: params.mtp,
            rows: params.rows,
            lora: Vec::new(),
            threadpools: Threadpools::default(),
            thread_wait: ThreadWait::default(),
            moe_counts: (params.moe_cache_size > 0)
                .then(|| Box::new(UnsafeCell::new(raw::shim_moe_counts { ctx: context, hits: 0, misses: 0 }))),
            control_vector: false,
            abort,
            unfinished: Vec::new(),
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
            let pools = context.thread_pools(context.threads(), ThreadWait::default());
            let pools = pools.map_err(|failure| Error::ContextInit { n_ctx: params.n_ctx, failure })?;
            context.attach(pools);
            if params.rows {
                let most = n_ubatch.min(n_ctx);
                context
                    .reserve_graph(most, true)
                    .map_err(|failure| Error::ContextInit { n_ctx: params.n_ctx, failure })?;
            }
        }
        Ok(context)
    }

    /// The pools for a graph of one token and for a graph of several tokens, which are started if necessary; NULL if
    /// nothing is ever computed, or if OpenMP runs the threads.
    fn thread_pools(
        &mut self,
        (one, several): (u32, u32),
        wait: ThreadWait,
    ) -> Result<[raw::ggml_threadpool_t; 2], Failure> {
        if self.model().is_no_alloc() {
            return Ok([std::ptr::null_mut(); 2]);
        }
        Ok([self.threadpools.get(one, wait)?, self.threadpools.get(several, wait)?])
    }

    /// Attaches a pool for a graph of one token, and a pool for a graph of several tokens. Without a pool ggml starts
    /// new threads for each graph.
    fn attach(&mut self, [one, several]: [raw::ggml_threadpool_t; 2]) {
        if !one.is_null() {
            // SAFETY: the context lives and is borrowed mutably, so nothing is computing; both pools outlive it.
            unsafe { raw::llama_attach_threadpool(self.as_ptr(), one, several) };
        }
    }

    /// Reserves the graphs with their hidden states as outputs. The caller must hold the lock on the model's list of
    /// adapters. Do not lock the list again in here. The second lock would wait for a thread that wants to change the
    /// list, and that thread waits for the caller's lock.
    fn output_hidden(&mut self) -> Result<(), Error> {
        // A trunk outputs the hidden states of all tokens. Heads output only those from which a draft continues.
        let outputs_only = self.mtp == Mtp::Heads;
        let reserved = call::accepted(
            // SAFETY: the context lives and is borrowed mutably.
            |error| unsafe { raw::shim_context_output_hidden(self.as_ptr(), outputs_only, error) },
            |reserved| *reserved,
        );
        reserved.map(drop).map_err(|failure| Error::ContextInit { n_ctx: self.n_ctx(), failure })
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

    /// Maximum number of tokens in one decode.
    pub fn n_batch(&self) -> u32 {
        self.n_batch
    }

    /// Whether buffers are also reserved for graphs of [rows](ContextParams::rows).
    pub fn reserves_rows(&self) -> bool {
        self.rows
    }

    /// Maximum number of tokens in one graph.
    pub fn n_ubatch(&self) -> u32 {
        self.n_ubatch
    }

    /// The number of sequences.
    pub fn n_seq_max(&self) -> u32 {
        self.n_seq_max
    }

    /// Maximum number of outputs in one decode.
    pub fn n_outputs_max(&self) -> u32 {
        self.n_outputs_max
    }

    /// Maximum number of copies of a graph that are computed at the same time: 1, or 4 with pipeline parallelism. Each
    /// copy has its own compute memory (llama-context.cpp, the constructor).
    pub fn copies(&self) -> u32 {
        // SAFETY: the context lives, and has a scheduler since its creation.
        unsafe { raw::shim_context_copies(self.as_ptr()) }.try_into().unwrap_or(1)
    }

    /// By how many tokens a recurrent state can go back; 0 if llama.cpp does not support that, or the memory is of
    /// another kind.
    pub fn n_rs_seq(&self) -> u32 {
        // SAFETY: the context lives.
        unsafe { raw::llama_n_rs_seq(self.as_ptr()) }
    }

    /// Whether all sequences share one cache.
    pub fn kv_unified(&self) -> bool {
        self.kv_unified
    }

    /// Whether the context has a memory. A model without memory (BERT, LLaDA) keeps nothing between batches, and so
    /// cannot generate token by token.
    pub fn has_memory(&self) -> bool {
        self.has_memory
    }

    /// Cancels an abort that was requested and has not yet taken effect.
    pub fn clear_abort(&mut self) {
        self.abort.store(false, Ordering::Relaxed);
    }

    /// A handle with which another thread can stop a decode.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.abort))
    }

    /// Makes the context obey this handle instead of its current one. If this context replaces another one, pass the
    /// other context's handle. If holders of an old handle must not stop the next use, pass a new handle.
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

    /// The numbers of threads for a graph of one token, and for a graph of several tokens.
    pub fn threads(&self) -> (u32, u32) {
        // SAFETY: the context lives.
        let (one, several) =
            unsafe { (raw::llama_n_threads(self.as_ptr()), raw::llama_n_threads_batch(self.as_ptr())) };
        (one.unsigned_abs(), several.unsigned_abs())
    }

    /// Sets the numbers of threads for a graph of one token, and for a graph of several tokens, and how these threads
    /// wait for each other (with OpenMP, its runtime decides that; where
    /// [`BuildInfo::threads_sleep`](crate::BuildInfo::threads_sleep) is false, ggml's threads always spin). This
    /// applies from the next computation on (llama-context.cpp, `graph_compute`). It costs nothing to set the current
    /// values again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for 0 threads, or more than ggml supports. [`Error::Call`] if the system cannot
    /// start more threads.
    pub fn set_threads(&mut self, one: u32, several: u32, wait: ThreadWait) -> Result<(), Error> {
        for (name, threads) in [("n_threads", one), ("n_threads_batch", several)] {
            check_threads(name, threads)?;
        }
        // llama.cpp logs a line at each call.
        if self.threads() != (one, several) || self.thread_wait != wait {
            // The pools come first: if their threads cannot start, nothing has changed.
            let pools = self.thread_pools((one, several), wait);
            let pools = pools.map_err(|failure| Error::Call { what: "starting threads", failure })?;
            self.thread_wait = wait;
            // SAFETY: the context lives and is borrowed mutably, so nothing is computing; both numbers are above 0 and
            // within ggml's limit.
            unsafe { raw::llama_set_n_threads(self.as_ptr(), one as i32, several as i32) };
            self.attach(pools);
        }
        Ok(())
    }

    /// Whether the context yields embeddings instead of logits.
    pub fn embeds(&self) -> bool {
        self.embeddings
    }

    /// How the embeddings of a sequence are combined. The parameters decide; if they do not state the pooling, the
    /// model decides; if the model does not state it either, there is no pooling. Never [`Pooling::Unspecified`].
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Whether the context yields one vector for each sequence.
    fn pools(&self) -> bool {
        self.embeddings && self.pooling != Pooling::None
    }

    fn check_usable(&self) -> Result<(), Error> {
        match &self.poisoned {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
        }
    }

    fn poison(&mut self, failure: &Failure) {
        self.poisoned = Some(failure.to_string());
    }

    /// Refuses a sequence that the context does not have.
    fn check_seq(&self, seq: SeqId) -> Result<(), Error> {
        if u32::try_from(seq).is_ok_and(|seq| seq < self.n_seq_max()) {
            Ok(())
        } else {
            Err(Error::parameter("seq_id", seq, format!("the context has {} sequences", self.n_seq_max())))
        }
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
