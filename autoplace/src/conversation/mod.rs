//! Conversations. In: messages. Out: the parts of an answer.
//!
//! A [`Chat`](crate::generate::Chat) keeps the messages, renders them with the model's template, and reads the answer's
//! text as reasoning, content and tool calls. When the context is full, the oldest turns are left out (`window`).

mod answer;
#[cfg(feature = "async")]
mod async_stream;
pub(crate) mod chat;
pub(crate) mod stream;
#[cfg_attr(not(feature = "constraints"), path = "no_tool_choice.rs")]
pub(crate) mod tool_choice;
pub(crate) mod window;
