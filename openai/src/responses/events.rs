//! An answer as the events of a response. The last event contains the whole response.

use std::sync::Arc;

use serde_json::{Value, json};

use super::request::Asked;
use super::store::{Store, Stored};
use crate::choice::{Step, Tokens};
use crate::error::ApiError;
use crate::logprobs;
use crate::shape::{Frame, called, now};
use crate::translation::encoded_thought;
use autoplace::chat::ReplyPart;

/// The current item.
#[derive(Debug)]
struct Open {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
}

impl Kind {
    /// The type of the item's only part, and the prefix of its events' names.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Thought => ("reasoning_text", "response.reasoning_text"),
            Self::Text => ("output_text", "response.output_text"),
        }
    }
}

/// Writes the events of one answer.
#[derive(Debug)]
pub(crate) struct ResponseEvents {
    frame: Frame,
    asked: Asked,
    store: Arc<Store>,
    open: Option<Open>,
    /// The items that are finished.
    output: Vec<Value>,
    calls: usize,
    /// White space with which a text begins. It is kept back, because a text that consists only of white space is left
    /// out.
    held: String,
    /// Log-probabilities of the white space that is kept back.
    held_logprobs: Vec<Value>,
    sequence: usize,
    has_ended: bool,
}

impl ResponseEvents {
    pub(crate) fn new(frame: Frame, asked: Asked, store: Arc<Store>) -> Self {
        Self {
            frame,
            asked,
            store,
            open: None,
            output: Vec::new(),
            calls: 0,
            held: String::new(),
            held_logprobs: Vec::new(),
            sequence: 0,
            has_ended: false,
        }
    }

    /// The events before the first step.
    pub(crate) fn begin(&mut self) -> Vec<Value> {
        ["response.created", "response.in_progress"]
            .map(|kind| {
                let response = self.response("in_progress", &Value::Null);
                self.event(kind, json!({"response": response}))
            })
            .into()
    }

    /// The events of a step.
    pub(crate) fn step(&mut self, step: &Step, tokens: &Tokens) -> Vec<Value> {
        let mut events = Vec::with_capacity(step.parts.len() + 2);
        let mut logprobs = match self.asked.has_logprobs {
            true => logprobs::entries(&step.logprobs),
            false => Vec::new(),
        };
        for part in &step.parts {
            match part {
                ReplyPart::Reasoning(text) => self.piece(Kind::Thought, text, Vec::new(), &mut events),
                ReplyPart::Content(text) => {
                    self.held.push_str(text);
                    self.held_logprobs.append(&mut logprobs);
                    let is_open = self.open.as_ref().is_some_and(|open| open.kind == Kind::Text);
                    if is_open || !text.trim().is_empty() {
                        let text = std::mem::take(&mut self.held);
                        let logprobs = std::mem::take(&mut self.held_logprobs);
                        self.piece(Kind::Text, &text, logprobs, &mut events);
                    }
                }
                ReplyPart::ToolCall(call) => {
                    self.close("completed", &mut events);
                    self.held.clear();
                    self.held_logprobs.clear();
                    let (call_id, arguments) = called(call, &self.frame.name_of(0), self.calls);
                    self.calls += 1;
                    // If a limit cut the arguments short, they are not an object.
                    let status = if call.arguments.is_object() { "completed" } else { "incomplete" };
                    self.call(&call_id, &call.name, &arguments, status, &mut events);
                }
            }
        }
        if let Some(finish) = step.finish {
            self.finish(finish, tokens, &mut events);
        }
        events
    }

    /// The events of an answer that ended without a last step.
    pub(crate) fn end(&mut self, tokens: &Tokens) -> Vec<Value> {
        let mut events = Vec::new();
        if !self.has_ended {
            self.finish("stop", tokens, &mut events);
        }
        events
    }

    /// The event for an answer that failed.
    pub(crate) fn error(&self, error: &ApiError) -> Value {
        let mut response = self.response("failed", &Value::Null);
        let code = if error.status < 500 { "invalid_prompt" } else { "server_error" };
        response["error"] = json!({"code": code, "message": error.message, "param": error.param});
        json!({"type": "response.failed", "sequence_number": self.sequence, "response": response})
    }

    /// Adds a piece to the current text or thought. If there is none, begins one.
    fn piece(&mut self, kind: Kind, text: &str, logprobs: Vec<Value>, events: &mut Vec<Value>) {
        let (part, name) = kind.names();
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close("completed", events);
            let id = self.item_id(if kind == Kind::Text { "msg" } else { "rs" });
            let open = Open { kind, id: id.clone(), text: String::new(), logprobs: Vec::new() };
            let mut item = self.item(&open, "in_progress");
            item["content"] = json!([]);
            events.push(
                self.event("response.output_item.added", json!({"output_index": self.output.len(), "item": item})),
            );
            self.open = Some(open);
            let empty = part_of(part, "", &[]);
            events.push(self.part_event("response.content_part.added", &id, json!({"part": empty})));
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        open.logprobs.extend(logprobs.iter().cloned());
        let id = open.id.clone();
        let mut fields = json!({"delta": text});
        if kind == Kind::Text {
            fields["logprobs"] = logprobs.into();
        }
        events.push(self.part_event(&format!("{name}.delta"), &id, fields));
    }

    /// Ends the current text or thought.
    fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let Some(open) = self.open.take() else { return };
        let (part, name) = open.kind.names();
        let mut fields = json!({"text": open.text});
        if open.kind == Kind::Text {
            fields["logprobs"] = open.logprobs.clone().into();
        }
        events.push(self.part_event(&format!("{name}.done"), &open.id, fields));
        let whole = part_of(part, &open.text, &open.logprobs);
        events.push(self.part_event("response.content_part.done", &open.id, json!({"part": whole})));
        let item = self.item(&open, status);
        self.done(item, events);
    }

    fn call(&mut self, call_id: &str, name: &str, arguments: &str, status: &str, events: &mut Vec<Value>) {
        let id = self.item_id("fc");
        let index = self.output.len();
        let item = |arguments: &str, status: &str| {
            json!({"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments,
                "status": status})
        };
        let added = json!({"output_index": index, "item": item("", "in_progress")});
        events.push(self.event("response.output_item.added", added));
        let delta = json!({"item_id": id, "output_index": index, "delta": arguments});
        events.push(self.event("response.function_call_arguments.delta", delta));
        let done = json!({"item_id": id, "output_index": index, "name": name, "arguments": arguments});
        events.push(self.event("response.function_call_arguments.done", done));
        self.done(item(arguments, status), events);
    }

    fn done(&mut self, item: Value, events: &mut Vec<Value>) {
        let done = json!({"output_index": self.output.len(), "item": item.clone()});
        events.push(self.event("response.output_item.done", done));
        self.output.push(item);
    }

    fn finish(&mut self, finish: &str, tokens: &Tokens, events: &mut Vec<Value>) {
        self.has_ended = true;
        let (status, kind) = match finish {
            "length" => ("incomplete", "response.incomplete"),
            _ => ("completed", "response.completed"),
        };
        self.close(status, events);
        let usage = json!({
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
            "output_tokens": tokens.generated, "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.prompt + tokens.generated,
        });
        let mut response = self.response(status, &usage);
        match status {
            "incomplete" => response["incomplete_details"] = json!({"reason": "max_output_tokens"}),
            _ => response["completed_at"] = now().into(),
        }
        if let Some(input) = self.asked.input.take() {
            let items = self.output.iter().map(|item| {
                let id = item["id"].as_str().unwrap_or_default().to_owned();
                (id, Arc::from(item.to_string()))
            });
            let is_stored = self.store.keep(Stored {
                id: self.frame.id.clone(),
                previous: self.asked.previous.take(),
                input,
                items: items.collect(),
                response: Arc::from(response.to_string()),
            });
            response["store"] = is_stored.into();
        }
        events.push(self.event(kind, json!({"response": response})));
    }

    fn response(&self, status: &str, usage: &Value) -> Value {
        let mut response = json!({
            "id": self.frame.id, "object": "response", "created_at": self.frame.created, "status": status,
            "completed_at": null, "error": null, "incomplete_details": null, "model": self.frame.model,
            "output": self.output, "usage": usage,
        });
        for (name, value) in &self.asked.fields {
            response[name] = value.clone();
        }
        response
    }

    fn item(&self, open: &Open, status: &str) -> Value {
        let (part, _) = open.kind.names();
        let content = json!([part_of(part, &open.text, &open.logprobs)]);
        match open.kind {
            Kind::Text => {
                json!({"type": "message", "id": open.id, "role": "assistant", "status": status, "content": content})
            }
            Kind::Thought => {
                let kept = self.asked.keeps_thoughts.then(|| encoded_thought(&open.text));
                json!({"type": "reasoning", "id": open.id, "summary": [], "content": content,
                    "encrypted_content": kept, "status": status})
            }
        }
    }

    fn item_id(&self, kind: &str) -> String {
        let response = self.frame.id.trim_start_matches("resp_");
        format!("{kind}_{response}_{}", self.output.len())
    }

    /// An event about the current item's only part.
    fn part_event(&mut self, kind: &str, id: &str, mut fields: Value) -> Value {
        (fields["item_id"], fields["output_index"], fields["content_index"]) =
            (id.into(), self.output.len().into(), 0.into());
        self.event(kind, fields)
    }

    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        (fields["type"], fields["sequence_number"]) = (kind.into(), self.sequence.into());
        self.sequence += 1;
        fields
    }
}

fn part_of(kind: &str, text: &str, logprobs: &[Value]) -> Value {
    match kind {
        "output_text" => json!({"type": kind, "text": text, "annotations": [], "logprobs": logprobs}),
        _ => json!({"type": kind, "text": text}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logprobs::TokenInfo;
    use crate::shape::Endpoint;

    fn events(asked: Asked) -> ResponseEvents {
        let frame = Frame { endpoint: Endpoint::Responses, id: "resp_1".into(), created: 0, model: String::new() };
        ResponseEvents::new(frame, asked, Arc::default())
    }

    fn said(text: &str) -> Step {
        let logprobs = vec![TokenInfo::from_text(text, -0.5)];
        Step { parts: vec![ReplyPart::Content(text.to_owned())], logprobs, ..Step::default() }
    }

    #[test]
    fn white_space_that_is_held_keeps_its_log_probabilities() {
        let mut events = events(Asked { has_logprobs: true, ..Asked::default() });
        let tokens = Tokens::default();
        assert_eq!(events.step(&said("\n"), &tokens), Vec::<Value>::new());
        let first = events.step(&said("a"), &tokens);
        let delta = first.last().unwrap();
        let texts = |logprobs: &Value| -> Vec<String> {
            logprobs.as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!((&delta["delta"], texts(&delta["logprobs"])), (&json!("\na"), vec!["\n".into(), "a".into()]));
        let last = events.end(&tokens);
        let part = &last.last().unwrap()["response"]["output"][0]["content"][0];
        assert_eq!((&part["text"], texts(&part["logprobs"])), (&json!("\na"), vec!["\n".into(), "a".into()]));
    }

    #[test]
    fn a_response_says_that_it_is_stored_only_if_it_is() {
        for (bytes, is_stored) in [(1, true), (33 << 20, false)] {
            let fields = json!({"store": true}).as_object().unwrap().clone();
            let mut events = events(Asked { fields, input: Some("i".repeat(bytes).into()), ..Asked::default() });
            let last = events.end(&Tokens::default());
            assert_eq!(last.last().unwrap()["response"]["store"], is_stored);
            assert_eq!(events.store.response("resp_1").is_some(), is_stored);
        }
    }
}
