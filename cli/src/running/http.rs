//! JSON over HTTP, from a program on this computer.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// A server that another program runs, with the key that it was started with.
pub(super) struct Http {
    agent: Agent,
    url: String,
    key: Option<String>,
}

/// How long an answer may take. A busy server answers between two tokens.
const WAIT: Duration = Duration::from_secs(5);
const MAX_ANSWER: u64 = 4 << 20;

impl Http {
    pub(super) fn new(url: &str, key: Option<String>) -> Self {
        let config = Agent::config_builder().timeout_global(Some(WAIT)).proxy(None).max_redirects(0);
        Self { agent: config.build().into(), url: url.to_owned(), key }
    }

    /// Sends a GET request, and returns the answer's JSON. The error is one line, and contains the path and the
    /// unexpected answer.
    pub(super) fn get(&self, path: &str) -> Result<Value, String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        self.read(path, request.call())
    }

    /// Sends JSON in a POST request, and returns the answer. The errors are those of [`get`](Self::get).
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.read(path, self.agent.post(format!("{}{path}", self.url)).send_json(body))
    }

    fn read(&self, path: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, String> {
        let read = answer.and_then(|mut answer| answer.body_mut().with_config().limit(MAX_ANSWER).read_json::<Value>());
        read.map_err(|error| format!("{path}: {error}"))
    }
}
