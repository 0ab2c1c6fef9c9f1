//! Decoding, one step at a time. In: sequences of tokens. Out: pieces of text.
//!
//! A request (`request`) becomes a `Sequence`: its tokens, its sampler, its constraint and its text so far. A `Step`
//! computes one batch, which contains the next tokens of several sequences, and chooses the token that follows in each
//! sequence. The `Cache` and its checkpoints determine which tokens of a prompt the context holds already;
//! `speculative` drafts tokens; `text` turns tokens into whole characters. This room does not know the callers of its
//! steps, which are in the room `run`.

pub(crate) mod cache;
pub(crate) mod checkpoints;
pub(crate) mod choose;
#[cfg_attr(not(feature = "constraints"), path = "unconstrained.rs")]
pub(crate) mod constraint;
pub(crate) mod context;
pub(crate) mod custom;
pub(crate) mod error;
pub(crate) mod media;
mod model;
pub(crate) mod piece;
pub(crate) mod prefix;
pub(crate) mod prompt;
pub(crate) mod prompt_order;
pub(crate) mod request;
pub(crate) mod sampling;
pub(crate) mod schedule;
pub(crate) mod sequence;
pub(crate) mod shift;
pub(crate) mod speculative;
pub(crate) mod stats;
pub(crate) mod step;
pub(crate) mod stored;
pub(crate) mod text;
