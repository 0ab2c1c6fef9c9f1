//! Errors that occur in templates.

use std::error::Error as _;
use std::iter;

use minijinja::ErrorKind;

use super::limits::{Limit, Limits};
use crate::Error;

/// Puts one of our errors (a refusal or a limit) into an error of minijinja, which has no variant for it.
pub(super) fn carried(error: Error) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()).with_source(error)
}

/// The error for a fault of the template.
pub(super) fn failed(reason: impl Into<String>) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// Turns an error of minijinja into one of ours.
pub(super) fn fault(error: &minijinja::Error, limits: &Limits) -> Error {
    let line = error.line().and_then(|line| line.try_into().ok()).unwrap_or(0);
    let sources = iter::successors(error.source(), |&inner| inner.source());
    match sources.filter_map(|inner| inner.downcast_ref()).last() {
        Some(Error::Refused { reason }) => return Error::Refused { reason: reason.clone() },
        Some(Error::Limit { limit, .. }) => return Error::Limit { limit: *limit, line },
        _ => {}
    }
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => Error::Syntax { line, reason },
        ErrorKind::OutOfFuel => Error::Limit { limit: Limit::Steps(limits.steps), line },
        _ if reason.contains("recursion limit") => Error::Limit { limit: Limit::Calls(limits.calls), line },
        _ => Error::Failed { line, reason },
    }
}
