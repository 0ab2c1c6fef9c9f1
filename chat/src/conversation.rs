//! The input of a template: messages, tools, documents and other variables.

use serde_json::{Map, Value, json};

use super::history::with_ids;
use super::jinja::LocalTime;
use super::marks::{Mark, Marks};
use super::message::{Message, Tool, ToolCall};

/// The input for rendering a [`ChatTemplate`](super::ChatTemplate).
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
    /// Whether the messages may be changed so that they suit the template. Messages that were given as JSON are not
    /// changed.
    pub(super) typed: bool,
    pub(super) tools: Option<Vec<Value>>,
    pub(super) documents: Option<Vec<Value>>,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) variables: Map<String, Value>,
    pub(super) now: Option<LocalTime>,
    /// Contents that are lists of parts, by the index of the message: see [`parts`](Self::parts).
    pub(super) parts: Vec<(usize, Vec<Value>)>,
    /// The characters that stand for the pictures and sounds in the contents, in order.
    pub(super) media: Vec<Mark>,
}

impl Conversation {
    /// A conversation whose next message is to come from the model. The messages are adapted to the template, and calls
    /// without an id get one.
    pub fn new(messages: &[Message]) -> Self {
        // Mistral's templates require nine characters; other templates accept them.
        let messages = with_ids(messages, |number| format!("{number:09}"));
        let mut marks = Marks::new(&messages);
        let messages = messages.iter().map(|typed| message(typed, &mut marks)).collect();
        Self { typed: true, media: marks.set, ..Self::from_json(messages) }
    }

    /// Messages in transformers' form: objects with `role`, `content` (a text, or a list of parts such as `{"type":
    /// "text", "text": "..."}`) and any other keys that the template uses. Keys whose values are null are left out, as
    /// in transformers 5.23 and later (`chat_template_utils.py`, `_normalize_chat_messages`).
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

    /// For one of the messages that were passed to [`new`](Self::new), given by its index, sets the content as a list
    /// of parts. A template receives these parts if it mentions a key that only some parts have (TranslateGemma's
    /// `source_lang_code`). Otherwise it receives the message's text. The message itself already contains the pictures
    /// and sounds. So a part with a picture or a sound (`image_url`, `input_audio`) becomes a text at its place, and
    /// keeps only its other keys.
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

    /// Sets the tools in the form that transformers uses: `{"type": "function", "function": {"name": ...,
    /// "description": ..., "parameters": ...}}`.
    pub fn tools_json(mut self, tools: Vec<Value>) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Sets documents for the answer to use: objects with `title` and `text`.
    pub fn documents(mut self, documents: Vec<Value>) -> Self {
        self.documents = Some(documents);
        self
    }

    /// Sets whether the prompt ends with the beginning of an answer. Default: true.
    pub fn add_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// Makes the model continue the last message, and not answer it: the prompt ends with the content of that message.
    pub fn continue_final_message(mut self) -> Self {
        self.continue_final_message = true;
        self.add_generation_prompt = false;
        self
    }

    /// Sets a variable of the template, such as `enable_thinking` or `reasoning_effort`. If a built-in variable has the
    /// same name, the new value is used.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the time that the template sees. Default: the time of the rendering.
    pub fn at(mut self, now: LocalTime) -> Self {
        self.now = Some(now);
        self
    }

    /// The same conversation, in which each content that is a text becomes a list of parts: `[{"type": "text", "text":
    /// ...}]`.
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

/// A message in the form that templates expect. Fields without a value are left out.
fn message(message: &Message, marks: &mut Marks) -> Value {
    // In place of pixels, the template gets marks.
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
