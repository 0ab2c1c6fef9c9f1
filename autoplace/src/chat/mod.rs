//! What is said in a conversation: messages, the tools that a model may call, and what its answers mean.
//!
//! In: messages. Out: the prompt that the model's own template makes of them; and of the text that a model answers, its parts. Nothing
//! here computes anything, so it needs no native library.

mod message;
mod reply;

pub use message::{Message, Role, Tool, ToolCall};
pub use reply::{
    CallError, MalformedCall, ReasoningMarks, Reply, ReplyFormat, ReplyParser, ReplyPart,
    ToolCallFormat, UnknownFormat,
};
