//! Requests for texts and their settings, and streaming texts.

use autoplace::AbortHandle;
use autoplace::chat::ReplyPart;
use autoplace::generate::{Constraint, FinishReason, Statistics};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::wire::response_format;
use super::{Endpoint, Error, Surface, responses};

/// A request for a text, with the settings of [`GenerateRequest`](autoplace::generate::GenerateRequest) that the API
/// supports. For a setting that is not set, the server's default applies.
#[derive(Debug, Clone)]
#[must_use = "nothing is requested until `stream` or `text` is called"]
pub struct GenerateRequest {
    pub(super) endpoint: Endpoint,
    prompt: String,
    settings: Map<String, Value>,
    stops: Vec<String>,
    constraint: Option<Constraint>,
    /// The error of the first setting whose value is NaN or infinite.
    not_finite: Option<Error>,
}

impl GenerateRequest {
    pub(super) fn new(endpoint: Endpoint, prompt: String) -> Self {
        Self { endpoint, prompt, settings: Map::new(), stops: Vec::new(), constraint: None, not_finite: None }
    }

    fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.settings.insert(name.to_owned(), value.into());
        self
    }

    /// Sets a number in its shortest decimal form: 0.7, for example, and not 0.699999988079071, which is the same
    /// number in 64 bits. NaN and infinity make the request fail, because JSON cannot express them.
    fn set_decimal(mut self, name: &'static str, value: f32) -> Self {
        let value = value.to_string();
        match value.parse::<f64>().ok().filter(|number| number.is_finite()) {
            Some(number) => self.set(name, number),
            None => {
                self.not_finite.get_or_insert(Error::NotFinite { parameter: name, value });
                self
            }
        }
    }

    /// Sets the maximum number of tokens.
    pub fn max_tokens(self, n: usize) -> Self {
        self.set("max_tokens", n)
    }

    /// Ends the text before this stop string. Each further call adds another stop string.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stops.push(text.into());
        self
    }

    /// Sets the temperature. With 0, the likeliest token is always chosen.
    pub fn temp(self, temp: f32) -> Self {
        self.set_decimal("temperature", temp)
    }

    /// Keeps only the `k` likeliest tokens. This parameter is llama.cpp's and vLLM's addition to the API.
    pub fn top_k(self, k: u32) -> Self {
        self.set("top_k", k)
    }

    /// Keeps only the likeliest tokens whose probabilities add up to `p`.
    pub fn top_p(self, p: f32) -> Self {
        self.set_decimal("top_p", p)
    }

    /// Keeps only tokens with at least this share of the likeliest token's probability. This parameter is llama.cpp's
    /// and vLLM's addition to the API.
    pub fn min_p(self, p: f32) -> Self {
        self.set_decimal("min_p", p)
    }

    /// Makes a token less likely each time that it occurs.
    pub fn frequency_penalty(self, penalty: f32) -> Self {
        self.set_decimal("frequency_penalty", penalty)
    }

    /// Makes a token less likely once it has occurred.
    pub fn presence_penalty(self, penalty: f32) -> Self {
        self.set_decimal("presence_penalty", penalty)
    }

    /// Sets the seed. The same seed gives the same text only if the server guarantees that.
    pub fn seed(self, seed: u32) -> Self {
        self.set("seed", seed)
    }

    /// Constrains the text to a JSON value that matches a schema, or to any JSON object. Any other constraint leads to
    /// [`Error::Inexpressible`] when the text is requested.
    pub fn constraint(mut self, constraint: Constraint) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// The body of a request without its prompt or messages.
    pub(super) fn body(&self) -> Result<Map<String, Value>, Error> {
        if let Some(error) = &self.not_finite {
            return Err(error.clone());
        }
        let mut body = self.settings.clone();
        body.insert("model".into(), self.endpoint.name()?.into());
        body.insert("stream".into(), true.into());
        if !self.stops.is_empty() {
            body.insert("stop".into(), json!(self.stops));
        }
        match self.endpoint.surface {
            Surface::ChatCompletions => {
                body.insert("stream_options".into(), json!({"include_usage": true}));
                if let Some(constraint) = &self.constraint {
                    body.insert("response_format".into(), response_format(constraint)?);
                }
            }
            Surface::Responses => {
                // The client keeps the conversation, so the server need not store it.
                body.insert("store".into(), false.into());
                if let Some(limit) = body.remove("max_tokens") {
                    body.insert("max_output_tokens".into(), limit);
                }
                if let Some(constraint) = &self.constraint {
                    body.insert("text".into(), responses::text(constraint)?);
                }
            }
        }
        Ok(body)
    }

    /// Requests the text (`/completions`) and streams it. The [Responses API](Endpoint::responses) supports only
    /// conversations.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::chat`], [`Error::Inexpressible`], [`Error::NotFinite`] and [`Error::Thread`]. If the
    /// server refuses the request, the first item of the stream is that error.
    pub fn stream(self) -> Result<TextStream, Error> {
        if self.endpoint.surface == Surface::Responses {
            return Err(Error::Inexpressible { what: "the continuation of a prompt, in the Responses API" });
        }
        let mut body = self.body()?;
        body.insert("prompt".into(), self.prompt.into());
        Ok(TextStream(Answer::start(&self.endpoint, "/completions", body.into())?))
    }

    /// Requests the whole text.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream), and the first error that the stream yields.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.collect()
    }

    /// Requests the text as a value of `T`. The schema of `T` is sent to the server.
    ///
    /// # Errors
    ///
    /// The errors of [`text`](Self::text), [`Error::Incomplete`] and [`Error::NotOfType`].
    pub fn parse<T: DeserializeOwned + JsonSchema>(self) -> Result<T, Error> {
        let mut stream = self.constraint(Constraint::of_type::<T>()).stream()?;
        let text = stream.by_ref().collect::<Result<String, Error>>()?;
        value(text, stream.finish_reason())
    }
}

/// Parses a complete answer as a value of `T`.
pub(super) fn value<T: DeserializeOwned>(text: String, finished: Option<FinishReason>) -> Result<T, Error> {
    match serde_json::from_str(&text) {
        Ok(value) => Ok(value),
        Err(_) if finished == Some(FinishReason::MaxTokens) => Err(Error::Incomplete { text }),
        Err(error) => Err(Error::NotOfType { reason: error.to_string(), text }),
    }
}

/// A streaming text, which is an iterator over its pieces. Dropping it ends the connection.
#[derive(Debug)]
pub struct TextStream(Answer);

impl TextStream {
    /// The server's token counts, which arrive at the end, and the times that were measured here.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// The reason why the text ended; `None` while it is still being generated. The API does not say whether a stop
    /// string ended the text, or the text ended by itself.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.0.finish_reason()
    }

    /// A handle with which another thread can end the text.
    pub fn abort_handle(&self) -> AbortHandle {
        self.0.abort_handle()
    }
}

impl Iterator for TextStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.0.next()? {
                Ok(ReplyPart::Content(text)) => return Some(Ok(text)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
