//! The JSON of answers, in one piece and in chunks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::choice::{Step, Tokens};
use super::logprobs::{self, TokenInfo};
use autoplace::chat::{ReplyPart, ToolCall};

/// The endpoint to which an answer belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
    /// Anthropic's messages.
    Messages,
    /// OpenAI's responses.
    Responses,
    /// llama-server's fill-in-the-middle.
    Infill,
}

impl Endpoint {
    /// The name of the parameter that contains the prompt.
    pub(super) fn prompt(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages | Self::Responses => "messages",
            Self::Completions => "prompt",
            Self::Infill => "input_prefix",
        }
    }

    /// The log-probabilities, in the form that this endpoint uses. `offset` is the length of the text so far, in
    /// characters.
    fn logprobs(self, tokens: &[TokenInfo], offset: &mut usize) -> Value {
        match self {
            _ if tokens.is_empty() => Value::Null,
            Self::Chat | Self::Messages | Self::Responses => logprobs::chat(tokens),
            Self::Completions | Self::Infill => logprobs::completion(tokens, offset),
        }
    }
}

/// The fields with which the body of every answer begins.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) endpoint: Endpoint,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Frame {
    /// A name for one of the request's answers. No other answer has the same name.
    pub(super) fn name_of(&self, choice: usize) -> String {
        let id = self.id.split_once('-').map_or(&*self.id, |(_, id)| id);
        format!("{id}_{choice}")
    }

    /// A chunk of a stream that contains this choice. With `has_usage`, `usage` is null in this chunk; the last chunk
    /// contains the numbers.
    pub(super) fn chunk(&self, choice: Value, has_usage: bool) -> Value {
        let mut body = self.body(true, vec![choice]);
        if has_usage {
            body["usage"] = Value::Null;
        }
        body
    }

    /// A body with these choices. `chunk` says whether the body is a chunk of a stream.
    pub(super) fn body(&self, chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.endpoint, chunk) {
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Completions | Endpoint::Infill, _) => "text_completion",
            (Endpoint::Messages, _) => "message",
            (Endpoint::Responses, _) => "response",
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Token counts of a whole request. If a prompt has several answers, its tokens are counted only once.
pub(super) fn usage(choices: impl Iterator<Item = (usize, Tokens)>) -> Value {
    let (mut prompt, mut cached, mut completion, mut reasoning) = (0, 0, 0, 0);
    let mut counted = None;
    for (of, tokens) in choices {
        if counted != Some(of) {
            counted = Some(of);
            prompt += tokens.prompt;
            cached += tokens.cached;
        }
        completion += tokens.generated;
        reasoning += tokens.reasoning;
    }
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

/// An id for a call: nine letters and digits. Mistral's templates require this form, and other templates accept it.
fn call_id(answer: &str, index: usize) -> String {
    let mut hasher = DefaultHasher::new();
    (answer, index).hash(&mut hasher);
    let hash = hasher.finish();
    (0..9).filter_map(|place| char::from_digit((hash / 36_u64.pow(place) % 36) as u32, 36)).collect()
}

/// The id and the arguments of a call, both as text. `answer` is a name that no other answer has.
pub(super) fn called(call: &ToolCall, answer: &str, index: usize) -> (String, String) {
    let id = call.id.clone().unwrap_or_else(|| call_id(answer, index));
    // If a limit cut the arguments short, they are already a text.
    let arguments = call.arguments.as_str().map_or_else(|| call.arguments.to_string(), str::to_owned);
    (id, arguments)
}

fn call(call: &ToolCall, answer: &str, index: usize) -> Value {
    let (id, arguments) = called(call, answer, index);
    json!({
        "id": id, "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    })
}

/// Writes the chunks of one answer of a stream.
#[derive(Debug)]
pub(super) struct Chunks {
    endpoint: Endpoint,
    /// A name that no other answer has.
    name: String,
    index: usize,
    calls: usize,
    offset: usize,
}

impl Chunks {
    pub(super) fn new(frame: &Frame, index: usize) -> Self {
        Self { endpoint: frame.endpoint, name: frame.name_of(index), index, calls: 0, offset: 0 }
    }

    /// The first chunk of a chat, with the role.
    pub(super) fn first(&self) -> Option<Value> {
        match self.endpoint {
            Endpoint::Chat => Some(self.chunk(json!({"role": "assistant", "content": ""}), Value::Null, None)),
            _ => None,
        }
    }

    /// The choices for a step: one for each part of its text, and one if the answer has ended.
    pub(super) fn choices(&mut self, step: &Step) -> Vec<Value> {
        let mut logprobs = self.endpoint.logprobs(&step.logprobs, &mut self.offset);
        let mut chunks = Vec::with_capacity(step.parts.len() + 1);
        for part in &step.parts {
            let delta = match (self.endpoint, part) {
                (Endpoint::Completions, ReplyPart::Content(text)) => text.as_str().into(),
                (_, ReplyPart::Content(text)) => json!({"content": text}),
                (_, ReplyPart::Reasoning(text)) => json!({"reasoning_content": text}),
                (_, ReplyPart::ToolCall(called)) => {
                    let mut call = call(called, &self.name, self.calls);
                    call["index"] = self.calls.into();
                    self.calls += 1;
                    json!({"tool_calls": [call]})
                }
            };
            chunks.push(self.chunk(delta, logprobs.take(), None));
        }
        if step.finish.is_some() {
            let nothing = match self.endpoint {
                Endpoint::Completions => "".into(),
                _ => json!({}),
            };
            chunks.push(self.chunk(nothing, logprobs.take(), step.finish));
        }
        chunks
    }

    fn chunk(&self, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let name = match self.endpoint {
            Endpoint::Completions => "text",
            _ => "delta",
        };
        json!({"index": self.index, name: delta, "logprobs": logprobs, "finish_reason": finish})
    }
}

/// The form of an answer that is not streamed.
impl Step {
    pub(super) fn add(&mut self, step: Self) {
        self.parts.extend(step.parts);
        self.logprobs.extend(step.logprobs);
        self.finish = step.finish.or(self.finish);
    }

    pub(super) fn into_choice(self, frame: &Frame, index: usize) -> Value {
        let endpoint = frame.endpoint;
        let mut text = String::new();
        let mut reasoning = String::new();
        let mut calls = Vec::new();
        for part in self.parts {
            match part {
                ReplyPart::Content(piece) => text.push_str(&piece),
                ReplyPart::Reasoning(piece) => reasoning.push_str(&piece),
                ReplyPart::ToolCall(called) => {
                    calls.push(call(&called, &frame.name_of(index), calls.len()));
                }
            }
        }
        let logprobs = endpoint.logprobs(&self.logprobs, &mut 0);
        let (name, said) = match endpoint {
            Endpoint::Completions => ("text", text.into()),
            _ => {
                let mut message = Map::new();
                let content = match text.is_empty() && !calls.is_empty() {
                    true => Value::Null,
                    false => text.into(),
                };
                message.insert("role".into(), "assistant".into());
                message.insert("content".into(), content);
                message.insert("refusal".into(), Value::Null);
                if !reasoning.is_empty() {
                    message.insert("reasoning_content".into(), reasoning.into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls".into(), calls.into());
                }
                ("message", Value::Object(message))
            }
        };
        json!({"index": index, name: said, "logprobs": logprobs, "finish_reason": self.finish})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(endpoint: Endpoint) -> Frame {
        Frame { endpoint, id: "chatcmpl-5-7".into(), created: 0, model: String::new() }
    }

    fn step(parts: Vec<ReplyPart>, finish: Option<&'static str>) -> Step {
        Step { parts, finish, ..Step::default() }
    }

    fn parts() -> Vec<ReplyPart> {
        let called = |id: Option<&str>| {
            ReplyPart::ToolCall(ToolCall { id: id.map(str::to_owned), name: "f".into(), arguments: json!({"a": 1}) })
        };
        vec![ReplyPart::Reasoning("hm".into()), called(Some("x")), called(None)]
    }

    #[test]
    fn a_whole_answer_has_what_the_chunks_have() {
        let whole = step(parts(), Some("tool_calls"));
        let choice = whole.into_choice(&frame(Endpoint::Chat), 2);
        let message = &choice["message"];
        assert_eq!(message["content"], Value::Null);
        assert_eq!(message["reasoning_content"], "hm");
        assert_eq!(message["tool_calls"][0]["id"], "x");
        let id = message["tool_calls"][1]["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(2), &json!("tool_calls")));

        let mut chunks = Chunks::new(&frame(Endpoint::Chat), 2);
        let first = chunks.first().unwrap();
        assert_eq!(first["delta"], json!({"role": "assistant", "content": ""}));
        let sent = chunks.choices(&step(parts(), Some("tool_calls")));
        assert_eq!(sent.len(), 4);
        assert_eq!(sent[0]["delta"], json!({"reasoning_content": "hm"}));
        assert_eq!(sent[2]["delta"]["tool_calls"][0]["index"], 1);
        assert_eq!(sent[2]["finish_reason"], Value::Null);
        assert_eq!((&sent[3]["delta"], &sent[3]["finish_reason"]), (&json!({}), &json!("tool_calls")));
    }

    #[test]
    fn a_completion_is_the_text_of_its_steps() {
        let mut whole = step(vec![ReplyPart::Content("ab".into())], None);
        whole.add(step(vec![ReplyPart::Content("c".into())], None));
        whole.add(step(vec![], Some("length")));
        let choice = whole.into_choice(&frame(Endpoint::Completions), 0);
        assert_eq!(choice, json!({"index": 0, "text": "abc", "logprobs": null, "finish_reason": "length"}));
        assert_eq!(Chunks::new(&frame(Endpoint::Completions), 0).first(), None);
    }

    #[test]
    fn a_prompt_with_several_answers_is_counted_once() {
        let tokens = Tokens { prompt: 10, cached: 4, generated: 3, reasoning: 1 };
        let choices = [(0, tokens), (0, tokens), (1, tokens)];
        let usage = usage(choices.into_iter());
        assert_eq!(usage["prompt_tokens"], 20);
        assert_eq!(usage["completion_tokens"], 9);
        assert_eq!(usage["total_tokens"], 29);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 8);
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 3);
    }
}
