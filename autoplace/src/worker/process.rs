//! The application's side of a worker: its start, its messages, and its end.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::level_filters::LevelFilter;

use super::channel::{Connection, Failed, Hello, LEVEL, Receiver, SIGNS, Sender, VARIABLE, is_guarded, is_worker};
use super::log::Tail;
use super::watch::Watch;
use super::{Error, WorkerProcess};
use crate::sync::lock;

/// The time that a worker gets to free its model's memory and end by itself after its connection has ended.
const ENDING: Duration = Duration::from_secs(10);

/// How long after the end of its connection a dead worker may take until it has an exit status.
const DYING: Duration = Duration::from_secs(2);

/// How long a dead worker's last lines may take to arrive.
const LAST_LINES: Duration = Duration::from_millis(500);

/// A handle with which other threads reach a worker.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) id: u32,
    pub(crate) sender: Sender,
    /// The watch that kills the worker if it is silent for too long.
    pub(crate) watch: Arc<Watch>,
}

/// A worker that has identified itself. Its process ends when this value is dropped.
pub(crate) struct Worker {
    child: Arc<Mutex<Child>>,
    pub(crate) handle: Handle,
    /// This sender is dropped when the worker is ended, which ends the watching thread.
    watching: Option<mpsc::Sender<()>>,
    receiver: Option<Receiver>,
    tail: Tail,
    /// Whether this process killed the worker, so that its exit status means nothing.
    is_killed: bool,
}

impl Worker {
    /// Starts a worker, and checks that its build is `ours`.
    pub(crate) fn start(process: &WorkerProcess, ours: &str) -> Result<Self, Error> {
        if is_worker() {
            return Err(Error::Nested);
        }
        if process.program.is_none() && !is_guarded() {
            return Err(Error::NoWorkerMain);
        }
        let no_start = |program: &Path, error: io::Error| {
            let (program, reason) = (program.to_owned(), error.to_string());
            Error::Start { program, reason }
        };
        let program = process.path().map_err(|error| no_start(Path::new("of this process"), error))?;
        let mut worker = spawn(process, &program).map_err(|error| no_start(&program, error))?;
        let (watch, receiver) = (&worker.handle.watch, worker.receiver.as_mut());
        let hello = watch.waiting(|| receiver.map_or(Err(Failed::Gone), Receiver::receive::<Hello>));
        watch.set_timeout(process.timeout);
        match hello {
            Ok(hello) if hello.build == ours => Ok(worker),
            Ok(hello) => {
                worker.end();
                Err(Error::OtherBuild { program, ours: ours.to_owned(), theirs: hello.build })
            }
            Err(Failed::Gone) => {
                let (status, log) = worker.last_words();
                // It was ended by a signal, for example because the machine has no memory left.
                if status.is_some_and(|status| status.code().is_none()) {
                    return Err(Error::Died { doing: "starting", status, log });
                }
                Err(Error::NotAWorker { program, status, log })
            }
            Err(Failed::Senseless(reason)) => {
                worker.end();
                Err(Error::Protocol { doing: "starting", reason })
            }
        }
    }

    /// Sends a message. `doing` describes the work of the worker for error messages.
    pub(crate) fn send(&mut self, message: &impl Serialize, doing: &'static str) -> Result<(), Error> {
        let Handle { sender, watch, .. } = &self.handle;
        if watch.waiting(|| sender.send(message))? { Ok(()) } else { Err(self.died(doing)) }
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self, doing: &'static str) -> Result<T, Error> {
        let (watch, receiver) = (&self.handle.watch, self.receiver.as_mut());
        let receive = || receiver.map_or(Err(Failed::Gone), |receiver| receiver.receive_after_signs(&|| watch.alive()));
        match watch.waiting(receive) {
            Ok(message) => Ok(message),
            Err(Failed::Gone) => Err(self.died(doing)),
            Err(Failed::Senseless(reason)) => {
                self.end();
                Err(Error::Protocol { doing, reason })
            }
        }
    }

    /// Ends the worker and returns the error about its death.
    fn died(&mut self, doing: &'static str) -> Error {
        let (status, log) = self.last_words();
        match self.handle.watch.ended_after() {
            Some(silent) => Error::Silent { doing, silent, log },
            None => Error::Died { doing, status, log },
        }
    }

    /// Kills the worker.
    fn end(&mut self) {
        self.close();
        kill(&self.child);
        self.is_killed = true;
    }

    fn close(&mut self) {
        self.handle.sender.close();
        self.receiver = None;
    }

    /// Ends the worker if necessary. Returns its exit status if it ended by itself, and the last lines of its log.
    fn last_words(&mut self) -> (Option<ExitStatus>, Vec<String>) {
        self.close();
        let status = ended(&self.child, DYING);
        if status.is_none() {
            self.end();
        }
        self.tail.wait(LAST_LINES);
        let is_killed = self.is_killed || self.handle.watch.ended_after().is_some();
        (status.filter(|_| !is_killed), self.tail.lines())
    }
}

debug_with!(Worker: handle);

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
        self.watching = None;
        if ended(&self.child, ENDING).is_none() {
            tracing::warn!("the worker {} did not end by itself, and is killed", self.handle.id);
            kill(&self.child);
        }
        self.tail.wait(LAST_LINES);
    }
}

fn spawn(process: &WorkerProcess, program: &Path) -> io::Result<Worker> {
    let mut command = Command::new(program);
    let connection = Connection::new(&mut command)?;
    let (pipe, theirs) = io::pipe()?;
    if cfg!(unix) {
        // On other systems, the answers come through stdout.
        command.stdout(theirs.try_clone()?);
    }
    command.stderr(theirs);
    #[cfg(feature = "prebuilt-runtime")]
    if let Some(choice) = llama_sys::runtime::opened() {
        command.env(llama_sys::runtime::VARIABLE, &choice.set.folder);
    }
    command.envs(process.environment.iter().map(|(name, value)| (name, value)));
    command.env(VARIABLE, "1");
    command.env(SIGNS, (process.timeout / 4).as_millis().to_string());
    command.env(LEVEL, LevelFilter::current().to_string());
    apart(&mut command);
    let mut child = command.spawn()?;
    // The command has copies of the child's handles, which would keep the connection open.
    drop(command);
    let id = child.id();
    let opened = connection.open(&mut child, process.timeout);
    let child = Arc::new(Mutex::new(child));
    let connected = opened.and_then(|(receiver, sender)| {
        let (watch, watching) = Watch::start(&child, connection, process.patience, process.timeout)?;
        Ok((Handle { id, sender, watch }, Some(watching), Some(receiver), Tail::follow(pipe)?))
    });
    let (handle, watching, receiver, tail) = connected.inspect_err(|_| kill(&child))?;
    Ok(Worker { child, handle, watching, receiver, tail, is_killed: false })
}

/// Starts the worker in its own process group, so that Ctrl-C does not reach it. The application decides what Ctrl-C
/// does. For example, it may let the sentence finish.
///
/// Linux's parent-death signal is deliberately not used: it is sent when the thread that started the worker ends,
/// possibly long before the application. The end of the connection is enough to end the worker.
#[cfg(unix)]
fn apart(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    command.process_group(0);
}

/// Keeps Ctrl-C from the worker, as on Unix, and opens no console window.
#[cfg(windows)]
fn apart(command: &mut Command) {
    use std::os::windows::process::CommandExt;

    const CREATE_NEW_PROCESS_GROUP: u32 = 0x0000_0200;
    const CREATE_NO_WINDOW: u32 = 0x0800_0000;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW);
}

/// Waits for the process to end, at most for `patience`. Keeps the lock only briefly, because another thread may have
/// to kill the process.
fn ended(child: &Mutex<Child>, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        match lock(child).try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!("cannot wait for a worker: {error}");
                return None;
            }
        }
        if begin.elapsed() >= patience {
            return None;
        }
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(10));
    }
}

/// Kills the process. A process that hangs in the kernel ends only when the kernel releases it.
pub(super) fn kill(child: &Mutex<Child>) {
    // Fails for a process that has already ended.
    let _ = lock(child).kill();
    let _ = ended(child, DYING);
}
