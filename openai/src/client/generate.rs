//! How a text is generated, and a text as it comes.

use autoplace::AbortHandle;
use autoplace::chat::ReplyPart;
use autoplace::generate::{Constraint, FinishReason, Statistics};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::wire::response_format;
use super::{Endpoint, Error};

/// A text to be asked for: [`Generate`](autoplace::generate::Generate)'s settings that the API has names for. What is
/// not set is the server's.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked for until `stream` or `text` is called"]
pub struct Generate {
    pub(super) endpoint: Endpoint,
    prompt: String,
    settings: Map<String, Value>,
    stops: Vec<String>,
    constraint: Option<Constraint>,
}

impl Generate {
    pub(super) fn new(endpoint: Endpoint, prompt: String) -> Self {
        Self { endpoint, prompt, settings: Map::new(), stops: Vec::new(), constraint: None }
    }

    fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.settings.insert(name.to_owned(), value.into());
        self
    }

    /// Tokens at most.
    pub fn max_tokens(self, n: usize) -> Self {
        self.set("max_tokens", n)
    }

    /// Ends the text where this stands in it, which is left out. Several may be given.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stops.push(text.into());
        self
    }

    /// Temperature; 0 takes the likeliest token always.
    pub fn temp(self, temp: f32) -> Self {
        self.set("temperature", temp)
    }

    /// Only the `k` likeliest tokens: llama.cpp's and vLLM's addition to the API.
    pub fn top_k(self, k: u32) -> Self {
        self.set("top_k", k)
    }

    /// Only the likeliest tokens that come to this probability together.
    pub fn top_p(self, p: f32) -> Self {
        self.set("top_p", p)
    }

    /// Only tokens that have this share of the likeliest one's probability: llama.cpp's and vLLM's addition.
    pub fn min_p(self, p: f32) -> Self {
        self.set("min_p", p)
    }

    /// Makes tokens less likely the more often they came.
    pub fn frequency_penalty(self, penalty: f32) -> Self {
        self.set("frequency_penalty", penalty)
    }

    /// Makes tokens less likely that came before.
    pub fn presence_penalty(self, penalty: f32) -> Self {
        self.set("presence_penalty", penalty)
    }

    /// The seed: the same gives the same text, as far as the server keeps that.
    pub fn seed(self, seed: u32) -> Self {
        self.set("seed", seed)
    }

    /// What the text must be: a JSON value of a schema, or any JSON object. Another constraint is
    /// [`Error::Inexpressible`] when the text is asked for.
    pub fn constraint(mut self, constraint: Constraint) -> Self {
        self.constraint = Some(constraint);
        self
    }

    /// The body of a request, but for its prompt or messages.
    pub(super) fn body(&self) -> Result<Map<String, Value>, Error> {
        let mut body = self.settings.clone();
        body.insert("model".into(), self.endpoint.name()?.into());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if !self.stops.is_empty() {
            body.insert("stop".into(), json!(self.stops));
        }
        if let Some(constraint) = &self.constraint {
            body.insert("response_format".into(), response_format(constraint)?);
        }
        Ok(body)
    }

    /// Asks for the text (`/completions`) and returns it as it comes.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::chat`], [`Error::Inexpressible`] and [`Error::Thread`]. What the server says against the request
    /// comes with the first piece.
    pub fn stream(self) -> Result<TextStream, Error> {
        let mut body = self.body()?;
        body.insert("prompt".into(), self.prompt.into());
        Ok(TextStream(Answer::start(&self.endpoint, "/completions", body.into())?))
    }

    /// The whole text.
    ///
    /// # Errors
    ///
    /// As [`stream`](Self::stream), and the first error of the stream.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.collect()
    }

    /// The whole text as a value, whose type's schema is sent to the server.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text); [`Error::Incomplete`] and [`Error::NotOfType`].
    pub fn parse<T: DeserializeOwned + JsonSchema>(self) -> Result<T, Error> {
        let mut stream = self.constraint(Constraint::of_type::<T>()).stream()?;
        let text = stream.by_ref().collect::<Result<String, Error>>()?;
        value(text, stream.finish_reason())
    }
}

/// The value that a whole answer is.
pub(super) fn value<T: DeserializeOwned>(text: String, finished: Option<FinishReason>) -> Result<T, Error> {
    match serde_json::from_str(&text) {
        Ok(value) => Ok(value),
        Err(_) if finished == Some(FinishReason::MaxTokens) => Err(Error::Incomplete { text }),
        Err(error) => Err(Error::NotOfType { reason: error.to_string(), text }),
    }
}

/// A text as it comes: an iterator of its pieces. Dropping it ends the connection.
#[derive(Debug)]
pub struct TextStream(Answer);

impl TextStream {
    /// Counts of the server, which come at the end, and times as they are seen here.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Why the text ended; `None` while it runs. A stop string is the end of a text too, as the API has it.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.0.finish_reason()
    }

    /// Ends the text that another thread is waiting for.
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
