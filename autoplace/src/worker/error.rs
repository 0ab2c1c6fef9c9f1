//! What can go wrong between an application and its worker.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Words of this program. By their own type, serde would borrow all errors for ever.
pub(crate) type Word = &'static str;

/// An error of the process that a model runs in, or on the way to it.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The program cannot be started.
    #[error("cannot start the worker {}: {reason}", .program.display())]
    Start { program: PathBuf, reason: String },
    /// The application's own executable was to be its worker, and `worker_main` was not called in this process: the
    /// worker would run the application a second time. Nothing was started.
    #[error(
        "this program cannot be its own worker: `main` has to begin with `autoplace::worker_main()`, which was not \
         called; a program that does is named with `WorkerProcess::program`"
    )]
    NoWorkerMain,
    /// A worker was asked to start one: its `main` does not begin with `worker_main`, and has come to a load.
    #[error(
        "this process was started as a worker, which starts no others: `main` has to begin with `autoplace::worker_main()`"
    )]
    Nested,
    /// The worker was built with another autoplace or llama.cpp.
    #[error("the worker {} is of another build: {theirs}, and this is {ours}", .program.display())]
    OtherBuild { program: PathBuf, ours: String, theirs: String },
    /// A message is longer than the other side would read.
    #[error("a message of {bytes} bytes is too long for a worker, which reads at most {limit}")]
    TooLong { bytes: usize, limit: usize },
    /// The worker answered with an error that has no type of its own on this side. `kind` is its name there, such as
    /// `Plan` or `Native`.
    #[error("{message}")]
    Answered { kind: String, message: String },
    /// The program that was started did not say that it is a worker. `status` is `None` where it had to be ended; `log`
    /// is what it wrote last, oldest first.
    #[error(
        "{} {}, and never said that it is a worker: does its `main` begin with `autoplace::worker_main()`?{}",
        .program.display(), how(status.as_ref()), last(log)
    )]
    #[serde(skip)]
    NotAWorker { program: PathBuf, status: Option<ExitStatus>, log: Vec<String> },
    /// The worker died: llama.cpp ended it, or something from outside did. `status` is its code or signal, `None` where
    /// the operating system reports none; `log` has the last lines that were written in it, at most 64, oldest first.
    #[error("the worker died while {doing}: {}{}", how(status.as_ref()), last(log))]
    #[serde(skip)]
    Died { doing: Word, status: Option<ExitStatus>, log: Vec<String> },
    /// The worker showed no sign of life for so long ([`WorkerProcess::timeout`](super::WorkerProcess::timeout)), or
    /// did not hear of an abort, and was ended.
    #[error("the worker showed no sign of life for {silent:.1?} while {doing}, and was ended{}", last(log))]
    #[serde(skip)]
    Silent { doing: Word, silent: Duration, log: Vec<String> },
    /// The worker said something that makes no sense, and was ended.
    #[error("the worker made no sense while {doing}: {reason}")]
    #[serde(skip)]
    Protocol { doing: Word, reason: String },
    /// The model runs in another process, and the call needs it in this one.
    #[error("the model runs in a worker process, and {what} is there")]
    #[serde(skip)]
    Elsewhere { what: Word },
}

impl Error {
    /// Whether the process is gone, so that another one may succeed.
    pub fn is_death(&self) -> bool {
        matches!(self, Self::Died { .. } | Self::Silent { .. })
    }
}

fn how(status: Option<&ExitStatus>) -> String {
    status.map_or_else(|| "had to be ended".to_owned(), |status| format!("ended ({status})"))
}

/// The line that says most: the last one.
fn last(log: &[String]) -> String {
    log.last().map(|line| format!("; its last line: {line}")).unwrap_or_default()
}
