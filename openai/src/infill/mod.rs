//! Fill-in-the-middle, like llama-server's `/infill`: code editors send the text before and after the cursor, and get
//! the text between.
//!
//! In: bodies of `/infill`. Out: prompts with the vocabulary's fill-in-the-middle tokens, and answers and events in
//! llama-server's own form. The fields are described in docs/infill.md.

mod events;
mod layout;
mod request;

pub(super) use events::InfillEvents;
pub(super) use request::InfillRequest;
