//! One answer. In: the server's events. Out: the answer's parts, its finish reason, and its token counts.

use std::collections::VecDeque;
use std::time::Instant;

use autoplace::AbortHandle;
use autoplace::chat::ReplyPart;
use autoplace::generate::{FinishReason, Statistics};
use serde_json::Value;

use super::events::{Event, Events};
use super::responses::{self, Said};
use super::wire::Calls;
use super::{Endpoint, Error, Surface};

#[derive(Debug)]
pub(super) struct Answer {
    events: Events,
    surface: Surface,
    parts: VecDeque<ReplyPart>,
    calls: Calls,
    begun: Instant,
    first: Option<Instant>,
    statistics: Statistics,
    /// The finish reason, which the server sends before the token counts.
    announced: Option<FinishReason>,
    finished: Option<FinishReason>,
    url: String,
}

impl Answer {
    pub(super) fn start(endpoint: &Endpoint, path: &'static str, body: Value) -> Result<Self, Error> {
        Ok(Self {
            events: Events::start(endpoint, path, body)?,
            surface: endpoint.surface,
            parts: VecDeque::new(),
            calls: Calls::default(),
            begun: Instant::now(),
            first: None,
            statistics: Statistics::default(),
            announced: None,
            finished: None,
            url: endpoint.url.to_string(),
        })
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = self.statistics;
        statistics.finish_reason = self.finished;
        statistics
    }

    pub(super) fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    pub(super) fn abort_handle(&self) -> AbortHandle {
        self.events.abort_handle()
    }

    /// The next part; `None` after the end or an error.
    pub(super) fn next(&mut self) -> Option<Result<ReplyPart, Error>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Some(Ok(part));
            }
            if self.finished.is_some() {
                return None;
            }
            if let Err(error) = self.step() {
                self.finished = Some(FinishReason::Error);
                return Some(Err(error));
            }
        }
    }

    fn step(&mut self) -> Result<(), Error> {
        match self.events.next()? {
            Event::Data(data) => match self.surface {
                Surface::ChatCompletions => self.read_chunk(&data),
                Surface::Responses => self.read_event(&data),
            },
            Event::Aborted => {
                self.finished = Some(FinishReason::Aborted);
                Ok(())
            }
            Event::End(_) if self.announced.is_some() => {
                self.finished = self.announced;
                Ok(())
            }
            Event::End(is_whole) => {
                let reason = match (is_whole, self.surface) {
                    (false, _) => "it was closed",
                    (true, Surface::ChatCompletions) => "no choice has a finish_reason",
                    (true, Surface::Responses) => "no event says that the response has ended",
                };
                Err(Error::CutOff { url: self.url.clone(), reason: reason.to_owned() })
            }
        }
    }

    fn read_chunk(&mut self, data: &Value) -> Result<(), Error> {
        if data.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Error::refused(&self.url, 500, &data.to_string()));
        }
        let choice = &data["choices"][0];
        let delta = &choice["delta"];
        let text = |of: &Value| of.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        // vLLM calls this field `reasoning`.
        let reasoning = text(&delta["reasoning_content"]).or_else(|| text(&delta["reasoning"]));
        self.parts.extend(reasoning.map(ReplyPart::Reasoning));
        let content = text(&delta["content"]).or_else(|| text(&choice["text"]));
        self.parts.extend(content.map(ReplyPart::Content));
        self.calls.add(&delta["tool_calls"]);
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.announced = Some(match reason {
                "length" => FinishReason::MaxTokens,
                _ => FinishReason::EndOfGeneration,
            });
            self.parts.extend(self.calls.finish()?.into_iter().map(ReplyPart::ToolCall));
        }
        let usage = &data["usage"];
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        self.count([&usage["prompt_tokens"], cached, &usage["completion_tokens"]]);
        Ok(())
    }

    fn read_event(&mut self, event: &Value) -> Result<(), Error> {
        let mut usage = Value::Null;
        match responses::said(event, &self.url)? {
            Said::Part(part) => self.parts.push_back(part),
            Said::End(reason, used) => {
                // Nothing follows, so the end of the connection need not be awaited.
                self.finished = Some(reason);
                usage = used;
            }
            Said::Nothing => {}
        }
        let cached = &usage["input_tokens_details"]["cached_tokens"];
        self.count([&usage["input_tokens"], cached, &usage["output_tokens"]]);
        Ok(())
    }

    /// Reads the server's token counts: those of the prompt, of the part of the prompt that came from the cache, and of
    /// the generated text. Times are measured here, so they include the network.
    fn count(&mut self, [prompt, cached, generated]: [&Value; 3]) {
        if self.first.is_none() && !(self.parts.is_empty() && self.calls.is_empty()) {
            self.first = Some(Instant::now());
            self.statistics.first_token_latency = Some(self.begun.elapsed());
            self.statistics.prompt_time = self.begun.elapsed();
        }
        self.statistics.generation_time = self.first.map(|first| first.elapsed()).unwrap_or_default();
        let tokens = |of: &Value| of.as_u64().map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
        let Some(prompt) = tokens(prompt) else {
            return;
        };
        self.statistics.prompt_tokens = prompt;
        self.statistics.cached_tokens = tokens(cached).unwrap_or_default();
        self.statistics.generated_tokens = tokens(generated).unwrap_or_default();
    }
}
