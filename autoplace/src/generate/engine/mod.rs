//! Many requests on one model: a thread of its own computes them together, as many at once as the
//! context has sequences.
//!
//! In: [`Generate`]s, of any thread or task. Out: a [`TokenStream`] for each. Requests wait in a bounded queue
//! (`queue`), come and go between two tokens (`driver`), and are admitted in the order in which they came (`order`).

mod driver;
mod order;
mod queue;

pub(super) use queue::Place;

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use driver::Driver;
use llama_sys::Token;
use queue::Shared;
use serde::{Deserialize, Serialize};

use super::channel::{block_on, spawn};
use super::chat::Chat;
use super::error::Error;
use super::local::SessionHere;
use super::remote::{Reader, Start};
use super::request::Generate;
use super::stats::Replaced;
use super::step::PromptChunk;
use super::token_stream::TokenStream;
use crate::chat::ChatTemplate;
use crate::load::{AbortHandle, Model};
use crate::lock;

/// A loaded model that computes many requests at once (continuous batching). Clones are handles of the same engine.
///
/// It holds the model's context until the last handle is dropped, which cancels what is not finished.
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
/// - **Order.** First come, first served; texts join and leave between two tokens. A step computes the next token of
///   every text and a [chunk](EngineBuilder::prompt_chunk) of the prompts, shared out evenly.
/// - **Prefixes.** What a prompt shares with what the context holds is not computed again, unless
///   [`Generate::cache_prompt`] is turned off.
/// - **Readers.** A text whose reader is [far behind](EngineBuilder::ahead) makes room for those that wait, and goes on
///   when it is read. Nobody else waits for it.
/// - **One cache for all** (`kv_unified`): a text is admitted when there is room for what it is likely to need. Where
///   that runs out, the one that came last goes back to the queue and is computed again later, so that it may differ in
///   rounding. No text ends for lack of room unless it fills the whole context.
/// - **Isolation.** With a model in a [worker](crate::Isolation::Process) all of this is the same, but the model is not
///   re-placed meanwhile, and [`OnDeath`](crate::OnDeath) decides about the texts when the worker dies.
/// - **Errors.** A computation that fails ends the running texts, with the error, and no others. Where the next token
///   of one text cannot be chosen ([`Error::NoTokenAllowed`], [`Error::NotAllowed`]), it ends alone.
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

/// Whether an engine's thread has ended.
#[derive(Debug, Default)]
struct Ended {
    is_so: Mutex<bool>,
    changed: Condvar,
}

/// Says so when the thread ends, by a panic too.
struct EndsThread(Arc<Ended>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        *lock(&self.0.is_so) = true;
        self.0.changed.notify_all();
    }
}

/// What becomes of the texts of an engine that is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shutdown {
    /// All that were accepted are finished.
    Finish,
    /// Texts that run, or have run and made room for others, are finished. Those that have not begun end with
    /// [`Error::EngineEnded`].
    FinishBegun,
    /// All end with [`Error::EngineEnded`].
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

    /// Describes an engine: how many requests wait, how far ahead of its reader a text runs, how prompts are split.
    pub fn builder(model: &Model) -> EngineBuilder {
        EngineBuilder { model: model.clone(), queue: 64, ahead: 1024, prompt_chunk: PromptChunk::Graph }
    }

    /// Queues a request, and waits while the queue is full; waiting callers get a place in their order. Before that it
    /// checks the request on this thread: the prompt is tokenized, and a constraint compiled. While the model
    /// is re-placed, this waits for that.
    ///
    /// # Errors
    ///
    /// As [`Generate::stream`], but for [`Error::Busy`]; [`Error::OtherModel`], [`Error::EngineEnded`].
    pub fn submit(&self, generate: Generate) -> Result<TokenStream, Error> {
        wait(self.submit_async(generate))
    }

    /// Queues a request, if the queue has room.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`], and as [`submit`](Self::submit).
    pub fn try_submit(&self, generate: Generate) -> Result<TokenStream, Error> {
        self.go_on(generate, &[])
    }

    /// Queues a request: a future that waits while the queue is full, in any runtime. The request is checked
    /// before this returns; with a model in a worker process, the future waits for the check too. Dropping it takes the
    /// request back.
    ///
    /// # Errors
    ///
    /// The future's: as [`submit`](Self::submit).
    pub fn submit_async(&self, generate: Generate) -> impl Future<Output = Result<TokenStream, Error>> + Send + use<> {
        self.inner.shared.submit(generate, &[], true)
    }

    /// The same as [`try_submit`](Self::try_submit), after the tokens of the text that another process has generated.
    pub(super) fn go_on(&self, generate: Generate, so_far: &[Token]) -> Result<TokenStream, Error> {
        wait(self.inner.shared.submit(generate, so_far, false))
    }

    /// A run of the model's worker for one text.
    pub(super) fn of_one_text(model: &Model) -> Result<Self, Error> {
        EngineBuilder { prompt_chunk: PromptChunk::Batch, ..Self::builder(model) }.start_there()
    }

    /// Ends what a worker computes.
    pub(super) fn abort_handle(&self) -> AbortHandle {
        self.inner.shared.abort_handle()
    }

    /// Refuses further requests, and returns at once. A second call can only make it end sooner.
    pub fn close(&self, how: Shutdown) {
        self.inner.shared.close(how);
    }

    /// Refuses further requests, and waits until the last one has ended. The context is free then.
    pub fn shutdown(&self, how: Shutdown) {
        self.inner.shared.close(how);
        self.inner.join();
    }

    /// Refuses further requests, lets those that have been accepted finish for as long as `time`, and cancels what is
    /// left then. Returns whether all finished. The context is free afterwards.
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

    /// Requests that it takes at once: those that run, and those that wait.
    pub fn capacity(&self) -> usize {
        self.inner.shared.capacity()
    }

    /// Reads the vocabulary. The model is not re-placed meanwhile: `read` must not ask it for anything else. With a
    /// model in a worker process, the vocabulary is read from the file into this process when it is first asked for.
    ///
    /// # Errors
    ///
    /// [`Error`] if the model is not loaded, since a re-placement has failed.
    pub fn with_vocab<T>(&self, read: impl FnOnce(&llama_sys::Vocab) -> T) -> Result<T, Error> {
        Ok(self.model().with_vocab(read)?)
    }

    pub(super) fn model(&self) -> &Model {
        &self.inner.shared.model
    }

    /// Begins a conversation by the chat template that the model ships. Many go on at once: their answers are texts of
    /// this engine, and what is said waits while its queue is full.
    ///
    /// ```no_run
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// let engine = autoplace::generate::Engine::new(&model)?;
    /// let (mut one, mut other) = (engine.chat()?, engine.chat()?);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || one.say("Why is the sky blue?")?.finish());
    ///     scope.spawn(move || other.say("Why is grass green?")?.finish());
    /// });
    /// # Ok::<(), autoplace::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Model::chat`].
    pub fn chat(&self) -> Result<Chat, Error> {
        Ok(self.model().chat()?.on(self.clone()))
    }

    /// Begins a conversation by another template than the model's own.
    pub fn chat_with(&self, template: ChatTemplate) -> Chat {
        self.model().chat_with(template).on(self.clone())
    }

    /// How many requests wait and run, and what was generated so far.
    pub fn metrics(&self) -> Metrics {
        self.inner.shared.metrics()
    }

    /// The outcome of the last requested re-placement ([`Model::request_replace`]). One that leaves the model unloaded
    /// ends the running texts, and requests are refused until it is loaded again. A waiting request that the new
    /// context has no room for ends with [`Error::ContextTooSmall`] when its turn comes.
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
    /// Waits until it is so, at most this long. Returns whether it is.
    fn wait(&self, time: Duration) -> bool {
        let is_so = lock(&self.is_so);
        let waited = self.changed.wait_timeout_while(is_so, time, |is_so| !*is_so);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Inner {
    fn join(&self) {
        let mut thread = lock(&self.thread);
        // A waker of the application's can hold the last handle, and be dropped by the engine's own thread.
        let is_other = |thread: &mut JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = thread.take_if(is_other) {
            // Those who wait have the error of a panic already.
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

/// An [`Engine`] being described.
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
        /// Requests that wait at most, beside as many as the context has sequences. Default 64.
        queue(requests: usize) queue = requests;
        /// Pieces that a text runs ahead of its reader; it goes on when half of them are read. Default 1024: long
        /// enough for most answers to be read one after the other.
        ahead(pieces: usize) ahead = pieces;
        /// Tokens of prompts that a step computes at most, over all texts, beside one token of each text that is being
        /// generated: fewer make long prompts stall others less, and take longer. Default: what those leave of
        /// `n_ubatch`.
        prompt_chunk(tokens: usize) prompt_chunk = PromptChunk::Tokens(tokens.max(1));
    }

    /// Takes the model's context, or the worker that has it, and starts the thread.
    ///
    /// # Errors
    ///
    /// As [`Model::session`]; [`Error::Worker`] where the model's worker process has died or cannot be started again;
    /// [`Error::Thread`].
    pub fn start(self) -> Result<Engine, Error> {
        if self.model.placement().context.n_seq_max <= 1 {
            tracing::warn!(
                "the engine has one sequence, and computes one request after the other: load with `parallel(n, tokens_each)`"
            );
        }
        if self.model.is_elsewhere() {
            return self.start_there();
        }
        self.start_here().map(|(engine, _)| engine)
    }

    fn start_there(self) -> Result<Engine, Error> {
        let reader = Reader::open(&self.model, self.ahead, self.prompt_chunk)?;
        Engine::run(Arc::new(Shared::there(reader.link(), self.queue)), move || reader.run())
    }

    /// An engine in this process, with what stops a computation.
    fn start_here(self) -> Result<(Engine, AbortHandle), Error> {
        let mut session = SessionHere::open(&self.model)?;
        session.work.prompt_chunk = self.prompt_chunk;
        let abort = session.abort_handle();
        let shared = Arc::new(Shared::new(&self.model, session.room(), self.queue, self.ahead));
        let driver = Driver::new(Arc::clone(&shared), session, self.prompt_chunk);
        Ok((Engine::run(shared, move || driver.run())?, abort))
    }

    /// An engine for the texts of another process, which counts its places itself.
    pub(super) fn serve(model: &Model, start: Start) -> Result<(Engine, AbortHandle), Error> {
        let Start { ahead, prompt_chunk, .. } = start;
        Self { model: model.clone(), queue: usize::MAX, ahead, prompt_chunk }.start_here()
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    block_on(|context| future.as_mut().poll(context))
}

/// What an [`Engine`](super::Engine) is doing, and what it has done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Texts that wait: requests, and texts that have made room for others.
    pub queued: usize,
    /// Texts that have a sequence; with a model in a worker, those that have their first token.
    pub running: usize,
    /// Tokens generated, end-of-generation tokens not counted.
    pub generated_tokens: u64,
    /// Tokens of the prompts that were begun.
    pub prompt_tokens: u64,
    /// Those of them that the context held already.
    pub cached_tokens: u64,
}
