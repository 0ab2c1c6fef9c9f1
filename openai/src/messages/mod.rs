//! Anthropic's Messages API. A request is translated to a request for chat completions, and the answer is translated
//! back to a message and its events.
//!
//! In: bodies of `/v1/messages` and `/v1/messages/count_tokens`. Out: requests for chat completions, and messages,
//! events and errors in Anthropic's form. docs/messages.md has a table of the fields, and `tests/openai/messages.rs`
//! checks it.

mod blocks;
mod events;
mod request;
mod stamps;
mod thoughts;

pub(super) use events::{Message, MessageEvents};
pub(super) use request::translate;

use serde_json::{Value, json};

use super::error::ApiError;

/// The body of an error in Anthropic's form.
pub(super) fn error_json(error: &ApiError) -> Value {
    let kind = match error.status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    let message = match error.code {
        // Coding agents shorten the conversation when they see these words.
        Some("context_length_exceeded") => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": null})
}

/// Anthropic's status for an error. For example, an overloaded server answers with 529.
pub(super) fn status(error: &ApiError) -> u16 {
    match error.status {
        503 => 529,
        status => status,
    }
}
