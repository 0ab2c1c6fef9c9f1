//! What a model's answer means: the text it says, what it thought before, and the tools it calls.
//!
//! In: the text of an answer as it is generated, its control tokens written out. Out: [`ReplyPart`]s as soon as they
//! are certain, and at the end a [`Reply`]. Which marks a model writes around them is its [`ReplyFormat`], which its
//! chat template shows. Nothing is lost: a call that cannot be read comes back as content.

mod arguments;
mod call;
mod channel;
mod family;
mod format;
mod json;
mod literal;
mod marks;
mod parser;
mod reader;
mod section;
mod tags;
mod written;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Message, ToolCall};

pub use family::ToolCallFormat;
pub use format::{ReasoningMarks, ReplyFormat};
pub use parser::ReplyParser;
pub use written::{Piece, WrittenBody, WrittenCall, WrittenChannels, WrittenTags};

/// A piece of an answer, in the order in which the model wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyPart {
    /// A piece of what the model thinks before it answers, without the marks around it.
    Reasoning(String),
    /// A piece of the answer itself.
    Content(String),
    /// A whole call of a tool.
    ToolCall(ToolCall),
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reply {
    /// What is said: all [`ReplyPart::Content`] together.
    pub content: String,
    /// What was thought: all [`ReplyPart::Reasoning`] together, if there was any.
    pub reasoning: Option<String>,
    /// The tools that are called, in the order of the text.
    pub tool_calls: Vec<ToolCall>,
    /// The calls that could not be read. Their text is in `content`.
    pub malformed: Vec<MalformedCall>,
    /// All that the model wrote, marks and whitespace included.
    pub raw: String,
}

impl Reply {
    /// The answer as a message of the conversation: what a template needs to write it into the next prompt.
    pub fn into_message(self) -> Message {
        Message { reasoning_content: self.reasoning, tool_calls: self.tool_calls, ..Message::assistant(self.content) }
    }
}

/// Text that begins as a call of a tool, and is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MalformedCall {
    /// What the model wrote, marks included; if already its beginning is not a call's, the opening mark alone.
    pub text: String,
    /// What is wrong with it.
    pub reason: CallError,
}

/// Why text is not a call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallError {
    /// The answer ended within it: at its limit of tokens, say.
    #[error("the answer ends within the call")]
    CutOff,
    /// Behind the opening mark, something stands that begins no call.
    #[error("no call follows its opening mark")]
    NotACall,
    /// Its JSON is not JSON.
    #[error("the call's JSON: {0}")]
    Json(String),
    /// It names no tool.
    #[error("the call names no tool")]
    NoName,
    /// Its arguments are something else than an object.
    #[error("the call's arguments are not an object")]
    NotAnObject,
    /// Its text is not what the format has at this place.
    #[error("the call has {found:?} where {expected} should stand")]
    Unexpected { expected: String, found: String },
}

impl CallError {
    fn unexpected(expected: &str, found: &str) -> Self {
        Self::Unexpected { expected: expected.to_owned(), found: found.chars().take(24).collect() }
    }
}
