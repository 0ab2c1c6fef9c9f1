//! What is wrong, as OpenAI's API says it.

use serde_json::{Value, json};

use super::messages;
use autoplace::{chat, embed, generate};

/// An error in the API's own shape: an HTTP status, and `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ApiError {
    /// HTTP status: 400 for what the request has wrong, 404 for another model's name, 503 while the queue is full, 500
    /// for what is not the client's fault.
    pub status: u16,
    /// What is wrong, for a person.
    pub message: String,
    /// The parameter that it is about: `messages[2].content`.
    pub param: Option<String>,
    /// A name for programs: `context_length_exceeded`.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error of this status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// With a name for programs.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// A parameter is wrong.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(400, message) }
    }

    /// A parameter asks for what there is not.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(param, message).with_code("unsupported_parameter")
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

    /// The status that Anthropic's API has for it: an overloaded server answers 529.
    pub fn anthropic_status(&self) -> u16 {
        messages::status(self)
    }

    /// The body of the response in the shape of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`.
    pub fn to_anthropic_json(&self) -> Value {
        messages::error_json(self)
    }

    /// What a generation failed with, whose prompt is this parameter.
    pub(super) fn of_generation(error: &generate::Error, prompt: &str) -> Self {
        use generate::Error;
        let message = error.to_string();
        match error {
            Error::PromptTooLong { .. } => Self::invalid(prompt, message).with_code("context_length_exceeded"),
            Error::EmptyPrompt => Self::invalid(prompt, message),
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
            _ => Self::new(500, message),
        }
    }

    /// What a chat template made of the conversation instead of a prompt.
    pub(super) fn of_template(error: &chat::Error, prompt: &str) -> Self {
        match error {
            chat::Error::NoTemplate { .. } => {
                let message =
                    "the model has no chat template: use /v1/completions, or start the server with a template";
                Self::new(400, message).with_code("no_chat_template")
            }
            // The model's own template is wrong, whatever is asked.
            chat::Error::Syntax { .. } | chat::Error::Header(_) => Self::new(500, error.to_string()),
            chat::Error::ToolsNotShown { .. } => Self::invalid("tools", error.to_string()),
            error => Self::invalid(prompt, error.to_string()),
        }
    }
}

/// Bytes of a text for each token of context at most; of most texts, a token has three or four.
const BYTES_PER_TOKEN: usize = 32;

/// Refuses so many bytes of text where they are far too long for a context of so many tokens. How many they are is not
/// found out: a tokenizer takes some forty times the size of its text.
pub(super) fn check_length(bytes: usize, context: usize, param: &str) -> Result<(), ApiError> {
    let most = context.saturating_mul(BYTES_PER_TOKEN);
    if bytes <= most {
        return Ok(());
    }
    let message = format!("{param}: {bytes} bytes of text, where {context} tokens of context take {most} at most");
    Err(ApiError::invalid(param, message).with_code("context_length_exceeded"))
}

/// As much of a text as may have so many tokens.
pub(super) fn beginning(text: &str, tokens: usize) -> &str {
    let most = tokens.saturating_mul(BYTES_PER_TOKEN).min(text.len());
    // `str::floor_char_boundary` is newer than the oldest Rust that this compiles with.
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// What a request calls llama.cpp's parameter of this name; `None` where it is one of several.
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
            _ => Self::new(500, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ApiError;
    use autoplace::generate::Error;

    #[test]
    fn whose_fault_it_is_shows_in_the_status() {
        let status = |error| ApiError::of_generation(&error, "prompt").status;
        assert_eq!((status(Error::EmptyPrompt), status(Error::Busy)), (400, 500));
    }
}
