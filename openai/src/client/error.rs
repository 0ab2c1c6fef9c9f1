//! Why an endpoint gives no answer.

use std::time::Duration;

use serde_json::Value;

/// Why there is no answer of an endpoint, or only a part of one. No error holds the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// No server answers there.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    /// The server refuses the request, or fails at it. `status` is HTTP's; of an error in the middle of an answer, what
    /// the server says, or 500. `param` is the parameter that it is about; `code` the server's name of it:
    /// `context_length_exceeded`.
    #[error("{url} answers {status}: {message}")]
    Refused { url: String, status: u16, message: String, param: Option<String>, code: Option<String> },
    /// What answers does not speak the API.
    #[error("{url} does not answer as OpenAI's API does: {reason}")]
    Protocol { url: String, reason: String },
    /// The connection ended before the answer did.
    #[error("{url} ended the connection in the middle of an answer: {reason}")]
    CutOff { url: String, reason: String },
    /// Nothing came for as long as was [allowed](super::Endpoint::timeout).
    #[error("{url} has said nothing for {silence:?}")]
    Silent { url: String, silence: Duration },
    /// The server has several models, or none, and none was [named](super::Endpoint::model).
    #[error("{url} has {} models: name one of [{}]", models.len(), models.join(", "))]
    WhichModel { url: String, models: Vec<String> },
    /// The API has no words for what was asked for.
    #[error("OpenAI's API cannot be asked for {what}")]
    Inexpressible { what: &'static str },
    /// The model calls a tool with something else than a JSON object.
    #[error("the call of `{name}` has no object for its arguments: {arguments}")]
    Call { name: String, arguments: String },
    /// A limit cut an answer short that was to be a value of a type.
    #[error("the answer was cut short at its limit of tokens: {text}")]
    Incomplete { text: String },
    /// The answer is no value of the type that was asked for.
    #[error("the answer is not of the type that was asked for: {reason}: {text}")]
    NotOfType { text: String, reason: String },
    /// No thread could be started to read the answer.
    #[error("no thread reads the answer: {reason}")]
    Thread { reason: String },
}

impl Error {
    /// Whether the conversation or prompt is longer than the server's context.
    pub fn is_too_long(&self) -> bool {
        // OpenAI's and our own name of it, and llama-server's.
        let names = ["context_length_exceeded", "exceed_context_size_error"];
        matches!(self, Self::Refused { code: Some(code), .. } if names.contains(&&**code))
    }

    /// Whether the server has too much to do: the same request may be answered later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { status: 429 | 503, .. })
    }

    /// By the body of an answer: `{"error": {..}}`, the error alone (vLLM), or a text.
    pub(super) fn refused(url: &str, status: u16, body: &str) -> Self {
        let json: Value = body.parse().unwrap_or_default();
        let error = json.get("error").unwrap_or(&json);
        let text = |of: &Value| of.as_str().map(str::to_owned);
        let message = text(&error["message"]).or_else(|| text(error)).unwrap_or_else(|| {
            let line = body.lines().next().unwrap_or_default();
            line.chars().take(200).collect()
        });
        Self::Refused {
            url: url.to_owned(),
            status: error["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or(status),
            message,
            param: text(&error["param"]),
            // llama-server says it in `type`, and has the status for a code.
            code: text(&error["code"]).or_else(|| text(&error["type"])),
        }
    }
}
