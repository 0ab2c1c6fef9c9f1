//! The errors of a pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use autoplace::{load, plan};

/// An error of a pool: of its file, of a decision, or of a request for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Error {
    /// No model of the pool has this name or alias.
    #[error("the model `{name}` is not in the pool: it has {}", known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    /// There is no room for the model, even if all models are unloaded except those that must stay loaded.
    #[error("{name} does not fit beside {}, which the pool keeps loaded", kept.join(" and "))]
    NoRoom { name: String, kept: Vec<String> },
    /// No plan can be made for the model: it fits nowhere on this machine, or its request is impossible. Everybody who
    /// waits for the model gets the same error.
    #[error("{name}: {source}")]
    Plan {
        name: String,
        #[source]
        source: Arc<plan::Error>,
    },
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A line of the file is invalid.
    #[error("{}, line {line}{}: {problem}", file.display(), key.as_ref().map_or(String::new(), |key| format!(", `{key}`")))]
    Line { file: PathBuf, line: usize, key: Option<String>, problem: String },
    /// A specification is invalid by itself, or does not agree with the others: two models have the same name or alias,
    /// or a model names a model that is not in the pool.
    #[error("the model `{name}`: {problem}")]
    Specification { name: String, problem: String },
    /// The model cannot be loaded. Everybody who waits for it gets the same error.
    #[error("{name}: {source}")]
    Load {
        name: String,
        #[source]
        source: Arc<load::Error>,
    },
    /// The request has waited for the longest time that the pool allows.
    #[error("{name} was not loaded within {:.0} s: {reason}", time.as_secs_f64())]
    TimedOut { name: String, time: Duration, reason: String },
    /// The pool has ended.
    #[error("the pool has ended")]
    Closed,
    /// The pool's thread cannot start.
    #[error("the pool's thread cannot start: {0}")]
    Thread(#[source] std::io::Error),
}

/// An error that all requests for a model get.
#[derive(Debug)]
pub(crate) enum Reason {
    Load(Arc<load::Error>),
    Plan(Arc<plan::Error>),
    NoRoom { name: String, kept: Vec<String> },
}

impl Reason {
    /// The error for one of these requests. `name` is the name of the model that cannot be planned or loaded.
    pub(crate) fn error(&self, name: &str) -> Error {
        match self {
            Self::Load(source) => Error::Load { name: name.to_owned(), source: Arc::clone(source) },
            Self::Plan(source) => Error::Plan { name: name.to_owned(), source: Arc::clone(source) },
            Self::NoRoom { name, kept } => Error::NoRoom { name: name.clone(), kept: kept.clone() },
        }
    }

    /// The words for a model's state, which stand beside the model's name.
    pub(crate) fn words(&self, name: &str) -> String {
        match self {
            Self::Load(source) => source.to_string(),
            Self::Plan(source) => source.to_string(),
            Self::NoRoom { .. } => self.error(name).to_string(),
        }
    }
}

impl From<load::Error> for Reason {
    fn from(error: load::Error) -> Self {
        match error {
            load::Error::Plan(error) => Self::Plan(Arc::new(error)),
            error => Self::Load(Arc::new(error)),
        }
    }
}
