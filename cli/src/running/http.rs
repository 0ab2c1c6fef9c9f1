//! JSON over HTTP from a program on this computer.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// A server of another program, and the key that it was started with.
pub(super) struct Http {
    agent: Agent,
    url: String,
    key: Option<String>,
}

/// The time limit of an answer. A busy server answers between two tokens.
const WAIT: Duration = Duration::from_secs(5);
const MAX_ANSWER: u64 = 4 << 20;

impl Http {
    pub(super) fn new(url: &str, key: Option<String>) -> Self {
        let config = Agent::config_builder().timeout_global(Some(WAIT)).proxy(None).max_redirects(0);
        Self { agent: config.build().into(), url: url.to_owned(), key }
    }

    /// Gets JSON. The error names the path and the unexpected answer in one line.
    pub(super) fn get(&self, path: &str) -> Result<Value, String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        self.read(path, request.call())
    }

    /// Posts JSON and returns the answer. Errors are those of [`get`](Self::get).
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.read(path, self.agent.post(format!("{}{path}", self.url)).send_json(body))
    }

    fn read(&self, path: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, String> {
        let read = answer.and_then(|mut answer| answer.body_mut().with_config().limit(MAX_ANSWER).read_json::<Value>());
        read.map_err(|error| format!("{path}: {error}"))
    }
}
