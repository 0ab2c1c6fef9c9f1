//! OpenAI's Responses API. It is translated to chat completions, and their answers are translated back to responses and
//! events.
//!
//! In: bodies of `/v1/responses`. Out: requests of chat completions; responses and events. docs/responses.md has the
//! table of fields, which `tests/openai/responses.rs` checks.

mod events;
mod items;
mod request;
mod store;
mod tools;

pub(super) use events::ResponseEvents;
pub(super) use request::translate;
pub(super) use store::{Store, not_stored};
