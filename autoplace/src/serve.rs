//! The worker's side of [`Isolation::Process`](crate::Isolation::Process): loads one model, generates with it, ends
//! with its connection.
//!
//! In: requests of the application, read on a thread of their own so that an abort is heard in the middle
//! of a computation. Out: replies, which nobody waits for: the worker computes ahead of its reader as far
//! as it is allowed to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{process, thread};

use serde::Deserialize;

use crate::generate::remote::{Generation, Reply, Request as Generating};
use crate::generate::{self, AbortHandle, Generate};
use crate::load::remote::{Load, Request as Loading, Told};
use crate::load::{self, Model, ModelBuilder, build_name};
use crate::plan::Plan;
use crate::worker::{self, Hello, LogLines, Receiver, Sender};

/// Text is sent so often at most: a model that is faster than anybody reads would otherwise wake the application, which
/// needs the same cores, for every token. A piece then waits for the next, which comes before the application would
/// have looked again.
const OFTEN: Duration = Duration::from_millis(2);

/// Makes this process a worker, if it was started as one; otherwise returns at once.
///
/// The first line of `main` in a program that loads models with
/// [`WorkerProcess::own_executable`](crate::WorkerProcess::own_executable):
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
/// In a worker it does not return: the process ends with the application's connection.
pub fn worker_main() {
    if !worker::is_worker() {
        return;
    }
    // A process that a worker has started has the variable, and not the connection.
    let Ok((receiver, sender)) = worker::inherited() else {
        return;
    };
    process::exit(match serve(receiver, &sender) {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("{error}");
            1
        }
    });
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Request {
    Load(Loading),
    Generate(Generating),
}

fn serve(receiver: Receiver, sender: &Sender) -> Result<(), worker::Error> {
    // Fails if the application has installed one before: its lines then go where it wants them.
    let _ = tracing::subscriber::set_global_default(LogLines::as_asked());
    let hello = Hello { build: build_name() };
    if !hello.say(sender)? {
        return Ok(());
    }
    let control = Arc::new(Control::default());
    let (tasks, queue) = mpsc::channel();
    let listening = Arc::clone(&control);
    thread::Builder::new()
        .name("autoplace-requests".into())
        .spawn(move || {
            listen(receiver, &listening, &tasks);
            // Ends the queue, where nothing computes.
            drop(tasks);
            listening.close();
        })
        .map_err(|error| worker::Error::Protocol {
            doing: "starting",
            reason: error.to_string(),
        })?;
    let mut model = None;
    // Ends with the connection, whose end drops the other end of the queue.
    for task in queue {
        let is_heard = match task {
            Request::Load(Loading::Load(load)) => load_model(*load, &control, sender, &mut model)?,
            Request::Load(Loading::Replace { plan }) => {
                sender.send(&replace(model.as_ref(), plan))?
            }
            Request::Generate(Generating::Generate(generation)) => {
                generate(model.as_ref(), *generation, &control, sender)?
            }
            // The thread that listens has heard it.
            _ => true,
        };
        if !is_heard {
            break;
        }
    }
    Ok(())
}

/// Reads requests until the connection ends. Those that take their time are carried out on the main thread, one after
/// the other.
fn listen(mut receiver: Receiver, control: &Control, tasks: &mpsc::Sender<Request>) {
    while let Ok(request) = receiver.receive() {
        match request {
            Request::Load(Loading::CancelLoad) => control.cancel_load(),
            Request::Generate(Generating::Allow { id, tokens }) => control.allow(id, tokens),
            Request::Generate(Generating::Abort { id }) => control.abort(id),
            task => {
                if tasks.send(task).is_err() {
                    return;
                }
            }
        }
    }
}

/// Loads the model and says so. `false`: nobody is there any more.
fn load_model(
    load: Load,
    control: &Arc<Control>,
    sender: &Sender,
    model: &mut Option<Model>,
) -> Result<bool, worker::Error> {
    let tell = load.tell_progress.then(|| sender.clone());
    let watched = Arc::clone(control);
    let is_gone = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&is_gone);
    let mut told = -1.0;
    *model = None;
    let loaded = ModelBuilder::of(load)
        .progress(move |done| {
            // llama.cpp tells of every tensor; a hundredth is as fine as anybody looks.
            if let Some(sender) = &tell
                && (done - told >= 0.01 || done >= 1.0)
            {
                told = done;
                let reply = load::remote::Reply::Progress(done);
                if !matches!(sender.send(&reply), Ok(true)) {
                    gone.store(true, Ordering::Relaxed);
                }
            }
            !gone.load(Ordering::Relaxed) && watched.may_load()
        })
        .load();
    sender.send(&placed(loaded.map(|loaded| &*model.insert(loaded))))
}

fn replace(model: Option<&Model>, plan: Option<Box<Plan>>) -> load::remote::Reply {
    placed(model.ok_or(load::Error::NotLoaded).and_then(|model| {
        model.replace(plan.map(|plan| *plan))?;
        Ok(model)
    }))
}

/// Where a model went, or why it did not.
fn placed(model: Result<&Model, load::Error>) -> load::remote::Reply {
    match model {
        Ok(model) => load::remote::Reply::Loaded(Box::new(Told {
            machine: (*model.machine()).clone(),
            allocated: model.allocated(),
            report: (*model.report()).clone(),
        })),
        Err(error) => load::remote::Reply::Failed(error),
    }
}

/// Generates, a reply for every piece. `false`: nobody is there any more.
fn generate(
    model: Option<&Model>,
    generation: Generation,
    control: &Control,
    sender: &Sender,
) -> Result<bool, worker::Error> {
    let Generation { id, spec, so_far } = generation;
    let stream = model
        .ok_or_else(|| generate::Error::from(load::Error::NotLoaded))
        .and_then(|model| Generate::of(model.clone(), spec).stream_here(so_far));
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(error) => return sender.send(&Reply::Failed(error)),
    };
    control.begin(id, stream.abort_handle());
    let _over = Over(control);
    let seed = stream.statistics().seed;
    if !sender.send(&Reply::Accepted { seed })? {
        return Ok(false);
    }
    let mut sent = Instant::now();
    let mut told = 0;
    loop {
        if !control.is_allowed(told) && !sender.flush() {
            return Ok(false);
        }
        if !control.wait_until_allowed(told) {
            let aborted = generate::Error::from(llama_sys::Error::Aborted);
            return sender.send(&Reply::Failed(aborted));
        }
        let piece = match stream.next_piece() {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return sender.send(&Reply::Failed(error)),
            // Its last piece was sent.
            None => return Ok(sender.flush()),
        };
        told += 1;
        sender.put(&Reply::Piece(Box::new((piece, stream.statistics()))))?;
        if sent.elapsed() >= OFTEN || stream.finish_reason().is_some() {
            if !sender.flush() {
                return Ok(false);
            }
            sent = Instant::now();
        }
    }
}

/// Ends a generation for the thread that listens, however it ends.
struct Over<'a>(&'a Control);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How long a computation may go on without a connection. A GPU finishes its part of a graph before it
/// hears of an abort.
const LAST: Duration = Duration::from_secs(8);

/// What is allowed, and what is not wanted any more.
#[derive(Default)]
struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The generation that runs, and how to stop it.
    running: Option<(u64, AbortHandle)>,
    /// Tokens that it may generate.
    allowed: usize,
    /// The generation that was aborted last: the abort may come before it runs.
    aborted: u64,
    is_load_cancelled: bool,
    is_closed: bool,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A generation runs from now on.
    fn begin(&self, id: u64, abort: AbortHandle) {
        let mut state = self.state();
        if state.aborted == id || state.is_closed {
            abort.abort();
        }
        state.running = Some((id, abort));
        state.allowed = 0;
    }

    fn end(&self) {
        self.state().running = None;
    }

    fn allow(&self, id: u64, tokens: usize) {
        let mut state = self.state();
        if state.running.as_ref().is_some_and(|running| running.0 == id) {
            state.allowed = state.allowed.saturating_add(tokens);
            self.changed.notify_one();
        }
    }

    fn abort(&self, id: u64) {
        let mut state = self.state();
        state.aborted = id;
        if let Some((running, abort)) = &state.running
            && *running == id
        {
            abort.abort();
        }
        self.changed.notify_one();
    }

    fn cancel_load(&self) {
        self.state().is_load_cancelled = true;
    }

    fn may_load(&self) -> bool {
        let state = self.state();
        !state.is_load_cancelled && !state.is_closed
    }

    /// Nobody listens any more. What computes is aborted; where that cannot be, the process ends.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if let Some((_, abort)) = &state.running {
            abort.abort();
        }
        drop(state);
        self.changed.notify_one();
        thread::sleep(LAST);
        process::exit(1);
    }

    /// Whether more tokens than these may be generated, without waiting for it.
    fn is_allowed(&self, generated: usize) -> bool {
        self.state().allowed > generated
    }

    /// Waits until more tokens than these may be generated. `false`: none are wanted any more.
    fn wait_until_allowed(&self, generated: usize) -> bool {
        let state = self.state();
        let is_waiting = |state: &mut State| {
            let is_unwanted = match &state.running {
                Some((id, _)) => state.aborted == *id,
                None => true,
            };
            state.allowed <= generated && !state.is_closed && !is_unwanted
        };
        let state =
            self.changed.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner);
        let is_aborted = state.running.as_ref().is_none_or(|(id, _)| state.aborted == *id);
        !state.is_closed && !is_aborted
    }
}
