//! Errors on their way from a worker: those that a stream can meet keep their fields.

use serde::{Deserialize, Serialize};

use crate::generate::error::Error;
use crate::generate::session::FinishReason;
use crate::load;

/// An error on its way from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    Busy,
    EmptyPrompt,
    PromptTooLong {
        tokens: usize,
        context: usize,
    },
    NotGenerative {
        architecture: String,
    },
    EmptyStop,
    NothingToShift {
        keep: usize,
        context: usize,
    },
    ChoicesLost {
        choices: usize,
    },
    NotOneToken {
        text: String,
        tokens: usize,
    },
    TooManyLogprobs {
        asked: usize,
        most: usize,
    },
    Constraint {
        constraint: String,
        reason: String,
    },
    NoTokenAllowed {
        constraint: String,
        tokens: usize,
        reason: String,
    },
    Incomplete {
        limit: FinishReason,
    },
    Load(load::Failure),
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        match error {
            Error::Busy => Self::Busy,
            Error::EmptyPrompt => Self::EmptyPrompt,
            Error::PromptTooLong { tokens, context } => Self::PromptTooLong {
                tokens: *tokens,
                context: *context,
            },
            Error::NotGenerative { architecture } => Self::NotGenerative {
                architecture: architecture.clone(),
            },
            Error::EmptyStop => Self::EmptyStop,
            Error::NothingToShift { keep, context } => Self::NothingToShift {
                keep: *keep,
                context: *context,
            },
            Error::ChoicesLost { choices } => Self::ChoicesLost { choices: *choices },
            Error::NotOneToken { text, tokens } => Self::NotOneToken {
                text: text.clone(),
                tokens: *tokens,
            },
            Error::TooManyLogprobs { asked, most } => Self::TooManyLogprobs {
                asked: *asked,
                most: *most,
            },
            Error::Constraint { constraint, reason } => Self::Constraint {
                constraint: constraint.clone(),
                reason: reason.clone(),
            },
            Error::NoTokenAllowed {
                constraint,
                tokens,
                reason,
            } => Self::NoTokenAllowed {
                constraint: constraint.clone(),
                tokens: *tokens,
                reason: reason.clone(),
            },
            Error::Incomplete { limit, .. } => Self::Incomplete { limit: *limit },
            Error::Native(error) => Self::Load(error.into()),
            Error::Load(error) => Self::Load((&**error).into()),
            Error::Worker(error) => Self::Load((&load::Error::from(error.clone())).into()),
            // Those of sessions, which a worker has none of.
            error => Self::Load(load::Failure::Other {
                kind: "Generate".to_owned(),
                message: error.to_string(),
            }),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Busy => Self::Busy,
            Failure::EmptyPrompt => Self::EmptyPrompt,
            Failure::PromptTooLong { tokens, context } => Self::PromptTooLong { tokens, context },
            Failure::NotGenerative { architecture } => Self::NotGenerative { architecture },
            Failure::EmptyStop => Self::EmptyStop,
            Failure::NothingToShift { keep, context } => Self::NothingToShift { keep, context },
            Failure::ChoicesLost { choices } => Self::ChoicesLost { choices },
            Failure::NotOneToken { text, tokens } => Self::NotOneToken { text, tokens },
            Failure::TooManyLogprobs { asked, most } => Self::TooManyLogprobs { asked, most },
            Failure::Constraint { constraint, reason } => Self::Constraint { constraint, reason },
            Failure::NoTokenAllowed {
                constraint,
                tokens,
                reason,
            } => Self::NoTokenAllowed {
                constraint,
                tokens,
                reason,
            },
            Failure::Incomplete { limit } => Self::Incomplete {
                limit,
                text: String::new(),
            },
            Failure::Load(failure) => load::Error::from(failure).into(),
        }
    }
}
