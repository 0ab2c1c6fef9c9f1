//! Why a template yields no text.

use std::error::Error as _;
use std::fmt;

use minijinja::{Error, ErrorKind};

use super::limits::{Limit, Limits};

/// What went wrong, and in which line of the template, from 1; 0 while that is not known.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) line: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum FaultKind {
    /// The source is no template.
    Syntax(String),
    /// The template itself called `raise_exception`.
    Raised(String),
    /// Something was done with a value that cannot be done with it.
    Failed(String),
    /// The template takes more than it is allowed to.
    Limit(Limit),
}

impl Fault {
    pub(super) fn new(kind: FaultKind) -> Box<Self> {
        Box::new(Self { kind, line: 0 })
    }
}

/// Carries a kind of fault through minijinja, whose errors have no place for it.
#[derive(Debug)]
struct Carried(FaultKind);

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FaultKind::Syntax(text) | FaultKind::Raised(text) | FaultKind::Failed(text) => f.write_str(text),
            FaultKind::Limit(limit) => limit.fmt(f),
        }
    }
}

impl std::error::Error for Carried {}

/// An error of minijinja's that says this.
pub(super) fn error(kind: FaultKind) -> Error {
    let carried = Carried(kind);
    Error::new(ErrorKind::InvalidOperation, carried.to_string()).with_source(carried)
}

/// A failure of the template.
pub(super) fn failed(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// What an error of minijinja's says.
pub(super) fn fault(error: &Error, limits: &Limits) -> Box<Fault> {
    let line = error.line().and_then(|line| line.try_into().ok());
    let mut source = error.source();
    let mut carried = None;
    while let Some(inner) = source {
        if let Some(Carried(kind)) = inner.downcast_ref() {
            carried = Some(kind.clone());
        }
        source = inner.source();
    }
    let words = || match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    let kind = carried.unwrap_or_else(|| match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => FaultKind::Syntax(words()),
        ErrorKind::OutOfFuel => FaultKind::Limit(Limit::Steps(limits.steps)),
        _ if words().contains("recursion limit") => FaultKind::Limit(Limit::Calls(limits.calls)),
        _ => FaultKind::Failed(words()),
    });
    Box::new(Fault { kind, line: line.unwrap_or(0) })
}
