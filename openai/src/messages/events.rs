//! An answer as the events of a message. A whole message is assembled from the same events.

use serde_json::{Value, json};

use super::thoughts::{Shown, signature_of};
use crate::choice::{Step, Tokens};
use crate::shape::{Frame, called};
use autoplace::chat::ReplyPart;
use autoplace::generate::FinishReason;

/// The current block.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    /// The thought so far, if the client sees only its signature.
    Thinking(String),
    Text,
}

/// Writes the events of one answer.
#[derive(Debug)]
pub(crate) struct MessageEvents {
    frame: Frame,
    stops: Vec<String>,
    shown: Shown,
    open: Open,
    /// How many blocks are finished.
    blocks: usize,
    calls: usize,
    /// White space with which a text begins. It is kept back, because a text that consists only of white space is left
    /// out.
    held: String,
    has_begun: bool,
    has_ended: bool,
}

impl MessageEvents {
    pub(crate) fn new(frame: Frame, stops: Vec<String>, shown: Shown) -> Self {
        Self {
            frame,
            stops,
            shown,
            open: Open::Nothing,
            blocks: 0,
            calls: 0,
            held: String::new(),
            has_begun: false,
            has_ended: false,
        }
    }

    /// The events of a step. The message's first event is written together with the first step, because that event
    /// contains the number of prompt tokens.
    pub(crate) fn step(&mut self, step: &Step, tokens: &Tokens) -> Vec<Value> {
        let mut events = Vec::with_capacity(step.parts.len() + 2);
        self.begin(tokens, &mut events);
        for part in &step.parts {
            self.part(part, &mut events);
        }
        if let Some(finish) = step.finish {
            self.finish(finish, step, tokens, &mut events);
        }
        events
    }

    /// The events of an answer that ended without a last step.
    pub(crate) fn end(&mut self, tokens: &Tokens) -> Vec<Value> {
        let mut events = Vec::new();
        if !self.has_ended {
            self.begin(tokens, &mut events);
            self.finish("stop", &Step::default(), tokens, &mut events);
        }
        events
    }

    fn begin(&mut self, tokens: &Tokens, events: &mut Vec<Value>) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let message = json!({
            "id": self.frame.id, "type": "message", "role": "assistant", "model": self.frame.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(tokens),
        });
        events.push(json!({"type": "message_start", "message": message}));
    }

    fn part(&mut self, part: &ReplyPart, events: &mut Vec<Value>) {
        match part {
            ReplyPart::Reasoning(text) => {
                if !matches!(self.open, Open::Thinking(_)) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.start(Open::Thinking(String::new()), &block, events);
                }
                match (&mut self.open, self.shown) {
                    (Open::Thinking(thought), Shown::Signatures) => thought.push_str(text),
                    _ => events.push(self.delta(&json!({"type": "thinking_delta", "thinking": text}))),
                }
            }
            ReplyPart::Content(text) if self.open == Open::Text => {
                events.push(self.delta(&json!({"type": "text_delta", "text": text})));
            }
            ReplyPart::Content(text) => {
                self.held.push_str(text);
                if !text.trim().is_empty() {
                    self.start(Open::Text, &json!({"type": "text", "text": ""}), events);
                    let text = std::mem::take(&mut self.held);
                    events.push(self.delta(&json!({"type": "text_delta", "text": text})));
                }
            }
            ReplyPart::ToolCall(call) => {
                let (id, arguments) = called(call, &self.frame.name_of(0), self.calls);
                self.calls += 1;
                self.held.clear();
                let block = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
                self.start(Open::Nothing, &block, events);
                events.push(self.delta(&json!({"type": "input_json_delta", "partial_json": arguments})));
                events.push(json!({"type": "content_block_stop", "index": self.blocks}));
                self.blocks += 1;
            }
        }
    }

    /// Ends the current block and begins a new one.
    fn start(&mut self, open: Open, block: &Value, events: &mut Vec<Value>) {
        self.stop(events);
        self.open = open;
        events.push(json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
    }

    fn delta(&self, delta: &Value) -> Value {
        json!({"type": "content_block_delta", "index": self.blocks, "delta": delta})
    }

    fn stop(&mut self, events: &mut Vec<Value>) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Text => {}
            Open::Thinking(thought) => {
                let signature = match self.shown {
                    Shown::Thoughts => String::new(),
                    Shown::Signatures => signature_of(&thought),
                };
                events.push(self.delta(&json!({"type": "signature_delta", "signature": signature})));
            }
        }
        events.push(json!({"type": "content_block_stop", "index": self.blocks}));
        self.blocks += 1;
    }

    fn finish(&mut self, finish: &str, step: &Step, tokens: &Tokens, events: &mut Vec<Value>) {
        self.stop(events);
        let sequence = step.stop_string.and_then(|which| self.stops.get(which));
        let reason = match (finish, step.end) {
            (_, Some(FinishReason::ContextFull)) => "model_context_window_exceeded",
            ("length", _) => "max_tokens",
            _ if sequence.is_some() => "stop_sequence",
            ("tool_calls", _) => "tool_use",
            _ => "end_turn",
        };
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        events.push(json!({"type": "message_delta", "delta": delta, "usage": usage(tokens)}));
        events.push(json!({"type": "message_stop"}));
        self.has_ended = true;
    }
}

/// The field `usage`. Cached prompt tokens are counted separately, as in Anthropic's API.
fn usage(tokens: &Tokens) -> Value {
    json!({
        "input_tokens": tokens.prompt.saturating_sub(tokens.cached), "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached, "output_tokens": tokens.generated,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
    })
}

/// Assembles a message from its events, as Anthropic's clients do.
#[derive(Debug, Default)]
pub(crate) struct Message {
    message: Value,
    blocks: Vec<Value>,
    /// The arguments of the current call, as text.
    arguments: String,
}

impl Message {
    pub(crate) fn add(&mut self, event: Value) {
        let mut event = event;
        match event["type"].as_str() {
            Some("message_start") => self.message = event["message"].take(),
            Some("content_block_start") => self.blocks.push(event["content_block"].take()),
            Some("content_block_delta") => {
                let Some(block) = self.blocks.last_mut() else { return };
                for name in ["text", "thinking", "signature"] {
                    if let (Some(more), Some(Value::String(text))) =
                        (event["delta"][name].as_str(), block.get_mut(name))
                    {
                        text.push_str(more);
                    }
                }
                self.arguments.push_str(event["delta"]["partial_json"].as_str().unwrap_or_default());
            }
            Some("content_block_stop") => {
                let arguments = std::mem::take(&mut self.arguments);
                if let Some(block) = self.blocks.last_mut().filter(|block| block["type"] == "tool_use") {
                    // If a limit cut the arguments short, they are not an object.
                    let input = serde_json::from_str::<Value>(&arguments).ok().filter(Value::is_object);
                    block["input"] = input.unwrap_or_else(|| json!({}));
                }
            }
            Some("message_delta") => {
                self.message["stop_reason"] = event["delta"]["stop_reason"].take();
                self.message["stop_sequence"] = event["delta"]["stop_sequence"].take();
                self.message["usage"] = event["usage"].take();
            }
            _ => {}
        }
    }

    pub(crate) fn into_json(mut self) -> Value {
        self.message["content"] = self.blocks.into();
        self.message
    }
}
