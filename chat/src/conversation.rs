//! What a template is given: messages, tools, documents, and whatever else it asks for.

use serde_json::{Map, Value, json};

use super::history::with_ids;
use super::jinja::LocalTime;
use super::message::{Message, Tool, ToolCall};

/// A conversation, as a [`ChatTemplate`](super::ChatTemplate) renders it.
///
/// ```
/// use autoplace_chat::{Conversation, Message};
///
/// let conversation = Conversation::new(&[Message::system("Be brief."), Message::user("Hello!")])
///     .variable("enable_thinking", false);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    pub(super) messages: Vec<Value>,
    /// Whether the messages are ours to shape, or the application's own.
    pub(super) typed: bool,
    pub(super) tools: Option<Vec<Value>>,
    pub(super) documents: Option<Vec<Value>>,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) variables: Map<String, Value>,
    pub(super) now: Option<LocalTime>,
    /// Contents that were given in parts, by the number of their message: see [`parts`](Self::parts).
    pub(super) parts: Vec<(usize, Vec<Value>)>,
}

impl Conversation {
    /// These messages, for the model to answer. A template is given them as it wants them, and calls without an id
    /// have one.
    pub fn new(messages: &[Message]) -> Self {
        // Nine digits: what Mistral's templates want, and others do not mind.
        let messages = with_ids(messages, |number| format!("{number:09}"));
        let messages = messages.iter().map(message).collect();
        Self { typed: true, ..Self::from_json(messages) }
    }

    /// Messages as transformers takes them: objects with `role`, `content` (a text, or a list of parts such as
    /// `{"type": "text", "text": "..."}`) and whatever else the template knows. As in transformers from 5.23 on, a key
    /// of a message whose value is null is left out (`chat_template_utils.py`, `_normalize_chat_messages`).
    pub fn from_json(mut messages: Vec<Value>) -> Self {
        for fields in messages.iter_mut().filter_map(Value::as_object_mut) {
            fields.retain(|_, value| !value.is_null());
        }
        Self {
            messages,
            typed: false,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            variables: Map::new(),
            now: None,
            parts: Vec::new(),
        }
    }

    /// The content of message number `index` of [`new`](Self::new), in the parts that it was given in. Templates that
    /// name one of the parts' own keys (TranslateGemma's `source_lang_code`) are shown the parts; others the
    /// message's text.
    pub fn parts(mut self, index: usize, parts: Vec<Value>) -> Self {
        self.parts.push((index, parts));
        self
    }

    /// Tools that the model may call.
    pub fn tools(mut self, tools: &[Tool]) -> Self {
        let tool = |tool: &Tool| json!({"type": "function", "function": tool});
        self.tools = (!tools.is_empty()).then(|| tools.iter().map(tool).collect());
        self
    }

    /// Tools as transformers takes them:
    /// `{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}`.
    pub fn tools_json(mut self, tools: Vec<Value>) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Texts that the answer is to be drawn from: objects with `title` and `text`.
    pub fn documents(mut self, documents: Vec<Value>) -> Self {
        self.documents = Some(documents);
        self
    }

    /// Whether the prompt ends with what begins an answer. It does, unless this says otherwise.
    pub fn add_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// The model goes on with the last message instead of answering it: the prompt ends with its content.
    pub fn continue_final_message(mut self) -> Self {
        self.continue_final_message = true;
        self.add_generation_prompt = false;
        self
    }

    /// Another variable of the template: `enable_thinking`, `reasoning_effort`. It goes before what the template would
    /// see under that name.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The time that the template sees. Without it, that of the rendering.
    pub fn at(mut self, now: LocalTime) -> Self {
        self.now = Some(now);
        self
    }

    /// The same conversation with the content of its messages in parts: `[{"type": "text", "text": ...}]`.
    pub(super) fn in_parts(&self) -> Self {
        let mut parts = self.clone();
        for message in &mut parts.messages {
            if let Some(content @ Value::String(_)) = message.get_mut("content") {
                *content = json!([{"type": "text", "text": content.take()}]);
            }
        }
        parts
    }
}

/// A message in the shape that templates know. What it has not is not there.
fn message(message: &Message) -> Value {
    let mut object = json!(message);
    if !message.tool_calls.is_empty() {
        object["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    object
}

fn call(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"type": "function", "id": call.id, "function": function})
}
