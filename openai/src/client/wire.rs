//! Messages and tool calls in the API's form.

use autoplace::chat::{Media, Message, Tool, ToolCall, with_ids};
use autoplace::generate::{Constraint, ToolChoice};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::Error;

/// The messages of a conversation. A call without an id, such as a local model's call, gets a new id, and the call's
/// result gets the same id.
pub(super) fn messages(messages: &[Message]) -> Result<Value, Error> {
    let messages = with_ids(messages, |number| format!("call_{number}"));
    let messages = messages.iter().map(|message| {
        let mut object = json!({"role": message.role, "content": content(message, "text", chat_part)?});
        if !message.tool_calls.is_empty() {
            object["tool_calls"] = message.tool_calls.iter().map(call).collect();
        }
        for (name, value) in [
            ("tool_call_id", &message.tool_call_id),
            ("reasoning_content", &message.reasoning_content),
            ("name", &message.name),
        ] {
            if let Some(value) = value {
                object[name] = json!(value);
            }
        }
        Ok(object)
    });
    messages.collect()
}

/// The content of a message: its text, or a list of parts if it has pictures or sounds. `of_text` is the type of a text
/// part, and `of_media` makes the part for a picture or a sound.
pub(super) fn content(message: &Message, of_text: &str, of_media: impl Fn(File) -> Value) -> Result<Value, Error> {
    if message.media.is_empty() {
        return Ok(message.content.as_str().into());
    }
    let text = |text: &str| (!text.is_empty()).then(|| json!({"type": of_text, "text": text}));
    let (mut parts, mut from) = (Vec::new(), 0);
    for attached in &message.media {
        // If the application has edited the text, the position may lie outside of the text.
        let mut at = attached.at.clamp(from, message.content.len());
        while !message.content.is_char_boundary(at) {
            at += 1;
        }
        parts.extend(text(&message.content[from..at]));
        from = at;
        parts.push(of_media(File::of(&attached.media)?));
    }
    parts.extend(text(&message.content[from..]));
    Ok(parts.into())
}

/// A picture or a sound in the API's form.
pub(super) enum File {
    /// A PNG file as a data URL.
    Image(String),
    /// A WAV file in base64.
    Sound(String),
}

impl File {
    fn of(media: &Media) -> Result<Self, Error> {
        if let Some(file) = media.to_png() {
            return Ok(Self::Image(format!("data:image/png;base64,{}", BASE64_STANDARD.encode(file))));
        }
        let file = media.to_wav().ok_or(Error::Inexpressible { what: "an image or a sound of more than 4 GiB" })?;
        Ok(Self::Sound(BASE64_STANDARD.encode(file)))
    }

    /// The part for a sound, which is the same in both APIs.
    pub(super) fn sound(data: &str) -> Value {
        json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
    }
}

fn chat_part(file: File) -> Value {
    match file {
        File::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
        File::Sound(data) => File::sound(&data),
    }
}

fn call(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments.to_string()});
    json!({"id": call.id, "type": "function", "function": function})
}

pub(super) fn tools(tools: &[Tool]) -> Value {
    tools.iter().map(|tool| json!({"type": "function", "function": tool})).collect()
}

pub(super) fn tool_choice(choice: &ToolChoice) -> Value {
    let function = |name: &String| json!({"type": "function", "function": {"name": name}});
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Function(name) => function(name),
        ToolChoice::OneOf(names) => {
            let tools: Value = names.iter().map(function).collect();
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}})
        }
    }
}

/// `response_format` for a constraint. The API supports only JSON.
pub(super) fn response_format(constraint: &Constraint) -> Result<Value, Error> {
    if *constraint == Constraint::json_object() {
        return Ok(json!({"type": "json_object"}));
    }
    let kind = serde_json::to_value(constraint).unwrap_or_default();
    let schema = kind["json_schema"]["schema"].as_str().and_then(|schema| serde_json::from_str::<Value>(schema).ok());
    let schema = schema.ok_or(Error::Inexpressible { what: "a constraint other than a JSON schema" })?;
    let schema = json!({"name": "answer", "strict": true, "schema": schema});
    Ok(json!({"type": "json_schema", "json_schema": schema}))
}

/// Calls that are not complete yet. Their arguments arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug, Default)]
struct Call {
    index: u64,
    id: Option<String>,
    name: String,
    arguments: String,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the `tool_calls` of a chunk. Some servers send no index, or send index 0 for each call. With such a server,
    /// a new id begins a new call.
    pub(super) fn add(&mut self, deltas: &Value) {
        for delta in deltas.as_array().into_iter().flatten() {
            let index = delta["index"].as_u64().unwrap_or_default();
            let id = delta["id"].as_str().filter(|id| !id.is_empty());
            let is_same =
                |last: &Call| last.index == index && (id.is_none() || last.id.is_none() || last.id.as_deref() == id);
            if !self.0.last().is_some_and(is_same) {
                self.0.push(Call { index, ..Call::default() });
            }
            let Some(call) = self.0.last_mut() else { continue };
            let function = &delta["function"];
            call.name.push_str(function["name"].as_str().unwrap_or_default());
            call.arguments.push_str(function["arguments"].as_str().unwrap_or_default());
            call.id = call.id.take().or_else(|| id.map(str::to_owned));
        }
    }

    /// The calls, which are complete after the last chunk.
    pub(super) fn finish(&mut self) -> Result<Vec<ToolCall>, Error> {
        self.0.drain(..).map(|Call { id, name, arguments, .. }| called(id, name, arguments)).collect()
    }
}

/// A complete call. Missing arguments become an empty object.
pub(super) fn called(id: Option<String>, name: String, arguments: String) -> Result<ToolCall, Error> {
    let read: Option<Map<String, Value>> = match arguments.trim() {
        "" => Some(Map::new()),
        text => text.parse().ok(),
    };
    match read {
        Some(read) => Ok(ToolCall { id, name, arguments: read.into() }),
        None => Err(Error::Call { name, arguments }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(id: Option<&str>, name: &str) -> ToolCall {
        ToolCall { id: id.map(str::to_owned), name: name.to_owned(), arguments: json!({"n": 1}) }
    }

    #[test]
    fn results_name_the_calls_that_they_answer_whether_those_had_ids_or_not() {
        let [with, without] = [called(Some("a"), "f"), called(None, "g")];
        let said = Message { tool_calls: vec![with.clone(), without.clone()], ..Message::assistant("") };
        let talk = [Message::user("q"), said, Message::tool(&with, "1"), Message::tool(&without, "2")];
        let written = messages(&talk).unwrap();
        let ids = |at: usize| [&written[at]["tool_calls"][0]["id"], &written[at]["tool_calls"][1]["id"]];
        assert_eq!(ids(1), ["a", "call_2"]);
        assert_eq!(written[1]["tool_calls"][0]["function"]["arguments"], r#"{"n":1}"#);
        assert_eq!([&written[2]["tool_call_id"], &written[3]["tool_call_id"]], ["a", "call_2"]);
        assert_eq!(written[0], json!({"role": "user", "content": "q"}));
    }
}
