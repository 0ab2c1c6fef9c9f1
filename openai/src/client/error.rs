//! Errors of an endpoint.

use std::time::Duration;

use serde_json::Value;

/// The reason why an endpoint returned no answer, or only a part of one. No error contains the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// No server answers at the address.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    /// The server refused the request or failed. `status` is the HTTP status. For an error in the middle of an answer,
    /// it is the code that the server sends, or 500. `param` is the parameter that the error is about. `code` is the
    /// server's name for the error, such as `context_length_exceeded`.
    #[error("{url} answers {status}: {message}")]
    Refused { url: String, status: u16, message: String, param: Option<String>, code: Option<String> },
    /// The answer does not follow the API.
    #[error("{url} does not answer as OpenAI's API does: {reason}")]
    Protocol { url: String, reason: String },
    /// The connection ended before the answer did.
    #[error("{url} ended the connection in the middle of an answer: {reason}")]
    CutOff { url: String, reason: String },
    /// For the [allowed](super::Endpoint::timeout) time, no data arrived.
    #[error("{url} has said nothing for {silence:?}")]
    Silent { url: String, silence: Duration },
    /// The server has no model or several models, and the application did not [name](super::Endpoint::model) one of
    /// them.
    #[error("{url} has {} models: name one of [{}]", models.len(), models.join(", "))]
    WhichModel { url: String, models: Vec<String> },
    /// The request contains something that the API cannot express.
    #[error("OpenAI's API cannot express {what}")]
    Inexpressible { what: &'static str },
    /// A setting is NaN or infinite, for which JSON has no number. Nothing was sent.
    #[error("`{parameter}` is {value}: a request can contain finite numbers only")]
    NotFinite { parameter: &'static str, value: String },
    /// The arguments of a tool call are not a JSON object.
    #[error("the arguments of the call of `{name}` are not a JSON object: {arguments}")]
    Call { name: String, arguments: String },
    /// The answer should be a value of a type, but a limit cut it short.
    #[error("the answer was cut short at its limit of tokens: {text}")]
    Incomplete { text: String },
    /// The answer is not a value of the requested type.
    #[error("the answer is not of the requested type: {reason}: {text}")]
    NotOfType { text: String, reason: String },
    /// No thread could be started to read the answer.
    #[error("the thread that reads the answer cannot start: {reason}")]
    Thread { reason: String },
}

impl Error {
    /// Whether the conversation or prompt is longer than the server's context.
    pub fn is_too_long(&self) -> bool {
        // The first code is from OpenAI and our server, the second from llama-server.
        let names = ["context_length_exceeded", "exceed_context_size_error"];
        matches!(self, Self::Refused { code: Some(code), .. } if names.contains(&&**code))
    }

    /// Whether the server is overloaded. The same request may succeed later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { status: 429 | 503, .. })
    }

    /// Parses the body of an error: `{"error": {..}}`, the error object alone (vLLM), or text.
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
            // llama-server puts the error's name into `type`, and the status into `code`.
            code: text(&error["code"]).or_else(|| text(&error["type"])),
        }
    }
}
