//! The worker's side of [`Isolation::Process`](crate::Isolation::Process): loads one model, generates with it, and ends
//! when the connection to the application ends.
//!
//! In: requests of the application. A separate thread reads the requests, so that an abort takes effect during a
//! computation. Out: replies. The [`Host`] sends the pieces of texts.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::embed::LocalEmbedder;
use crate::embed::remote::{self, Call as EmbedderCall};
use crate::load::ipc_error::Failed;
use crate::load::remote::Loading;
use crate::load::{self, AbortHandle, GenerationCounters, LoadOptions, LoadProgress, Model, Progress, worker_build};
use crate::run::host::{Host, SessionHost};
use crate::run::remote::{Reply, SessionCall, Start, TextCall};
use crate::sync::lock;
use crate::worker::{self, Hello, LogLines, Receiver, Sender};
use crate::{embed, generate};

/// If this process was started as a worker, runs the worker. Otherwise returns at once.
///
/// A program that loads models with [`WorkerProcess::own_executable`](crate::WorkerProcess::own_executable) must call
/// this function in the first line of its `main`. Otherwise, no worker is started. A worker also runs the code of
/// `main` before this call. The worker starts with the application's environment and without arguments.
///
/// ```no_run
/// use autoplace::{Isolation, Model, WorkerProcess};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     autoplace::worker_main();
///
///     let model = Model::builder("model.gguf")
///         .isolation(Isolation::Process(WorkerProcess::own_executable()))
///         .load()?;
///     println!("{}", model.generate("Why is the sky blue?").text()?);
///     Ok(())
/// }
/// ```
///
/// In a worker, this function does not return: the process ends when the application's connection ends.
pub fn worker_main() {
    // A child process of a worker inherits the variable, but not the connection.
    if worker::guard()
        && let Ok((receiver, sender)) = worker::inherited()
    {
        load::is_worker_from_now_on();
        let served = serve(receiver, &sender).inspect_err(|error| tracing::error!("{error}"));
        // A text may still be computed.
        llama_sys::exit_at_once(i32::from(served.is_err()));
    }
}

type Request = worker::Request<Loading, TextCall, EmbedderCall>;

/// For `fuzz`: decodes bytes as messages from an application, and as messages from a worker.
#[cfg(fuzzing)]
pub fn read_frames(bytes: &[u8]) {
    let from = || Receiver::new(std::io::Cursor::new(bytes.to_vec()));
    let (mut asked, mut loaded, mut generated) = (from(), from(), from());
    while asked.receive::<Request>().is_ok() {}
    while loaded.receive::<load::remote::Reply>().is_ok() {}
    while generated.receive::<Reply>().is_ok() {}
}

fn serve(receiver: Receiver, sender: &Sender) -> Result<(), Box<dyn std::error::Error>> {
    // This fails if the program has already installed a subscriber. In that case, the lines go to that subscriber.
    let _ = tracing::subscriber::set_global_default(LogLines::as_asked());
    if !sender.send(&Hello { build: worker_build() })? {
        return Ok(());
    }
    let control = Arc::new(Control::default());
    let (tasks, queue) = mpsc::channel();
    let listening = Arc::clone(&control);
    thread::Builder::new().name("autoplace-requests".into()).spawn(move || {
        listen(receiver, &listening, &tasks);
        // The main thread ends with the queue. If a computation is still running, `close` aborts it.
        drop(tasks);
        listening.close();
    })?;
    let (living, to, every) = (Arc::clone(&control), sender.clone(), worker::sign_every());
    thread::Builder::new().name("autoplace-signs".into()).spawn(move || living.sign(&to, every))?;
    let mut served = Served { model: None, user: ContextUser::Nothing, control, sender: sender.clone() };
    // The loop ends with the connection, because the end of the connection drops the sender of the queue.
    for task in queue {
        served.control.work(served.model.as_ref());
        if !served.carry_out(task)? {
            break;
        }
        if matches!(served.user, ContextUser::Nothing) {
            lock(&served.control.0).is_working = false;
        }
    }
    Ok(())
}

/// The state of a worker.
struct Served {
    model: Option<Model>,
    user: ContextUser,
    control: Arc<Control>,
    sender: Sender,
}

/// The user of the model's context.
enum ContextUser {
    Nothing,
    Texts(Host),
    Session(Box<SessionHost>),
    Embedder(Box<LocalEmbedder>),
}

impl Served {
    /// Carries out a request. Like all methods that send an answer, it returns false if the application is gone.
    fn carry_out(&mut self, request: Request) -> Result<bool, worker::Error> {
        match request {
            Request::Loading(Loading::Load { options, wants_progress }) => {
                self.user = ContextUser::Nothing;
                self.load(*options, wants_progress)
            }
            Request::Loading(Loading::Replace { plan }) => {
                let replaced = |model: &Model| model.replace(plan.map(|plan| *plan)).map(|()| model.placed());
                self.answer(self.model().and_then(replaced))
            }
            Request::Loading(Loading::Plan { options }) => self.answer(options.only_plan()),
            Request::Loading(Loading::Look { options }) => self.answer(options.machine(false)),
            // The listening thread has handled these requests.
            Request::Loading(Loading::CancelLoad | Loading::Abort { .. }) => Ok(true),
            Request::Text(TextCall::Start(start)) => self.start(start),
            Request::Text(TextCall::Session(call)) => self.session(call),
            Request::Text(call) => match &mut self.user {
                ContextUser::Texts(host) => host.carry_out(call),
                _ => Ok(true),
            },
            Request::Embed(call) => self.embed(call),
        }
    }

    /// Loads the model and reports the outcome.
    fn load(&mut self, options: LoadOptions, wants_progress: bool) -> Result<bool, worker::Error> {
        let (sender, control) = (self.sender.clone(), Arc::clone(&self.control));
        let mut reported: Option<LoadProgress> = None;
        self.model = None;
        let progress = move |now: LoadProgress| {
            // llama.cpp reports the progress after every tensor, but steps of a hundredth are enough.
            let is_new = reported.is_none_or(|last| now.stage != last.stage || now.done - last.done >= 0.01);
            if wants_progress && (is_new || now.done >= 1.0) {
                reported = Some(now);
                // A lost connection cancels the load below.
                let _ = sender.send(&load::remote::Reply::Progress(now));
            }
            control.may_load()
        };
        let placed = options.load(Progress::new(progress)).map(|model| self.model.insert(model).placed());
        self.sender.send(&load::remote::Reply::Loaded(placed.map_err(Failed)))
    }

    fn answer(&self, outcome: Result<impl Serialize, load::Error>) -> Result<bool, worker::Error> {
        self.sender.send(&outcome.map_err(Failed))
    }

    fn model(&self) -> Result<&Model, load::Error> {
        self.model.as_ref().ok_or(load::Error::NotLoaded)
    }

    /// Starts a run.
    fn start(&mut self, start: Start) -> Result<bool, worker::Error> {
        self.user = ContextUser::Nothing;
        let model = self.model().map_err(generate::Error::from);
        match model.and_then(|model| Host::start(model, start, &self.sender)) {
            Ok((host, abort)) => {
                self.control.begin(start.run, abort);
                self.user = ContextUser::Texts(host);
                self.sender.send(&Reply::Started)
            }
            Err(error) => self.sender.send(&Reply::Refused(error)),
        }
    }

    fn session(&mut self, call: SessionCall) -> Result<bool, worker::Error> {
        match call {
            SessionCall::Open { run } => {
                self.user = ContextUser::Nothing;
                let model = self.model().map_err(generate::Error::from);
                if let Some((host, abort)) = SessionHost::open(model, &self.sender)? {
                    self.control.begin(run, abort);
                    self.user = ContextUser::Session(Box::new(host));
                }
                Ok(true)
            }
            SessionCall::Close => {
                self.user = ContextUser::Nothing;
                Ok(true)
            }
            call => match &mut self.user {
                ContextUser::Session(host) => host.carry_out(call),
                _ => Ok(true),
            },
        }
    }

    fn embed(&mut self, call: EmbedderCall) -> Result<bool, worker::Error> {
        match call {
            EmbedderCall::Open { run } => {
                self.user = ContextUser::Nothing;
                let model = self.model().map_err(embed::Error::from);
                if let Some(embedder) = remote::open(model, &self.sender)? {
                    self.control.begin(run, embedder.abort.clone().into());
                    self.user = ContextUser::Embedder(Box::new(embedder));
                }
            }
            EmbedderCall::Close => self.user = ContextUser::Nothing,
            EmbedderCall::Compute { query, texts, options } => {
                if let ContextUser::Embedder(embedder) = &mut self.user {
                    return remote::compute(embedder, (query.as_deref(), &texts, options), &self.sender);
                }
            }
        }
        Ok(true)
    }
}

/// Reads requests until the connection ends. Slow requests run on the main thread, one after the other.
fn listen(mut receiver: Receiver, control: &Control, tasks: &mpsc::Sender<Request>) {
    while let Ok(request) = receiver.receive() {
        match request {
            Request::Loading(Loading::CancelLoad) => lock(&control.0).is_load_cancelled = true,
            Request::Loading(Loading::Abort { run }) => control.abort(run),
            task => {
                if tasks.send(task).is_err() {
                    return;
                }
            }
        }
    }
}

/// How long a computation may continue after the connection has ended. A GPU finishes its part of a graph before an
/// abort takes effect.
const LAST: Duration = Duration::from_secs(8);

/// The state for requests that take effect during a computation.
#[derive(Default)]
struct Control(Mutex<State>);

#[derive(Default)]
struct State {
    /// The run, and the handle that aborts its computation.
    running: Option<(u64, AbortHandle)>,
    /// The run that was aborted last. The abort may arrive before the run starts.
    aborted: u64,
    is_load_cancelled: bool,
    is_closed: bool,
    /// Whether the application may be waiting for this process. The next field has the counters of the working model.
    is_working: bool,
    counters: Option<Arc<GenerationCounters>>,
}

impl Control {
    /// Marks the process as working until it has nothing to do.
    fn work(&self, model: Option<&Model>) {
        let mut state = lock(&self.0);
        (state.is_working, state.counters) = (true, model.map(|model| Arc::clone(model.counters())));
    }

    /// Sends signs of life, unless a single computation takes longer than the interval.
    fn sign(&self, sender: &Sender, every: Duration) {
        let mut last = None;
        loop {
            thread::sleep(every);
            let state = lock(&self.0);
            let (done, is_computing) = state.counters.as_ref().map_or((0, false), |counters| counters.computations());
            let is_working = state.is_working;
            drop(state);
            let hangs = is_computing && last.replace(done) == Some(done);
            if is_working && !hangs && !sender.sign() {
                return;
            }
        }
    }

    /// Records the run that is active from now on.
    fn begin(&self, run: u64, abort: AbortHandle) {
        let mut state = lock(&self.0);
        if state.aborted == run || state.is_closed {
            abort.abort();
        }
        state.running = Some((run, abort));
    }

    fn abort(&self, run: u64) {
        let mut state = lock(&self.0);
        state.aborted = run;
        if let Some((running, abort)) = &state.running
            && *running == run
        {
            abort.abort();
        }
    }

    fn may_load(&self) -> bool {
        let state = lock(&self.0);
        !state.is_load_cancelled && !state.is_closed
    }

    /// Aborts the computation after the application has ended. If the computation cannot be aborted, ends the process.
    fn close(&self) {
        let mut state = lock(&self.0);
        state.is_closed = true;
        if let Some((_, abort)) = &state.running {
            abort.abort();
        }
        drop(state);
        thread::sleep(LAST);
        // Normal exit handlers would disturb the running computation, and an abort signal would write the whole memory
        // to a core file.
        llama_sys::end_this_process();
    }
}
