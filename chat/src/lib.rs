#![doc = include_str!("../README.md")]
//!
//! [`Conversation`] contains the messages, [`ChatTemplate`] renders them as a [`Rendered`] prompt, and [`ReplyParser`]
//! reads the answer.

#![forbid(unsafe_code)]

mod content;
mod continuing;
mod control;
mod conversation;
mod error;
mod family;
mod generic;
mod history;
mod jinja;
mod marks;
mod media;
mod message;
mod rendered;
mod reply;
mod special;
mod template;

pub use content::{Attached, Content, Part};
pub use conversation::Conversation;
pub use error::Error;
pub use family::FAMILIES;
#[doc(hidden)]
pub use history::with_ids;
pub use jinja::{Limit, Limits, LocalTime};
pub use media::Media;
pub use message::{Message, Role, Tool, ToolCall};
pub use rendered::{PromptPart, Rendered};
pub use reply::{
    CallError, FinishReason, MalformedCall, ReasoningMarks, Reply, ReplyFormat, ReplyParser, ReplyPart, ToolCallFormat,
};
/// Descriptions of the formats of calls, from which grammars can be built.
pub mod written {
    pub use crate::reply::{Piece, WrittenBody, WrittenCall, WrittenChannels, WrittenTags};
}
pub use special::SpecialTokens;
pub use template::ChatTemplate;
