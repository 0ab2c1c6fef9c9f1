//! What is said in a conversation: messages, the tools that a model may call, and what its answers mean.
//!
//! In: messages. Out: the prompt that the model's own template makes of them; and of the text that a model
//! answers, its parts. Nothing here computes anything, so it needs no native library. The crate `autoplace` has
//! the models to talk to.
//!
//! [`Conversation`] holds the messages, [`ChatTemplate`] makes a [`Rendered`] prompt of them, and [`ReplyParser`]
//! reads the answer.

#![forbid(unsafe_code)]

mod continuing;
mod control;
mod conversation;
mod error;
mod family;
mod generic;
mod history;
mod jinja;
mod message;
mod rendered;
mod reply;
mod special;
mod template;

pub use conversation::Conversation;
pub use error::Error;
pub use family::FAMILIES;
#[doc(hidden)]
pub use history::with_ids;
pub use jinja::{Limit, Limits, LocalTime};
pub use message::{Message, Role, Tool, ToolCall};
pub use rendered::{Part, Rendered};
pub use reply::{CallError, MalformedCall, ReasoningMarks, Reply, ReplyFormat, ReplyParser, ReplyPart, ToolCallFormat};
/// How formats of calls are written, for grammars of them.
pub mod written {
    pub use crate::reply::{Piece, WrittenBody, WrittenCall, WrittenChannels, WrittenTags};
}
pub use special::SpecialTokens;
pub use template::ChatTemplate;
