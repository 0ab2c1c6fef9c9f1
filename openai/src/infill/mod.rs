//! Fill-in-the-middle, as llama-server's `/infill`: code editors send the text before and after the cursor, and get the
//! text between.
//!
//! In: bodies of `/infill`. Out: prompts of the vocabulary's fill-in-the-middle tokens; answers and events in
//! llama-server's own shape. docs/infill.md describes the fields.

mod events;
mod layout;
mod request;

pub(super) use events::InfillEvents;
pub(super) use request::InfillRequest;
