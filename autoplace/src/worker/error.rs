//! The errors of worker processes.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A static string. The alias hides `&'static str` from serde, which would otherwise infer a borrowed error type.
pub(crate) type Word = &'static str;

/// An error of a worker process, or an error at its start.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The program cannot start.
    #[error("cannot start the worker {}: {reason}", .program.display())]
    Start { program: PathBuf, reason: String },
    /// The worker should be the application's own executable, but this process has not called `worker_main`. The
    /// executable would therefore run the application a second time. Nothing was started.
    #[error(
        "this program cannot be its own worker: `main` must begin with `autoplace::worker_main()`, which was not \
         called; `WorkerProcess::program` names another program that does"
    )]
    NoWorkerMain,
    /// A worker tried to start a worker, because its `main` does not begin with `worker_main`.
    #[error("this process is a worker and cannot start another one: `main` must begin with `autoplace::worker_main()`")]
    Nested,
    /// The program of the worker was built with another version of autoplace or llama.cpp.
    #[error("the worker {} is another build: {theirs} instead of {ours}", .program.display())]
    OtherBuild { program: PathBuf, ours: String, theirs: String },
    /// A message is longer than the limit of the other side.
    #[error("a message of {bytes} bytes is too long for a worker, which reads at most {limit}")]
    TooLong { bytes: usize, limit: usize },
    /// The worker answered with an error whose type cannot be sent. `kind` is the name of the error's variant, such as
    /// `Plan` or `Native`.
    #[error("{message}")]
    Answered { kind: String, message: String },
    /// The started program did not identify itself as a worker. `status` is `None` if it had to be killed. `log`
    /// contains the last lines that the program printed, the oldest first.
    #[error(
        "{} {} and did not identify itself as a worker: does its `main` begin with `autoplace::worker_main()`?{}",
        .program.display(), how(status.as_ref()), last(log)
    )]
    #[serde(skip)]
    NotAWorker { program: PathBuf, status: Option<ExitStatus>, log: Vec<String> },
    /// The worker died: llama.cpp or another process ended it. `status` is its exit code or signal; `None` if the
    /// operating system reports neither. `log` contains the last lines that the worker printed, at most 64, the oldest
    /// first.
    #[error("the worker died while {doing}: {}{}", how(status.as_ref()), last(log))]
    #[serde(skip)]
    Died { doing: Word, status: Option<ExitStatus>, log: Vec<String> },
    /// The worker showed no sign of life for [`WorkerProcess::timeout`](super::WorkerProcess::timeout), or did not
    /// react to an abort, and was killed.
    #[error("the worker showed no sign of life for {silent:.1?} while {doing}, and was killed{}", last(log))]
    #[serde(skip)]
    Silent { doing: Word, silent: Duration, log: Vec<String> },
    /// The worker violated the protocol and was killed.
    #[error("the worker violated the protocol while {doing}: {reason}")]
    #[serde(skip)]
    Protocol { doing: Word, reason: String },
    /// The call needs the model in this process, but the model runs in another process.
    #[error("the model runs in a worker process: {what} is not available")]
    #[serde(skip)]
    Elsewhere { what: Word },
}

impl Error {
    /// Whether the worker is gone, so that another one may succeed.
    pub fn is_death(&self) -> bool {
        matches!(self, Self::Died { .. } | Self::Silent { .. })
    }
}

fn how(status: Option<&ExitStatus>) -> String {
    status.map_or_else(|| "had to be killed".to_owned(), |status| format!("ended ({status})"))
}

/// The last line of the log, which tells the most.
fn last(log: &[String]) -> String {
    log.last().map(|line| format!("; its last line: {line}")).unwrap_or_default()
}
