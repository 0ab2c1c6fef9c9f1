//! Runs a model in a child process, so that a crash does not end the application.
//!
//! llama.cpp ends its process when it cannot continue, for example if a CUDA pool runs out of memory during a
//! computation, or if an RPC server is gone. With [`Isolation::Process`], that process is only a child of the
//! application. In: a [`WorkerProcess`], which names the program. Out: a connection for messages, and finally the
//! child's exit status and last log lines.
//!
//! This room does not depend on models: `load` and `generate` define the messages. The code of the child process is in
//! `serve`.

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

/// The default time that a worker may take to identify itself. The libraries of the worker, including those of a GPU,
/// load before its `main` begins.
const PATIENCE: Duration = Duration::from_secs(60);

/// Default time that a worker may be silent. On every machine, one batch of a prompt takes less time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A request to a worker. Each room defines its own kind.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request<Loading, Text, Embed> {
    Loading(Loading),
    Text(Text),
    Embed(Embed),
}

/// The place where a model runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// In this process: a crash of llama.cpp ends the application.
    #[default]
    None,
    /// In a child process, which may die without harm to the application.
    Process(WorkerProcess),
}

/// The child process of a model.
///
/// The child starts with `AUTOPLACE_WORKER` in its environment, and in its own process group, so that Ctrl-C reaches
/// only the application. The child ends when its connection to the application ends, for whatever reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct WorkerProcess {
    /// The program to start; `None` means the application's own executable.
    program: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    patience: Duration,
    timeout: Duration,
    on_death: OnDeath,
}

/// What happens when a worker has died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDeath {
    /// Return [`Error::Died`] from the call that needed the worker, and from every later call.
    #[default]
    Fail,
    /// Start another worker, load the model again with a plan for the memory that is free by then, and continue after
    /// the last token. The tokens that were generated before are computed again one by one. The text pauses meanwhile
    /// and then continues unchanged.
    Resume {
        /// Maximum number of restarts within one generation or load.
        attempts: u32,
    },
}

impl WorkerProcess {
    /// Uses the application's own executable. Its `main` must begin with [`worker_main`](crate::worker_main). If this
    /// process has not called that function, no worker is started ([`Error::NoWorkerMain`]).
    pub fn own_executable() -> Self {
        let (environment, on_death) = (Vec::new(), OnDeath::Fail);
        Self { program: None, environment, patience: PATIENCE, timeout: TIMEOUT, on_death }
    }

    /// Uses the program `autoplace-worker`, or another program whose `main` begins with
    /// [`worker_main`](crate::worker_main). The program must be built with the same version of autoplace and llama.cpp.
    /// A program that is not a worker runs until [`patience`](Self::patience) is over.
    pub fn program(path: impl Into<PathBuf>) -> Self {
        Self { program: Some(path.into()), ..Self::own_executable() }
    }

    /// Sets what happens when the worker has died. Default: [`OnDeath::Fail`].
    pub fn on_death(mut self, policy: OnDeath) -> Self {
        self.on_death = policy;
        self
    }

    /// Sets an environment variable, in addition to the application's own.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the maximum time between the worker's start and its first message. After this time, the worker is killed.
    /// Default: a minute.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how long a busy worker may be silent. After this time, the worker is killed and counts as dead
    /// ([`Error::Silent`]). A worker sends a sign of life every few seconds, unless a single computation of llama.cpp
    /// takes longer, such as a batch of a prompt. After an abort the limit is at most 30 seconds. Default: ten minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Maximum number of restarts for one call.
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
        // After an update has replaced the executable, Linux still finds the running file under this path.
        let running = Path::new("/proc/self/exe");
        Ok(if !own.exists() && running.exists() { running.to_owned() } else { own })
    }
}
