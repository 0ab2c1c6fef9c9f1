//! A model on a server with OpenAI's API, with the interface of a local model. It is for applications that outgrow one
//! machine.
//!
//! In: the same calls as on [`Model`](autoplace::Model) and [`Chat`](autoplace::generate::Chat). Out: requests to vLLM,
//! llama-server, this crate's own `serve` or any other server with this API, and their streaming answers. One line of a
//! program changes:
//!
//! ```no_run
//! use autoplace::chat::ReplyPart;
//! // let model = autoplace::Model::load("qwen3-8b-q4_k_m.gguf")?;
//! let model = autoplace_openai::Endpoint::new("http://192.168.1.20:8000/v1");
//! let mut chat = model.chat()?.system("Be brief.").with(|generate| generate.temp(0.7).max_tokens(200));
//! for part in &mut chat.say("Why is the sky blue?")? {
//!     if let ReplyPart::Content(text) = part? {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Endpoint::responses`] uses OpenAI's Responses API for the same conversation.
//!
//! Nothing is dropped silently. If the API has no field for a setting, there is no method for the setting here. A
//! constraint that the API cannot express is an error.

mod answer;
mod chat;
mod error;
mod events;
mod generate;
mod responses;
mod wire;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

pub use chat::{Chat, ChatStream};
pub use error::Error;
pub use generate::{GenerateRequest, TextStream};

/// How long opening a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// The default of [`Endpoint::timeout`]. A worker has the same default
/// ([`WorkerProcess::timeout`](autoplace::WorkerProcess::timeout)).
const SILENCE: Duration = Duration::from_secs(600);

/// Maximum bytes of an answer that is not streamed.
const MAX_BODY_BYTES: u64 = 4 << 20;

/// A model on a server with OpenAI's API. Clones are handles of the same endpoint.
#[derive(Debug, Clone)]
pub struct Endpoint {
    agent: Agent,
    url: Arc<str>,
    key: Option<Key>,
    name: Arc<OnceLock<String>>,
    silence: Duration,
    surface: Surface,
}

/// The API that is used for conversations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Surface {
    #[default]
    ChatCompletions,
    Responses,
}

/// The server's key. It is never printed.
#[derive(Clone)]
struct Key(Arc<str>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl Endpoint {
    /// A server with this base address, which has the form of `OPENAI_BASE_URL`: `http://127.0.0.1:8080/v1`. No request
    /// is sent yet. For `https`, the application's `Cargo.toml` needs `ureq = { version = "3", features = ["rustls"]
    /// }`. Proxies are taken from the environment.
    pub fn new(url: impl AsRef<str>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect could send the key and the conversation to another server.
            .max_redirects(0)
            .timeout_connect(Some(CONNECT));
        Self {
            agent: config.build().into(),
            url: url.as_ref().trim_end_matches('/').into(),
            key: None,
            name: Arc::default(),
            silence: SILENCE,
            surface: Surface::default(),
        }
    }

    /// Sets the model's name. Default: the server's only model.
    #[must_use]
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.name = Arc::new(OnceLock::from(name.into()));
        self
    }

    /// Uses OpenAI's Responses API (`/responses`) for conversations; the default is chat completions. The conversation
    /// has the same methods, and its answers have the same parts. Each request contains the whole conversation, and the
    /// server stores nothing. Calls, structured answers, counts and errors are the same as with chat completions. In
    /// this API no text can continue a prompt, so [`generate`](Self::generate) returns [`Error::Inexpressible`].
    ///
    /// In this API, OpenAI's own server does not support some parameters (`top_k`, `min_p`, `seed`, `stop`, penalties).
    /// They are sent with the names that they have in chat completions, which other servers accept.
    ///
    /// ```no_run
    /// use autoplace::chat::{ReplyPart, Tool};
    /// use serde_json::json;
    /// let model = autoplace_openai::Endpoint::new("http://127.0.0.1:8080/v1").responses();
    /// let weather = Tool::new("weather", "The weather of a city.", json!({
    ///     "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    /// }));
    /// let mut chat = model.chat()?.system("Be brief.").tools([weather]);
    /// let mut calls = Vec::new();
    /// for part in &mut chat.say("Do I need an umbrella in Bonn?")? {
    ///     match part? {
    ///         ReplyPart::Reasoning(_) => {}
    ///         ReplyPart::Content(text) => print!("{text}"),
    ///         ReplyPart::ToolCall(call) => calls.push(call),
    ///     }
    /// }
    /// for call in &calls {
    ///     chat.tool_result(call, "rain");
    /// }
    /// let (reply, statistics) = chat.answer()?.finish()?;
    /// println!("{}\n{} of {} prompt tokens were cached",
    ///     reply.content, statistics.cached_tokens, statistics.prompt_tokens);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn responses(mut self) -> Self {
        self.surface = Surface::Responses;
        self
    }

    /// Sets the server's key: `Authorization: Bearer KEY`. Without `https`, others on the network can read the key.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(Key(key.into().into()));
        self
    }

    /// Sets the longest time in which no data of an answer arrives. After this time the answer ends with
    /// [`Error::Silent`]. A server also sends no data while a request waits in its queue, or while it computes a long
    /// prompt. The list of models must arrive completely within this time. Default: ten minutes.
    #[must_use]
    pub fn timeout(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// The names of the server's models.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Silent`] and [`Error::Protocol`].
    pub fn models(&self) -> Result<Vec<String>, Error> {
        let request = self.with_key(self.agent.get(self.address("/models")));
        let mut response = self.sent(request.config().timeout_global(Some(self.silence)).build().call())?;
        let read = response.body_mut().with_config().limit(MAX_BODY_BYTES).read_json::<Value>();
        let body = read.map_err(|error| match error {
            ureq::Error::Timeout(_) => self.silent(),
            error => self.protocol(error),
        })?;
        let list = match &body["data"] {
            Value::Array(list) => &list[..],
            // Go's JSON encoder writes an empty list as null. For example, Ollama does so if it has no model.
            Value::Null if body.get("data").is_some() => &[],
            _ => return Err(self.protocol("/models lists no `data`")),
        };
        Ok(list.iter().filter_map(|model| model["id"].as_str()).map(str::to_owned).collect())
    }

    /// A conversation with the model, like [`Model::chat`](autoplace::Model::chat). The server applies the chat
    /// template.
    ///
    /// # Errors
    ///
    /// If no model was named: the errors of [`models`](Self::models), and [`Error::WhichModel`] unless the server has
    /// exactly one model.
    pub fn chat(&self) -> Result<Chat, Error> {
        self.name()?;
        Ok(Chat::new(self.generate("")))
    }

    /// A text that continues a prompt, like [`Model::generate`](autoplace::Model::generate).
    pub fn generate(&self, prompt: impl Into<String>) -> GenerateRequest {
        GenerateRequest::new(self.clone(), prompt.into())
    }

    fn name(&self) -> Result<&str, Error> {
        if let Some(name) = self.name.get() {
            return Ok(name);
        }
        let mut models = self.models()?;
        match models.len() {
            1 => Ok(self.name.get_or_init(|| models.remove(0))),
            _ => Err(Error::WhichModel { url: self.url.to_string(), models }),
        }
    }

    fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(Key(key)) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn post(&self, path: &str, body: &Value) -> Result<Response<ureq::Body>, Error> {
        self.sent(self.with_key(self.agent.post(self.address(path))).send_json(body))
    }

    /// Returns the response, or the error that the response contains.
    fn sent(&self, sent: Result<Response<ureq::Body>, ureq::Error>) -> Result<Response<ureq::Body>, Error> {
        let mut response = sent.map_err(|error| match error {
            ureq::Error::Timeout(ureq::Timeout::Global) => self.silent(),
            error => Error::Unreachable { url: self.url.to_string(), reason: error.to_string() },
        })?;
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let body = response.body_mut().with_config().limit(MAX_BODY_BYTES).read_to_string();
        Err(Error::refused(&self.url, status, &body.unwrap_or_default()))
    }

    fn silent(&self) -> Error {
        Error::Silent { url: self.url.to_string(), silence: self.silence }
    }

    fn protocol(&self, reason: impl ToString) -> Error {
        Error::Protocol { url: self.url.to_string(), reason: reason.to_string() }
    }
}
