//! The engine: many requests on one model. The engine's thread computes them together, one in each sequence of the
//! context.
//!
//! In: [`GenerateRequest`]s from any thread or task. Out: a [`TokenStream`] for each. Requests wait in a bounded queue
//! (`queue`), join and leave between two tokens (`driver`), and are admitted if the cache has room for them (`order`).

mod driver;
mod order;
mod queue;
mod texts;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use driver::Driver;
use llama_sys::Token;
use queue::Queue;
use texts::Texts;

use super::local::LocalSession;
use super::metrics::Metrics;
use super::places::{Places, Shutdown};
use super::remote::{Reader, Start};
use super::thread::{AbortAndJoin, RunningThread, block_on};
use super::token_stream::TokenStream;
use crate::decode::error::Error;
use crate::decode::request::GenerateRequest;
use crate::decode::stats::Replaced;
use crate::decode::step::PromptChunk;
use crate::load::{AbortHandle, Model};

/// An engine computes many requests at once on a loaded model (continuous batching). Clones are handles of the same
/// engine.
///
/// The engine uses the model's context until its last handle is dropped. Unfinished texts are then cancelled.
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
///   [chunk](EngineBuilder::prompt_chunk) of the prompts. Prompts are computed in the order in which they would be
///   complete if all waiting prompts shared the time evenly. So short prompts come first, equally long prompts in the
///   order of their arrival, and no prompt is complete later than if the time were shared evenly.
/// - **Prefixes.** A prompt reuses the tokens that the context already holds, unless [`GenerateRequest::cache_prompt`]
///   is off.
/// - **Readers.** A text whose reader is [far behind](EngineBuilder::ahead) gives its sequence to waiting texts, and
///   resumes when the reader catches up. A slow reader does not delay other texts.
/// - **One cache for all** (`kv_unified`): a text is admitted when the cache has room for its expected length. When the
///   cache runs out, the newest text returns to the queue and is computed again later, so its tokens may differ because
///   of rounding. A text ends for lack of room only if it fills the whole context.
/// - **Isolation.** If the model is in a [worker](crate::Isolation::Process), the engine behaves in the same way,
///   except that the model is not re-placed while texts run. [`OnDeath`](crate::OnDeath) decides what happens to the
///   texts when the worker dies.
/// - **Errors.** If a computation fails, the running texts end with its error, and the waiting texts stay. If the next
///   token of one text cannot be chosen ([`Error::NoTokenAllowed`], [`Error::NotAllowed`]) only that text ends.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    texts: Texts,
    /// The guard is dropped with the last handle. The guard then cancels unfinished texts and waits for the end of the
    /// thread.
    guard: AbortAndJoin,
}

impl Engine {
    /// Starts an engine with the defaults of its [builder](Self::builder).
    ///
    /// # Errors
    ///
    /// The errors of [`EngineBuilder::start`].
    pub fn new(model: &Model) -> Result<Self, Error> {
        Self::builder(model).start()
    }

    /// Configures an engine: the length of its queue, how far a text is computed ahead of its reader, and how prompts
    /// are split.
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
    /// [`Error::QueueFull`], and the errors of [`submit`](Self::submit).
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
        self.inner.texts.submit(generate, &[], true)
    }

    /// Queues a request like [`try_submit`](Self::try_submit). The text continues after the tokens that an earlier
    /// process generated for it.
    pub(crate) fn go_on(&self, generate: GenerateRequest, so_far: &[Token]) -> Result<TokenStream, Error> {
        wait(self.inner.texts.submit(generate, so_far, false))
    }

    /// The stream of a single request in a worker. When the stream has been dropped, the worker's context is free.
    pub(crate) fn stream_one(generate: GenerateRequest) -> Result<TokenStream, Error> {
        let builder = EngineBuilder { prompt_chunk: PromptChunk::Batch, ..Self::builder(&generate.model) };
        let engine = builder.start_in_worker()?;
        let cache = generate.spec.cache_prompt.unwrap_or(false);
        let stream = engine.submit(generate.cache_prompt(cache))?;
        Ok(match Arc::into_inner(engine.inner) {
            Some(inner) => stream.guarded_by(inner.guard),
            None => stream,
        })
    }

    /// Refuses further requests and returns at once. A second call can only make the engine end sooner.
    pub fn close(&self, how: Shutdown) {
        self.inner.texts.close(how);
    }

    /// Refuses further requests and waits until the last text has ended. The context is then free.
    pub fn shutdown(&self, how: Shutdown) {
        self.inner.texts.close(how);
        self.inner.guard.thread().join();
    }

    /// Refuses further requests. Accepted requests may finish within `time`; after that, the others are cancelled.
    /// Returns whether all requests finished. The context is then free.
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
        self.inner.texts.close(Shutdown::Finish);
        let is_finished = self.inner.guard.thread().wait(time);
        self.shutdown(Shutdown::Cancel);
        is_finished
    }

    /// The maximum number of requests at once, both running and waiting.
    pub fn capacity(&self) -> usize {
        self.inner.texts.capacity()
    }

    /// Calls `read` with the vocabulary. The model cannot be re-placed during the call, so `read` must not call other
    /// methods of the model. The vocabulary of a model in a worker process is read from the file on first use.
    ///
    /// # Errors
    ///
    /// [`Error`] when a failed re-placement has left the model unloaded.
    pub fn with_vocab<T>(&self, read: impl FnOnce(&llama_sys::Vocab) -> T) -> Result<T, Error> {
        Ok(self.model().with_vocab(read)?)
    }

    pub(crate) fn model(&self) -> &Model {
        self.inner.texts.model()
    }

    /// The numbers of waiting and of running requests, and the number of tokens generated so far.
    pub fn metrics(&self) -> Metrics {
        self.inner.texts.metrics()
    }

    /// The outcome of the last requested re-placement ([`Model::request_replace`]). If the re-placement failed and left
    /// the model unloaded, the running texts have ended, and the engine refuses requests until the model is loaded
    /// again. A waiting request that is too long for the new context ends with [`Error::ContextTooSmall`] when its turn
    /// comes.
    pub fn last_replaced(&self) -> Option<Result<Replaced, Error>> {
        self.inner.texts.last_replaced()
    }

    /// Starts the thread that computes the texts. `abort` stops its present computation.
    fn run(texts: Texts, abort: AbortHandle, run: impl FnOnce() + Send + 'static) -> Result<Self, Error> {
        let thread = RunningThread::spawn("autoplace-engine", run)?;
        let cancelled = texts.clone();
        let cancel = AbortHandle::new(move || cancelled.close(Shutdown::Cancel));
        Ok(Self { inner: Arc::new(Inner { texts, guard: AbortAndJoin::new(abort, cancel, thread) }) })
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
    /// Maximum number of waiting requests, in addition to the running requests. Default 64.
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = requests;
        self
    }

    /// The maximum number of pieces that are computed ahead of a text's reader. At this number, the text is suspended.
    /// It resumes when half of the pieces have been read. Default 1024, so that most answers are complete before they
    /// are read.
    pub fn ahead(mut self, pieces: usize) -> Self {
        self.ahead = pieces;
        self
    }

    /// Maximum number of prompt tokens per step, over all texts, in addition to one token of each text that generates.
    /// A smaller number delays other texts less, and makes long prompts take longer. If a batch has fewer tokens, the
    /// number is that of a batch, and a warning is logged. Default: as many as still fit in `n_ubatch`.
    pub fn prompt_chunk(mut self, tokens: usize) -> Self {
        self.prompt_chunk = PromptChunk::Tokens(tokens.max(1));
        self
    }

    /// Takes the model's context or, for a model in a worker, the worker, and starts the engine's thread.
    ///
    /// # Errors
    ///
    /// The errors of [`Model::session`]; [`Error::Worker`] when the model's worker process has died or cannot be
    /// started again; [`Error::Thread`] when the thread cannot start.
    pub fn start(self) -> Result<Engine, Error> {
        let plan = self.model.placement();
        let batch = plan.context.n_batch.min(plan.context.n_ctx) as usize;
        if let PromptChunk::Tokens(tokens) = self.prompt_chunk
            && tokens > batch
        {
            tracing::warn!(
                target: "autoplace::generate",
                "{}: a batch has {batch} tokens, so a chunk of the prompts has {batch} instead of {tokens}",
                plan.model.name
            );
        }
        let n_seq_max = plan.context.n_seq_max;
        if n_seq_max <= 1 {
            tracing::warn!(
                target: "autoplace::generate",
                n_seq_max,
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
        let link = Arc::clone(reader.link());
        let texts = Texts::in_worker(Arc::clone(&link), Places::new(&self.model, self.queue, None));
        Engine::run(texts, AbortHandle::new(move || link.abort()), move || reader.run())
    }

    /// Starts an engine in this process. The handle stops its computation.
    fn start_local(self) -> Result<(Engine, AbortHandle), Error> {
        let mut session = LocalSession::open(&self.model)?;
        session.work.prompt_chunk = self.prompt_chunk;
        let abort = session.abort_handle();
        let room = session.room();
        let places = Places::new(&self.model, self.queue, Some(room.sequences));
        let queue = Arc::new(Queue::new(&self.model, places, room, self.ahead));
        let driver = Driver::new(Arc::clone(&queue), session, self.prompt_chunk);
        let texts = Texts::local(queue);
        Ok((Engine::run(texts, abort.clone(), move || driver.run())?, abort))
    }

    /// Starts an engine in a worker, for the texts of the parent process. The parent limits the queue, so this engine
    /// has no limit.
    pub(crate) fn serve(model: &Model, start: Start) -> Result<(Engine, AbortHandle), Error> {
        let Start { ahead, prompt_chunk, .. } = start;
        Self { model: model.clone(), queue: usize::MAX, ahead, prompt_chunk }.start_local()
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    block_on(|context| future.as_mut().poll(context))
}
