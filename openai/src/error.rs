//! Errors in the form of OpenAI's API.

use serde_json::{Value, json};

use super::messages;
use autoplace::worker::Error as WorkerError;
use autoplace::{chat, embed, generate};

/// An error in the API's form: an HTTP status, and a body `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ApiError {
    /// The HTTP status: 400 for an invalid request, 404 for another model's name, 501 for a feature that the model
    /// lacks, 503 for a full queue, 500 for errors that the client did not cause.
    pub status: u16,
    /// The message, for people.
    pub message: String,
    /// The parameter that the error is about, such as `messages[2].content`.
    pub param: Option<String>,
    /// The code, for programs, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
}

/// The code of an error that occurs because the model's worker process has died.
pub(crate) const WORKER_DIED: &str = "worker_died";

impl ApiError {
    /// An error with this status. If the client caused the error, the message repeats parts of the request, so the
    /// message is cut at 8 KiB.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if (400..500).contains(&status) {
            cut(&mut message, MAX_MESSAGE_BYTES);
        }
        Self { status, message, param: None, code: None }
    }

    /// Sets the code that programs read.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The error for an invalid parameter.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut param = param.into();
        cut(&mut param, MAX_PARAM_BYTES);
        Self { param: Some(param), ..Self::new(400, message) }
    }

    /// The error for a parameter or value that is not supported.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(param, message).with_code("unsupported_parameter")
    }

    /// The error for a field that is missing in the object at `place`.
    pub(super) fn missing(place: &str, field: &str) -> Self {
        Self::invalid(place, format!("{place}: the field `{field}` is missing"))
    }

    /// The error for a parameter that the request contains under two names.
    pub(super) fn given_twice(second: &str, first: &str) -> Self {
        let message = format!(
            "`{second}` is given in addition to `{first}`, another name of the same parameter: use one of them"
        );
        Self::invalid(second, message)
    }

    /// The error that ends a request which runs longer than a stopping server waits.
    #[cfg(feature = "server")]
    pub(super) fn stopping() -> Self {
        let message = "the server is stopping, and this request did not end in time: send it again later";
        Self::new(503, message).with_code("shutting_down")
    }

    /// The body of the response.
    pub fn to_json(&self) -> Value {
        let kind = match self.status {
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {
            "message": self.message, "type": kind, "param": self.param, "code": self.code,
        }})
    }

    /// The status in Anthropic's API, where an overloaded server answers with 529.
    pub fn anthropic_status(&self) -> u16 {
        messages::status(self)
    }

    /// The body of the response in the form of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`.
    pub fn to_anthropic_json(&self) -> Value {
        messages::error_json(self)
    }

    /// The error of a failed generation. `prompt` is the name of the parameter that contains the prompt.
    pub(super) fn of_generation(error: &generate::Error, prompt: &str) -> Self {
        use generate::Error;
        let message = error.to_string();
        match error {
            Error::PromptTooLong { .. } => Self::invalid(prompt, message).with_code("context_length_exceeded"),
            Error::NoProjector { in_worker: true, .. } => Self::new(501, message),
            // Errors that the client caused. These include pictures and sounds that are too large for a message to the
            // model's process.
            Error::EmptyPrompt | Error::Media { .. } | Error::NoProjector { .. } | Error::CannotShift { .. } => {
                Self::invalid(prompt, message)
            }
            Error::NotOneToken { .. } => Self::invalid("logit_bias_text", message),
            Error::TooManyLogprobs { .. } => Self::invalid("logprobs", message),
            Error::Constraint { place, .. } if !place.is_empty() => Self::invalid(place, message),
            Error::Constraint { .. } => Self::invalid("response_format", message),
            Error::Native(autoplace::llama_sys::Error::InvalidParameter { name, value, reason }) => match name_of(name)
            {
                Some(name) => Self::invalid(name, format!("`{name}` is {value}: {reason}")),
                None => Self::new(400, message),
            },
            Error::Template(error) => Self::of_template(error, prompt),
            Error::QueueFull { .. } => Self::new(503, message).with_code("overloaded"),
            Error::EngineEnded => Self::new(503, message).with_code("shutting_down"),
            // The request was not sent to the worker, and the worker is still running.
            Error::Worker(WorkerError::TooLong { .. }) => Self::invalid(prompt, message),
            Error::Worker(error) if error.is_death() => Self::new(500, message).with_code(WORKER_DIED),
            _ => Self::new(500, message),
        }
    }

    /// As [`of_generation`](Self::of_generation), but an error about a picture or a sound contains its place. `places`
    /// contains the places of all pictures and sounds.
    pub(super) fn of_media(error: &generate::Error, places: &[String], prompt: &str) -> Self {
        let place = match error {
            generate::Error::Media { index, .. } => places.get(*index),
            _ => None,
        };
        match place {
            Some(place) => Self::invalid(place, format!("{place}: {error}")),
            None => Self::of_generation(error, prompt),
        }
    }

    /// The error of a chat template that failed to make a prompt.
    pub(super) fn of_template(error: &chat::Error, prompt: &str) -> Self {
        match error {
            chat::Error::NoTemplate { .. } => {
                let message =
                    "the model has no chat template: use /v1/completions, or start the server with a template";
                Self::new(400, message).with_code("no_chat_template")
            }
            chat::Error::MediaNotShown { .. } => Self::unsupported(prompt, error.to_string()),
            // The model's own template is invalid. Then every request fails, so the client is not at fault.
            chat::Error::Syntax { .. } | chat::Error::Header(_) => Self::new(500, error.to_string()),
            chat::Error::ToolsNotShown { .. } => Self::invalid("tools", error.to_string()),
            error => Self::invalid(prompt, error.to_string()),
        }
    }
}

/// Maximum bytes of the message of an error that the client caused, and of the parameter's name.
const MAX_MESSAGE_BYTES: usize = 8 << 10;
const MAX_PARAM_BYTES: usize = 1 << 10;

/// Cuts a text that is too long, and marks the cut.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ...");
        text.shrink_to_fit();
    }
}

/// Maximum bytes of text for each token of the context. In most texts, a token is three or four bytes long.
const BYTES_PER_TOKEN: usize = 32;

/// Refuses a text that is far too long for the context, without tokenizing the text. A tokenizer needs up to 120
/// times as much memory as the text (a text of one repeated letter, SmolLM2).
pub(super) fn check_length(bytes: usize, context: usize, param: &str) -> Result<(), ApiError> {
    let most = context.saturating_mul(BYTES_PER_TOKEN);
    if bytes <= most {
        return Ok(());
    }
    let message =
        format!("{param}: the text has {bytes} bytes, but a context of {context} tokens has room for at most {most}");
    Err(ApiError::invalid(param, message).with_code("context_length_exceeded"))
}

/// The beginning of a text. The part that is cut off could not fit into this many tokens.
pub(super) fn beginning(text: &str, tokens: usize) -> &str {
    let most = tokens.saturating_mul(BYTES_PER_TOKEN).min(text.len());
    // `str::floor_char_boundary` is newer than the oldest supported Rust.
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// The name that requests use for this parameter of llama.cpp; `None` if there are several names.
fn name_of(native: &'static str) -> Option<&'static str> {
    Some(match native {
        "token" => return None,
        "temp" => "temperature",
        "penalty_repeat" => "repeat_penalty",
        "penalty_freq" => "frequency_penalty",
        "penalty_present" => "presence_penalty",
        "penalty_last_n" => "repeat_last_n",
        other => other,
    })
}

impl From<embed::Error> for ApiError {
    fn from(error: embed::Error) -> Self {
        let message = error.to_string();
        match error {
            embed::Error::TooLong { index, tokens, limit } => {
                let message = format!(
                    "input[{index}] is {tokens} tokens long, and the longest text that can be embedded is {limit}: \
                     `truncate`: true cuts it"
                );
                Self::invalid(format!("input[{index}]"), message).with_code("context_length_exceeded")
            }
            embed::Error::Empty { index } => Self::invalid(format!("input[{index}]"), message),
            embed::Error::Busy => Self::new(503, message).with_code("overloaded"),
            embed::Error::Worker(WorkerError::TooLong { .. }) => Self::invalid("input", message),
            embed::Error::Worker(error) if error.is_death() => Self::new(500, message).with_code(WORKER_DIED),
            _ => Self::new(500, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiError, WorkerError, embed};
    use autoplace::generate::Error;

    #[test]
    fn the_status_says_whose_fault_an_error_is() {
        let status = |error| ApiError::of_generation(&error, "prompt").status;
        assert_eq!((status(Error::EmptyPrompt), status(Error::Busy)), (400, 500));
        let in_worker = Error::NoProjector { media: "sound".to_owned(), in_worker: true };
        assert_eq!(status(in_worker), 501);
    }

    #[test]
    fn a_picture_that_the_projector_refuses_is_named_by_its_place() {
        let error = Error::Media { media: "image of 1 x 9 pixels".to_owned(), index: 1, reason: "too thin".to_owned() };
        let places = ["messages[0].content[0]".to_owned(), "messages[2].content[1].image_url".to_owned()];
        let said = ApiError::of_media(&error, &places, "messages");
        assert_eq!((said.status, said.param.as_deref()), (400, Some("messages[2].content[1].image_url")));
        assert_eq!(
            said.message,
            "messages[2].content[1].image_url: the image of 1 x 9 pixels cannot be used: too thin"
        );
        assert_eq!(ApiError::of_media(&error, &[], "messages").param.as_deref(), Some("messages"));
    }

    #[test]
    fn a_request_that_is_too_long_for_a_worker_is_its_client_s_fault() {
        let too_long = || WorkerError::TooLong { bytes: 65 << 20, limit: 64 << 20 };
        let error = ApiError::of_generation(&too_long().into(), "messages");
        assert_eq!((error.status, error.param.as_deref()), (400, Some("messages")));
        assert!(error.message.contains("68157440 bytes is too long for a worker"), "{}", error.message);
        let error = ApiError::from(embed::Error::from(too_long()));
        assert_eq!((error.status, error.param.as_deref()), (400, Some("input")));
        let broken = WorkerError::Answered { kind: "Native".into(), message: "no memory".into() };
        assert_eq!(ApiError::of_generation(&broken.into(), "messages").status, 500);
    }

    #[test]
    fn an_error_does_not_repeat_a_whole_request() {
        let long = "\u{e4}".repeat(1 << 20);
        let error = ApiError::invalid(&*long, format!("{long}: unknown"));
        let param = error.param.as_deref().unwrap_or_default();
        assert!(error.message.len() < 9 << 10 && error.message.ends_with("\u{e4} ..."), "{}", error.message.len());
        assert!(param.len() < 2 << 10 && param.ends_with(" ..."), "{}", param.len());
        // If the server caused the error, the message is not cut, because it may contain text that the model generated.
        assert_eq!(ApiError::new(500, &*long).message, long);
    }
}
