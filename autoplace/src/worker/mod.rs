//! A process of its own for a model: what ends that process does not end the application.
//!
//! llama.cpp ends the process where it cannot go on: a CUDA pool that runs out of memory in the middle of a
//! computation, an RPC server that is gone. With [`Isolation::Process`] that process is a child. In: a
//! [`WorkerProcess`], which says what to start. Out: a connection for messages, and in the end how the child
//! ended and what it logged last.
//!
//! This room knows nothing of models: what the messages are is said where they are used, in `load` and `generate`. The
//! child's side is in `serve`.

mod channel;
mod error;
mod log;
mod process;
mod watch;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use error::Error;

pub(crate) use error::Word;

pub(crate) use channel::{Hello, Receiver, Sender, decode, encode, guard, inherited, sign_every};
pub(crate) use log::LogLines;
pub(crate) use process::{Handle, Worker};

/// How long a worker may take to say that it is one: its libraries, a GPU's among them, are loaded before
/// its `main` begins.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a worker may be silent: longer than any machine takes for a batch of a prompt.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A request to a worker: the rooms that make them say of what each kind is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request<Loading, Text, Embed> {
    Loading(Loading),
    Text(Text),
    Embed(Embed),
}

/// Where a model runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// In this process: what ends llama.cpp ends the application.
    #[default]
    None,
    /// In a child process, which may die without harm to the application.
    Process(WorkerProcess),
}

/// The child process that a model is to run in.
///
/// The child is started with `AUTOPLACE_WORKER` in its environment, in a process group of its own (Ctrl-C reaches the
/// application alone), and ends when the connection to the application does, however the application ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct WorkerProcess {
    /// `None`: the application's own.
    program: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    patience: Duration,
    timeout: Duration,
    on_death: OnDeath,
}

/// What to do when a worker has died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDeath {
    /// Return [`Error::Died`] from the call that needed it, and from every later call.
    #[default]
    Fail,
    /// Start another, load the model again by what is free then, and go on after the last token. The tokens so far are
    /// computed again as they were computed first, one after the other: for as long as that took, the text stands
    /// still, and then goes on as if nothing had happened.
    Resume {
        /// How often within one generation or load, at most.
        attempts: u32,
    },
}

impl WorkerProcess {
    /// The application's own executable, whose `main` has to begin with [`worker_main`](crate::worker_main): where that
    /// was not called in this process, nothing is started ([`Error::NoWorkerMain`]).
    pub fn own_executable() -> Self {
        let (environment, on_death) = (Vec::new(), OnDeath::Fail);
        Self { program: None, environment, patience: PATIENCE, timeout: TIMEOUT, on_death }
    }

    /// The program `autoplace-worker`, or any other whose `main` begins with [`worker_main`](crate::worker_main). It
    /// has to be built with the same autoplace and the same llama.cpp. One that is no worker runs as it is, for its
    /// [`patience`](Self::patience) at most.
    pub fn program(path: impl Into<PathBuf>) -> Self {
        Self { program: Some(path.into()), ..Self::own_executable() }
    }

    setters! {
        /// What to do when it has died. Default: [`OnDeath::Fail`].
        on_death(policy: OnDeath) on_death = policy;
        /// Sets a variable of its environment; the others are the application's.
        env(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>)
            environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        /// How long it may take from its start to its first message, before it is killed. Default: a minute.
        patience(patience: Duration) patience = patience;
        /// How long it may show no sign of life while it is waited for; then it is ended, as if it had died
        /// ([`Error::Silent`]). A worker shows one every few seconds, as long as no single computation of llama.cpp
        /// takes longer: of a batch of a prompt, say. After an abort it has 30 seconds at most. Default: ten minutes.
        timeout(timeout: Duration) timeout = timeout;
    }

    /// How often it may be started again for one call.
    pub(crate) fn attempts(&self) -> u32 {
        match self.on_death {
            OnDeath::Fail => 0,
            OnDeath::Resume { attempts } => attempts,
        }
    }

    fn path(&self) -> std::io::Result<PathBuf> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let own = std::env::current_exe()?;
        // Where an update has put another file in its place, Linux still has the one that runs.
        let running = Path::new("/proc/self/exe");
        Ok(if !own.exists() && running.exists() { running.to_owned() } else { own })
    }
}
