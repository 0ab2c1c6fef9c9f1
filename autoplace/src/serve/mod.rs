//! The worker's side of [`Isolation::Process`](crate::Isolation::Process): loads one model, generates with it, ends
//! with its connection.
//!
//! In: requests of the application, read on a thread of their own so that an abort is heard in the middle
//! of a computation. Out: replies, which nobody waits for: the worker computes ahead of its reader as far
//! as it is allowed to.

mod control;

use std::process;
use std::sync::mpsc;
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use control::Control;

use crate::generate::remote::{Generation, Piece, Reply};
use crate::generate::{self, Generate};
use crate::load::remote::{Load, Told};
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

/// A request of either kind.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Request {
    Load(load::remote::Request),
    Generate(generate::remote::Request),
}

/// A request that is carried out on the main thread, one after the other.
enum Task {
    Load(Box<Load>),
    Replace(Option<Box<Plan>>),
    Generate(Box<Generation>),
}

fn serve(receiver: Receiver, sender: &Sender) -> Result<(), worker::Error> {
    // Fails if the application has installed one before: its lines then go where it wants them.
    let _ = tracing::subscriber::set_global_default(LogLines::as_asked());
    let hello = Hello {
        build: build_name(),
    };
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
            Task::Load(load) => load_model(*load, &control, sender, &mut model)?,
            Task::Replace(plan) => sender.send(&replace(model.as_ref(), plan))?,
            Task::Generate(generation) => generate(model.as_ref(), *generation, &control, sender)?,
        };
        if !is_heard {
            break;
        }
    }
    Ok(())
}

/// Reads requests until the connection ends.
fn listen(mut receiver: Receiver, control: &Control, tasks: &mpsc::Sender<Task>) {
    use generate::remote::Request as Generating;
    use load::remote::Request as Loading;

    while let Ok(request) = receiver.receive() {
        let task = match request {
            Request::Load(Loading::Load(load)) => Task::Load(load),
            Request::Load(Loading::Replace { plan }) => Task::Replace(plan),
            Request::Generate(Generating::Generate(generation)) => Task::Generate(generation),
            Request::Load(Loading::CancelLoad) => {
                control.cancel_load();
                continue;
            }
            Request::Generate(Generating::Allow { id, tokens }) => {
                control.allow(id, tokens);
                continue;
            }
            Request::Generate(Generating::Abort { id }) => {
                control.abort(id);
                continue;
            }
        };
        if tasks.send(task).is_err() {
            return;
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

/// Generates, a reply for every piece of text. `false`: nobody is there any more.
fn generate(
    model: Option<&Model>,
    generation: Generation,
    control: &Control,
    sender: &Sender,
) -> Result<bool, worker::Error> {
    let Generation { id, spec, so_far } = generation;
    let earlier = so_far.len();
    let stream = model
        .ok_or_else(|| generate::Error::from(load::Error::NotLoaded))
        .and_then(|model| Generate::of(model.clone(), spec).stream_here(so_far));
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(error) => return sender.send(&Reply::Failed(error)),
    };
    stream.keep_quiet_of_full();
    control.begin(id, stream.abort_handle());
    let _over = Over(control);
    let seed = stream.statistics().seed;
    if !sender.send(&Reply::Accepted { seed })? {
        return Ok(false);
    }
    let mut told = earlier;
    let mut sent = Instant::now();
    loop {
        if !control.is_allowed(told - earlier) && !sender.flush() {
            return Ok(false);
        }
        if !control.wait_until_allowed(told - earlier) {
            let aborted = generate::Error::from(llama_sys::Error::Aborted);
            return sender.send(&Reply::Failed(aborted));
        }
        let mut logprobs = Vec::new();
        let text = match stream.next_with(|it| logprobs.push(it)) {
            Some(Ok(text)) => text,
            Some(Err(error)) => return sender.send(&Reply::Failed(error)),
            None => String::new(),
        };
        let statistics = stream.statistics();
        let tokens = stream.tokens();
        let is_first = told == earlier;
        let end = stream.finish_reason();
        let end = end.filter(|_| !stream.is_incomplete());
        let tokens_of_it = tokens.get(told..).unwrap_or_default().to_owned();
        // Of a token that ends the generation nothing is told.
        logprobs.truncate(tokens_of_it.len());
        let piece = Piece {
            text,
            tokens: tokens_of_it,
            logprobs,
            nanoseconds: generate::remote::nanoseconds(&statistics),
            statistics: (is_first || end.is_some()).then(|| Box::new(statistics)),
        };
        told = tokens.len();
        if let Some(reason) = end {
            return sender.send(&Reply::Done {
                last: piece,
                reason,
            });
        }
        sender.put(&Reply::Piece(piece))?;
        if sent.elapsed() >= OFTEN {
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
