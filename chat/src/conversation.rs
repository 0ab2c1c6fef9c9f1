//! The input of a template: messages, tools, documents and further variables.

use serde_json::{Map, Value, json};

use super::history::with_ids;
use super::jinja::LocalTime;
use super::marks::{Mark, Marks};
use super::message::{Message, Tool, ToolCall};

/// The input of [`ChatTemplate`](super::ChatTemplate)'s rendering.
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
    /// Whether the messages may be reshaped to suit the template. JSON messages stay as the application wrote them.
    pub(super) typed: bool,
    pub(super) tools: Option<Vec<Value>>,
    pub(super) documents: Option<Vec<Value>>,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) variables: Map<String, Value>,
    pub(super) now: Option<LocalTime>,
    /// Contents in parts, by message index: see [`parts`](Self::parts).
    pub(super) parts: Vec<(usize, Vec<Value>)>,
    /// The characters that stand for pictures and sounds in the contents, in their order.
    pub(super) media: Vec<Mark>,
}

impl Conversation {
    /// A conversation that the model should answer. The messages are shaped to suit the template, and calls without an
    /// id get one.
    pub fn new(messages: &[Message]) -> Self {
        // Mistral's templates require nine characters; others accept them.
        let messages = with_ids(messages, |number| format!("{number:09}"));
        let mut marks = Marks::new(&messages);
        let messages = messages.iter().map(|typed| message(typed, &mut marks)).collect();
        Self { typed: true, media: marks.set, ..Self::from_json(messages) }
    }

    /// Messages in transformers' form: objects with `role`, `content` (a text, or a list of parts such as `{"type":
    /// "text", "text": "..."}`) and any other keys that the template uses. Keys with null values are left out, as in
    /// transformers 5.23 and later (`chat_template_utils.py`, `_normalize_chat_messages`).
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
            media: Vec::new(),
        }
    }

    /// Sets the content, as parts, of the message with this index among those of [`new`](Self::new). A template
    /// receives the parts if it mentions a key that only some parts have (TranslateGemma's `source_lang_code`), and
    /// otherwise the message's text. A part with a picture or a sound (`image_url`, `input_audio`) becomes a text at
    /// its place and keeps only such keys, because the message has the picture or sound itself.
    pub fn parts(mut self, index: usize, parts: Vec<Value>) -> Self {
        self.parts.push((index, parts));
        self
    }

    /// Sets the tools that the model may call.
    pub fn tools(mut self, tools: &[Tool]) -> Self {
        let tool = |tool: &Tool| json!({"type": "function", "function": tool});
        self.tools = (!tools.is_empty()).then(|| tools.iter().map(tool).collect());
        self
    }

    /// Sets the tools in transformers' form:
    /// `{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}`.
    pub fn tools_json(mut self, tools: Vec<Value>) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Sets documents that the answer should use: objects with `title` and `text`.
    pub fn documents(mut self, documents: Vec<Value>) -> Self {
        self.documents = Some(documents);
        self
    }

    /// Whether the prompt ends with the beginning of an answer. Default: true.
    pub fn add_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// Makes the model continue the last message instead of answering it: the prompt ends with its content.
    pub fn continue_final_message(mut self) -> Self {
        self.continue_final_message = true;
        self.add_generation_prompt = false;
        self
    }

    /// Sets a variable of the template, such as `enable_thinking` or `reasoning_effort`. It overrides a built-in
    /// variable of the same name.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the time that the template gets. Default: the time of the rendering.
    pub fn at(mut self, now: LocalTime) -> Self {
        self.now = Some(now);
        self
    }

    /// The same conversation with text contents as parts: `[{"type": "text", "text": ...}]`.
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

/// A message in the form that templates expect. Absent fields are left out.
fn message(message: &Message, marks: &mut Marks) -> Value {
    // A template gets marks instead of pixels.
    let mut object = match message.media.is_empty() {
        true => json!(message),
        false => json!(Message { content: marks.content(message), media: Vec::new(), ..message.clone() }),
    };
    if !message.tool_calls.is_empty() {
        object["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    object
}

fn call(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"type": "function", "id": call.id, "function": function})
}
