//! The worker's side of [`Isolation::Process`](crate::Isolation::Process): loads one model, generates with it, ends
//! with its connection.
//!
//! In: requests of the application, read on a thread of their own so that an abort is heard in the middle
//! of a computation. Out: replies. What comes of a run of texts is the [`Host`]'s.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use std::{process, thread};

use llama_sys::AbortHandle;
use serde::Deserialize;

use crate::generate;
use crate::generate::remote::{Host, Reply, Request as Generating};
use crate::load::remote::{Load, Request as Loading, Told};
use crate::load::{self, Model, ModelBuilder, build_name};
use crate::plan::Plan;
use crate::worker::{self, Hello, LogLines, Receiver, Sender};

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
    let (mut model, mut host) = (None, None);
    // Ends with the connection, whose end drops the other end of the queue.
    for task in queue {
        let is_heard = match task {
            Request::Load(Loading::Load(load)) => load_model(*load, &control, sender, &mut model)?,
            Request::Load(Loading::Replace { plan }) => {
                sender.send(&replace(model.as_ref(), plan))?
            }
            Request::Generate(request) => {
                generate(request, model.as_ref(), &mut host, &control, sender)?
            }
            // The thread that listens has heard it.
            Request::Load(Loading::CancelLoad) => true,
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
            Request::Generate(Generating::Abort { run }) => control.abort(run),
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

/// Starts a run, or goes on with it. `false`: nobody is there any more.
fn generate(
    request: Generating,
    model: Option<&Model>,
    host: &mut Option<Host>,
    control: &Control,
    sender: &Sender,
) -> Result<bool, worker::Error> {
    let Generating::Start(start) = request else {
        return host.as_mut().map_or(Ok(true), |host| host.carry_out(request));
    };
    // It has closed.
    *host = None;
    let started = model
        .ok_or_else(|| generate::Error::from(load::Error::NotLoaded))
        .and_then(|model| Host::start(model, start, sender));
    match started {
        Ok((started, abort)) => {
            control.begin(start.run, abort);
            *host = Some(started);
            sender.send(&Reply::Started)
        }
        Err(error) => sender.send(&Reply::Refused(error)),
    }
}

/// How long a computation may go on without a connection. A GPU finishes its part of a graph before it
/// hears of an abort.
const LAST: Duration = Duration::from_secs(8);

/// What is heard in the middle of a computation.
#[derive(Default)]
struct Control {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The run, and how to stop its computation.
    running: Option<(u64, AbortHandle)>,
    /// The run that was aborted last: the abort may come before it starts.
    aborted: u64,
    is_load_cancelled: bool,
    is_closed: bool,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run goes on from now on.
    fn begin(&self, run: u64, abort: AbortHandle) {
        let mut state = self.state();
        if state.aborted == run || state.is_closed {
            abort.abort();
        }
        state.running = Some((run, abort));
    }

    fn abort(&self, run: u64) {
        let mut state = self.state();
        state.aborted = run;
        if let Some((running, abort)) = &state.running
            && *running == run
        {
            abort.abort();
        }
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
        thread::sleep(LAST);
        process::exit(1);
    }
}
