//! OpenAI's Responses API. A request is translated to a request for chat completions, and the answer is translated back
//! to a response and its events.
//!
//! In: bodies of `/v1/responses`. Out: requests for chat completions, responses and events. docs/responses.md has a
//! table of the fields, and `tests/openai/responses.rs` checks it.

mod events;
mod items;
mod request;
mod store;
mod tools;

pub(super) use events::ResponseEvents;
pub(super) use request::translate;
pub(super) use store::{Store, not_stored};
