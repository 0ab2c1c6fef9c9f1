//! Parses the answer of a model into content, reasoning and tool calls.
//!
//! In: the text of an answer as it is generated, with its control tokens written out. Out: a [`ReplyPart`] as soon as
//! it is certain, and a [`Reply`] at the end. A [`ReplyFormat`], which is taken from the model's chat template,
//! describes the marks that the model writes. No text is lost: a call that cannot be parsed is returned as content.

mod arguments;
mod call;
mod channel;
mod family;
mod finish;
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
pub use finish::FinishReason;
pub use format::{ReasoningMarks, ReplyFormat};
pub use parser::ReplyParser;
pub use written::{Piece, WrittenBody, WrittenCall, WrittenChannels, WrittenTags};

/// A piece of an answer. The pieces have the same order as in the model's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyPart {
    /// A piece of the model's reasoning, without the marks around it.
    Reasoning(String),
    /// A piece of the answer itself.
    Content(String),
    /// A complete call of a tool.
    ToolCall(ToolCall),
}

/// A complete answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reply {
    /// The text of the answer: the texts of all [`ReplyPart::Content`], joined.
    pub content: String,
    /// The reasoning: the texts of all [`ReplyPart::Reasoning`], joined; `None` if there is none.
    pub reasoning: Option<String>,
    /// The tool calls, in the order in which the model wrote them.
    pub tool_calls: Vec<ToolCall>,
    /// Calls that could not be parsed. Their text is also in `content`.
    pub malformed: Vec<MalformedCall>,
    /// The model's complete text, with marks and whitespace.
    pub raw: String,
    /// Why the answer ended, if the program that generated it says so. If `max_tokens` or a full context has [cut an
    /// answer short](FinishReason::is_cut), it may nevertheless look complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
}

impl Reply {
    /// The answer as a message, from which a template can render the next prompt.
    pub fn into_message(self) -> Message {
        Message { reasoning_content: self.reasoning, tool_calls: self.tool_calls, ..Message::assistant(self.content) }
    }
}

/// A text that begins like a tool call but is no valid call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MalformedCall {
    /// The model's text, with its marks. If what follows the opening mark does not begin a call, this is only the mark.
    pub text: String,
    /// The reason why it is no valid call.
    pub reason: CallError,
}

/// The reason why a text is no tool call.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallError {
    /// The answer ended inside the call, for example at its token limit.
    #[error("the answer ends within the call")]
    CutOff,
    /// What follows the opening mark does not begin a call.
    #[error("no call follows its opening mark")]
    NotACall,
    /// The JSON is invalid.
    #[error("the call's JSON: {0}")]
    Json(String),
    /// The call names no tool.
    #[error("the call names no tool")]
    NoName,
    /// The arguments are not an object.
    #[error("the call's arguments are not an object")]
    NotAnObject,
    /// At this place, the text does not follow the format.
    #[error("the call has {found:?} instead of {expected}")]
    Unexpected { expected: String, found: String },
}

impl CallError {
    fn unexpected(expected: &str, found: &str) -> Self {
        Self::Unexpected { expected: expected.to_owned(), found: found.chars().take(24).collect() }
    }
}
