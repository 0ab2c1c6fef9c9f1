//! A worker as the application sees it: started, heard of, talked to, and ended.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::level_filters::LevelFilter;

use super::channel::{
    Failed, Hello, LEVEL, Prepared, Receiver, Sender, VALUE, VARIABLE, is_worker,
};
use super::log::Tail;
use super::{Error, WorkerProcess};

/// How long a worker may take to end by itself once its connection has: it gives its model's memory back.
const ENDING: Duration = Duration::from_secs(10);

/// How long a dead worker's connection may be ahead of what the operating system says of its death.
const DYING: Duration = Duration::from_secs(2);

/// How long a dead worker's last lines may take.
const LAST_LINES: Duration = Duration::from_millis(500);

/// A worker that has said hello. Dropping it ends it.
pub(crate) struct Worker {
    child: Arc<Mutex<Child>>,
    receiver: Option<Receiver>,
    sender: Sender,
    tail: Tail,
    id: u32,
    /// Whether it was killed here: how it ended then says nothing.
    is_killed: bool,
}

impl Worker {
    /// Starts one, which has to be of the build `ours`.
    pub(crate) fn start(process: &WorkerProcess, ours: &str) -> Result<Self, Error> {
        if is_worker() {
            return Err(Error::Nested);
        }
        let program = process.path().map_err(|error| Error::Start {
            program: PathBuf::from("of this process"),
            reason: error.to_string(),
        })?;
        let mut worker = spawn(process, &program).map_err(|error| Error::Start {
            program: program.clone(),
            reason: error.to_string(),
        })?;
        let hello = worker.hello(process.patience);
        match hello {
            Ok(hello) if hello.build == ours => Ok(worker),
            Ok(hello) => {
                worker.end();
                Err(Error::OtherBuild { program, ours: ours.to_owned(), theirs: hello.build })
            }
            Err(Failed::Gone) => {
                let (status, log) = worker.last_words();
                Err(Error::NotAWorker { program, status, log })
            }
            Err(Failed::Senseless(reason)) => {
                worker.end();
                Err(Error::Protocol { doing: "starting", reason })
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Where to send from other threads.
    pub(crate) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Sends a message. `doing` is what the worker is at, for the error.
    pub(crate) fn send(
        &mut self,
        message: &impl Serialize,
        doing: &'static str,
    ) -> Result<(), Error> {
        if self.sender.send(message)? { Ok(()) } else { Err(self.died(doing)) }
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self, doing: &'static str) -> Result<T, Error> {
        let receiver = self.receiver.as_mut();
        match receiver.map_or(Err(Failed::Gone), Receiver::receive) {
            Ok(message) => Ok(message),
            Err(Failed::Gone) => Err(self.died(doing)),
            Err(Failed::Senseless(reason)) => {
                self.end();
                Err(Error::Protocol { doing, reason })
            }
        }
    }

    /// Ends it and says how it died.
    fn died(&mut self, doing: &'static str) -> Error {
        let (status, log) = self.last_words();
        Error::Died { doing, status, log }
    }

    /// Ends it at once.
    fn end(&mut self) {
        self.close();
        kill(&self.child);
        self.is_killed = true;
    }

    fn close(&mut self) {
        self.sender.close();
        self.receiver = None;
    }

    /// How it ended, which it is helped to if need be, and what it wrote last. A status only where it ended by itself.
    fn last_words(&mut self) -> (Option<ExitStatus>, Vec<String>) {
        self.close();
        let status = ended(&self.child, DYING);
        if status.is_none() {
            self.end();
        }
        self.tail.wait(LAST_LINES);
        (status.filter(|_| !self.is_killed), self.tail.lines())
    }

    /// Waits for the first words. A process that says nothing is killed, which ends the wait.
    fn hello(&mut self, patience: Duration) -> Result<Hello, Failed> {
        let (heard, waiting) = mpsc::channel::<()>();
        let child = Arc::clone(&self.child);
        let watch = thread::Builder::new().name("autoplace-worker-hello".into()).spawn(move || {
            let is_silent = waiting.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if is_silent {
                kill(&child);
            }
            is_silent
        });
        let receiver = self.receiver.as_mut();
        let hello = receiver.map_or(Err(Failed::Gone), Hello::hear);
        drop(heard);
        if let Ok(watch) = watch {
            self.is_killed = watch.join().unwrap_or_default();
        }
        hello
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
        if ended(&self.child, ENDING).is_none() {
            tracing::warn!("the worker {} did not end by itself, and is killed", self.id);
            kill(&self.child);
        }
        self.tail.wait(LAST_LINES);
    }
}

fn spawn(process: &WorkerProcess, program: &std::path::Path) -> std::io::Result<Worker> {
    let mut command = Command::new(program);
    let prepared = Prepared::new(&mut command)?;
    let (pipe, theirs) = std::io::pipe()?;
    if cfg!(unix) {
        // Elsewhere it answers there.
        command.stdout(theirs.try_clone()?);
    }
    command.stderr(theirs);
    command.envs(process.environment.iter().map(|(name, value)| (name, value)));
    command.env(VARIABLE, VALUE);
    command.env(LEVEL, LevelFilter::current().to_string());
    apart(&mut command);
    let mut child = command.spawn()?;
    // With its copies of the child's handles: an end that is open here would never end.
    drop(command);
    let id = child.id();
    let connected = prepared.connected(&mut child);
    let child = Arc::new(Mutex::new(child));
    let connected = connected.and_then(|ends| Ok((ends, Tail::follow(pipe)?)));
    let ((receiver, sender), tail) = connected.inspect_err(|_| kill(&child))?;
    Ok(Worker { child, receiver: Some(receiver), sender, tail, id, is_killed: false })
}

/// Out of the reach of Ctrl-C, which the application decides on: it may want the end of the sentence.
///
/// The parent-death signal of Linux is left alone on purpose: it comes when the thread that started the worker ends,
/// which may be long before the application does. The end of the connection is enough.
#[cfg(unix)]
fn apart(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    command.process_group(0);
}

/// As on Unix, and without a console window.
#[cfg(windows)]
fn apart(command: &mut Command) {
    use std::os::windows::process::CommandExt;

    const CREATE_NEW_PROCESS_GROUP: u32 = 0x0000_0200;
    const CREATE_NO_WINDOW: u32 = 0x0800_0000;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW);
}

fn locked(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the process has ended, but no longer than `patience`. The lock is held for moments only: another thread
/// may have to kill it.
fn ended(child: &Mutex<Child>, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        match locked(child).try_wait() {
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

fn kill(child: &Mutex<Child>) {
    let mut child = locked(child);
    // Both fail for a process that has ended already.
    let _ = child.kill();
    let _ = child.wait();
}
