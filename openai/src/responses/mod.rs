//! OpenAI's Responses API: a translation onto chat completions, and their answers as responses and events.
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
pub(super) use store::Store;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// A thought as a client keeps it for the next request. It is not encrypted: the client may read it.
fn encoded_thought(thought: &str) -> String {
    BASE64_STANDARD.encode(thought)
}

fn decoded_thought(encoded: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}
