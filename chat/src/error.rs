//! Why there is no prompt.

use autoplace_planner::gguf;

use super::jinja::{Fault, FaultKind, Limit};

/// A chat template cannot be had, or yields no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model ships no chat template.
    #[error(
        "{file} has no chat template (`tokenizer.chat_template`): give one as text with `ChatTemplate::new`, or name its family with \
         `ChatTemplate::family`, one of {}",
        super::FAMILIES.join(", ")
    )]
    NoTemplate {
        /// The file, or `<memory>` where the header came from there.
        file: String,
    },
    /// The model ships no variant of that name.
    #[error("there is no chat template `{name}`, only {known}")]
    NoVariant {
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// No family has that name.
    #[error(
        "there is no family of chat templates `{name}`, only {}",
        super::FAMILIES.join(", ")
    )]
    UnknownFamily {
        /// The name that was asked for.
        name: String,
    },
    /// The header could not be read as it claims to be.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The template's source is no template.
    #[error("the chat template is wrong in line {line}: {reason}")]
    Syntax {
        /// Line of the source, from 1.
        line: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The template says that it cannot render this conversation: it called `raise_exception`.
    #[error("the chat template refuses the conversation: {reason}")]
    Refused {
        /// What it says.
        reason: String,
    },
    /// The template did something that cannot be done.
    #[error("the chat template failed in line {line}: {reason}")]
    Failed {
        /// Line of the source, from 1.
        line: u32,
        /// What it did.
        reason: String,
    },
    /// The template takes more than it may: see [`Limits`](super::Limits).
    #[error("the chat template was stopped at {limit} (line {line})")]
    Limit {
        /// Which limit it has reached.
        limit: Limit,
        /// Line of the source, from 1; 0 where it is about the whole.
        line: u32,
    },
    /// There are tools, and the template shows the model none: it could not know of them.
    #[error(
        "the chat template shows no tools, so the model would not know of the {tools} given: leave them out, describe them in a message, \
         or use a model whose template has them"
    )]
    ToolsNotShown {
        /// How many were given.
        tools: usize,
    },
    /// The last message is to be continued, and the template does not show it as it is.
    #[error("the last message cannot be continued: {reason}")]
    Continue {
        /// What is in the way.
        reason: &'static str,
    },
}

impl From<Box<Fault>> for Error {
    fn from(fault: Box<Fault>) -> Self {
        let line = fault.line;
        match fault.kind {
            FaultKind::Syntax(reason) => Self::Syntax { line, reason },
            FaultKind::Raised(reason) => Self::Refused { reason },
            FaultKind::Failed(reason) => Self::Failed { line, reason },
            FaultKind::Limit(limit) => Self::Limit { limit, line },
        }
    }
}
