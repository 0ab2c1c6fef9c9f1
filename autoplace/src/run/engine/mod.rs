//! Many requests on one model. The engine's thread computes them together, one per sequence of the context.
//!
//! In: [`GenerateRequest`]s from any thread or task. Out: a [`TokenStream`] for each. Requests wait in a bounded queue
//! (`queue`), join and leave between two tokens (`driver`), and are admitted as far as the cache has room (`order`).

mod driver;
mod order;
mod queue;

pub(crate) use queue::Place;

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use driver::Driver;
use llama_sys::Token;
use queue::Shared;
use serde::{Deserialize, Serialize};

use super::channel::{block_on, spawn};
use super::local::LocalSession;
use super::remote::{Reader, Start};
use super::token_stream::TokenStream;
use crate::decode::error::Error;
use crate::decode::request::GenerateRequest;
use crate::decode::stats::Replaced;
use crate::decode::step::PromptChunk;
use crate::load::{AbortHandle, Model};
use crate::lock;

/// An engine computes many requests at once on a loaded model (continuous batching). Clones are handles of the same
/// engine.
///
/// The engine holds the model's context until its last handle is dropped. That drop cancels unfinished texts.
///
/// ```no_run
/// use autoplace::{Model, generate::Engine};
/// let model = Model::builder("model.gguf").parallel(8, 4096).load()?;
/// let engine = Engine::new(&model)?;
/// std::thread::scope(|scope| {
///     for prompt in ["Once upon a time", "In the beginning"] {
///         let engine = engine.clone();
///         let generate = model.generate(prompt).max_tokens(64);
///         scope.spawn(move || {
///             for text in engine.submit(generate)? {
///                 print!("{}", text?);
///             }
///             Ok::<(), autoplace::generate::Error>(())
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - **Order.** Texts join and leave between two tokens. A step computes the next token of every text and a
///   [chunk](EngineBuilder::prompt_chunk) of the prompts. The first prompt is the one that would be complete first if
///   all waiting prompts shared the time evenly: short prompts come first, equal ones in the order of their arrival,
///   and none is complete later than by even sharing.
/// - **Prefixes.** A prompt reuses the tokens that the context holds already, unless [`GenerateRequest::cache_prompt`]
///   is off.
/// - **Readers.** A text whose reader is [far behind](EngineBuilder::ahead) gives its sequence to waiting texts, and
///   resumes when the reader catches up. A slow reader delays no other text.
/// - **One cache for all** (`kv_unified`): a text is admitted when the cache has room for its expected length. When the
///   cache runs out, the newest text returns to the queue and is computed again later, so its tokens may differ by
///   rounding. A text ends for lack of room only if it fills the whole context.
/// - **Isolation.** A model in a [worker](crate::Isolation::Process) behaves the same, except that it is not re-placed
///   while texts run. [`OnDeath`](crate::OnDeath) decides about the texts when the worker dies.
/// - **Errors.** A computation that fails ends the running texts, and no waiting one, with its error. A failure to
///   choose the next token of one text ([`Error::NoTokenAllowed`], [`Error::NotAllowed`]) ends that text alone.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Arc<Ended>,
}

/// Tells whether the engine's thread has ended.
#[derive(Debug, Default)]
struct Ended {
    is_so: Mutex<bool>,
    changed: Condvar,
}

/// Marks the thread as ended when dropped, also after a panic.
struct EndsThread(Arc<Ended>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        *lock(&self.0.is_so) = true;
        self.0.changed.notify_all();
    }
}

/// Decides about unfinished texts when an engine shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shutdown {
    /// Finishes all accepted texts.
    Finish,
    /// Finishes the texts that run, and those that were suspended. The other texts end with [`Error::EngineEnded`].
    FinishBegun,
    /// Ends all texts with [`Error::EngineEnded`].
    Cancel,
}

impl Engine {
    /// Starts an engine with the defaults of its [builder](Self::builder).
    ///
    /// # Errors
    ///
    /// As [`EngineBuilder::start`].
    pub fn new(model: &Model) -> Result<Self, Error> {
        Self::builder(model).start()
    }

    /// Configures an engine: the length of its queue, how far a text runs ahead of its reader, and how prompts are
    /// split.
    pub fn builder(model: &Model) -> EngineBuilder {
        EngineBuilder { model: model.clone(), queue: 64, ahead: 1024, prompt_chunk: PromptChunk::Graph }
    }

    /// Checks and queues a request, and waits while the queue is full. Waiting callers are served in order. The check
    /// runs on the calling thread: it tokenizes the prompt, compiles a constraint, and waits while the model is being
    /// re-placed.
    ///
    /// # Errors
    ///
    /// The errors of [`GenerateRequest::stream`] except [`Error::Busy`]; also [`Error::OtherModel`] and
    /// [`Error::EngineEnded`].
    pub fn submit(&self, generate: GenerateRequest) -> Result<TokenStream, Error> {
        wait(self.submit_async(generate))
    }

    /// Queues a request if the queue has room.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`], and as [`submit`](Self::submit).
    pub fn try_submit(&self, generate: GenerateRequest) -> Result<TokenStream, Error> {
        self.go_on(generate, &[])
    }

    /// Queues a request. The future waits while the queue is full and works in any async runtime. The request is
    /// checked before this function returns; with a model in a worker process, the future waits for the worker's check
    /// too. Dropping the future withdraws the request.
    ///
    /// # Errors
    ///
    /// The future fails as [`submit`](Self::submit) does.
    pub fn submit_async(
        &self,
        generate: GenerateRequest,
    ) -> impl Future<Output = Result<TokenStream, Error>> + Send + use<> {
        self.inner.shared.submit(generate, &[], true)
    }

    /// Queues a request as [`try_submit`](Self::try_submit) does, after the tokens that an earlier process generated
    /// for the text.
    pub(crate) fn go_on(&self, generate: GenerateRequest, so_far: &[Token]) -> Result<TokenStream, Error> {
        wait(self.inner.shared.submit(generate, so_far, false))
    }

    /// An engine of the model's worker for a single text.
    pub(crate) fn of_one_text(model: &Model) -> Result<Self, Error> {
        EngineBuilder { prompt_chunk: PromptChunk::Batch, ..Self::builder(model) }.start_in_worker()
    }

    /// A handle that stops a worker's computation.
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.inner.shared.abort_handle()
    }

    /// Refuses further requests and returns at once. A second call can only bring the end forward.
    pub fn close(&self, how: Shutdown) {
        self.inner.shared.close(how);
    }

    /// Refuses further requests and waits until the last text has ended. The context is then free.
    pub fn shutdown(&self, how: Shutdown) {
        self.inner.shared.close(how);
        self.inner.join();
    }

    /// Refuses further requests, gives the accepted ones `time` to finish, and cancels the rest. Returns whether all
    /// finished. The context is then free.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// # let engine = autoplace::generate::Engine::new(&model)?;
    /// if !engine.shutdown_within(Duration::from_secs(30)) {
    ///     eprintln!("some answers were cut off");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown_within(&self, time: Duration) -> bool {
        self.inner.shared.close(Shutdown::Finish);
        let is_finished = self.inner.ended.wait(time);
        self.shutdown(Shutdown::Cancel);
        is_finished
    }

    /// Maximum number of requests at once: running and waiting.
    pub fn capacity(&self) -> usize {
        self.inner.shared.capacity()
    }

    /// Gives `read` the vocabulary. The model cannot be re-placed during the call, so `read` must not ask the model for
    /// anything else. The vocabulary of a model in a worker process is read from the file on first use.
    ///
    /// # Errors
    ///
    /// [`Error`] when a failed re-placement has left the model unloaded.
    pub fn with_vocab<T>(&self, read: impl FnOnce(&llama_sys::Vocab) -> T) -> Result<T, Error> {
        Ok(self.model().with_vocab(read)?)
    }

    pub(crate) fn model(&self) -> &Model {
        &self.inner.shared.model
    }

    /// Numbers of waiting and running requests, and tokens generated so far.
    pub fn metrics(&self) -> Metrics {
        self.inner.shared.metrics()
    }

    /// The outcome of the last requested re-placement ([`Model::request_replace`]). A failure that leaves the model
    /// unloaded ends the running texts, and the engine refuses requests until the model is loaded again. A waiting
    /// request that is too long for the new context ends with [`Error::ContextTooSmall`] when its turn comes.
    pub fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        self.inner.shared.last_replaced()
    }

    fn run(shared: Arc<Shared>, run: impl FnOnce() + Send + 'static) -> Result<Self, Error> {
        let ended = Arc::new(Ended::default());
        let ends = EndsThread(Arc::clone(&ended));
        let thread = spawn("autoplace-engine", move || {
            let _ends = ends;
            run();
        })?;
        Ok(Self { inner: Arc::new(Inner { shared, thread: Mutex::new(Some(thread)), ended }) })
    }
}

impl Ended {
    /// Waits for the end of the thread, at most `time`. Returns whether the thread has ended.
    fn wait(&self, time: Duration) -> bool {
        let is_so = lock(&self.is_so);
        let waited = self.changed.wait_timeout_while(is_so, time, |is_so| !*is_so);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Inner {
    fn join(&self) {
        let mut thread = lock(&self.thread);
        // A waker of the application may hold the last handle, and the engine's own thread may drop it.
        let is_other = |thread: &mut JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = thread.take_if(is_other) {
            // The callers have already received the error of a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close(Shutdown::Cancel);
        self.join();
    }
}

/// Settings of an [`Engine`].
#[derive(Debug, Clone)]
#[must_use = "nothing runs until `start` is called"]
pub struct EngineBuilder {
    model: Model,
    queue: usize,
    ahead: usize,
    prompt_chunk: PromptChunk,
}

impl EngineBuilder {
    setters! {
        /// Maximum number of waiting requests, in addition to the running ones. Default 64.
        queue(requests: usize) queue = requests;
        /// Maximum number of pieces that a text runs ahead of its reader. A suspended text resumes when half of them
        /// have been read. Default 1024, which lets most answers finish before they are read.
        ahead(pieces: usize) ahead = pieces;
        /// Maximum number of prompt tokens per step, over all texts, in addition to one token of each text that
        /// generates. A smaller number delays other texts less, and makes long prompts take longer. Default: the rest
        /// of `n_ubatch`.
        prompt_chunk(tokens: usize) prompt_chunk = PromptChunk::Tokens(tokens.max(1));
    }

    /// Takes the model's context, or its worker, and starts the engine's thread.
    ///
    /// # Errors
    ///
    /// As [`Model::session`]; [`Error::Worker`] when the model's worker process has died or cannot be started again;
    /// [`Error::Thread`] when the thread cannot start.
    pub fn start(self) -> Result<Engine, Error> {
        if self.model.placement().context.n_seq_max <= 1 {
            tracing::warn!(
                target: "autoplace::generate",
                "the engine has one sequence, and computes one request after the other: load with `parallel(n, tokens_each)`"
            );
        }
        if self.model.is_in_worker() {
            return self.start_in_worker();
        }
        self.start_local().map(|(engine, _)| engine)
    }

    fn start_in_worker(self) -> Result<Engine, Error> {
        let reader = Reader::open(&self.model, self.ahead, self.prompt_chunk)?;
        Engine::run(Arc::new(Shared::for_worker(reader.link(), self.queue)), move || reader.run())
    }

    /// Starts an engine in this process. The handle stops its computation.
    fn start_local(self) -> Result<(Engine, AbortHandle), Error> {
        let mut session = LocalSession::open(&self.model)?;
        session.work.prompt_chunk = self.prompt_chunk;
        let abort = session.abort_handle();
        let shared = Arc::new(Shared::new(&self.model, session.room(), self.queue, self.ahead));
        let driver = Driver::new(Arc::clone(&shared), session, self.prompt_chunk);
        Ok((Engine::run(shared, move || driver.run())?, abort))
    }

    /// Starts an engine in a worker, for the texts of the parent process. The parent limits the queue, so this one has
    /// no limit.
    pub(crate) fn serve(model: &Model, start: Start) -> Result<(Engine, AbortHandle), Error> {
        let Start { ahead, prompt_chunk, .. } = start;
        Self { model: model.clone(), queue: usize::MAX, ahead, prompt_chunk }.start_local()
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    block_on(|context| future.as_mut().poll(context))
}

/// The present load of an [`Engine`](crate::generate::Engine), and its totals since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Waiting texts: new requests and suspended texts.
    pub queued: usize,
    /// Texts with a sequence. With a model in a worker: texts with their first token.
    pub running: usize,
    /// Generated tokens, without end-of-generation tokens.
    pub generated_tokens: u64,
    /// Tokens of all prompts begun.
    pub prompt_tokens: u64,
    /// Prompt tokens that the context held already.
    pub cached_tokens: u64,
}
