//! Changes typed messages for templates that would refuse their usual form or drop parts of it. llama.cpp does the same
//! (`chat.cpp`, `workaround`; `parsers/gpt-oss.cpp`, `gemma4.cpp`, `ministral3.cpp`).

use std::mem;

use serde_json::{Value, json};

use super::conversation::Conversation;
use super::jinja::LocalTime;
use super::message::{Message, Role, no_parameters};

/// Gives an id to each call that has none; the id depends on the call's number (1 for the first call). Results get the
/// ids of their calls. A result with a tool's name belongs to the next call of that tool without a result. A result
/// without a name belongs to the next call without a result, whatever the tool.
#[doc(hidden)]
pub fn with_ids(messages: &[Message], id: impl Fn(usize) -> String) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let mut open: Vec<(String, String)> = Vec::new();
    let mut calls = 0;
    for message in &mut messages {
        if !message.tool_calls.is_empty() {
            open.clear();
        }
        for call in &mut message.tool_calls {
            calls += 1;
            let id = call.id.get_or_insert_with(|| id(calls));
            open.push((id.clone(), call.name.clone()));
        }
        if message.role == Role::TOOL {
            let at = match &message.tool_call_id {
                Some(of) => open.iter().position(|(id, _)| id == of),
                None => open.iter().position(|(_, name)| message.name.as_ref() == Some(name)).or(Some(0)),
            };
            if let Some(at) = at.filter(|at| *at < open.len()) {
                message.tool_call_id = Some(open.remove(at).0);
            }
        }
    }
    messages
}

/// What [`shaped`] must know about a template.
pub(super) struct Wants<'a> {
    pub(super) source: &'a str,
    /// Whether the template shows a system message.
    pub(super) takes_system: &'a dyn Fn() -> bool,
    /// Whether the template shows messages with all these roles, followed by a user message.
    pub(super) takes_all: &'a dyn Fn(&[Role]) -> bool,
}

/// The conversation in the form that a template expects.
pub(super) fn shaped(conversation: &Conversation, wants: &Wants<'_>) -> Conversation {
    let mut shaped = conversation.clone();
    let source = wants.source;
    with_own_parts(&mut shaped, source);
    // If these variables are not set, templates write a fixed date (llama.cpp, `common_chat_extra_context`).
    let now = *shaped.now.get_or_insert_with(LocalTime::now);
    for (name, format) in [("datetime", "%b %d %Y"), ("date_string", "%d %b %Y")] {
        let date = || now.format(format).unwrap_or_default().into();
        shaped.variables.entry(name).or_insert_with(date);
    }
    let messages = &mut shaped.messages;
    // Before a call, gpt-oss shows either the content or the thoughts. Of several calls it shows only the first.
    if source.contains("<|channel|>") {
        let both = messages
            .iter_mut()
            .filter(|message| message["tool_calls"].is_array() && is_text(&message["reasoning_content"]));
        both.for_each(|message| message["content"] = "".into());
        with_calls_apart(messages);
    }
    // Ministral 3 expects thoughts as a part of the content.
    if source.contains("block['type'] == 'thinking'") {
        messages.iter_mut().filter(|message| message["role"] == "assistant").for_each(with_thoughts_within);
    }
    // Older versions of Gemma 4's template do not look for results.
    let has = |text: &str| source.contains(text);
    if has("<|tool_call>call:") && has("tool_responses") && !has("{#- OpenAI Chat Completions:") {
        with_results_within(messages);
    }
    if messages.iter().any(|message| message["role"] == "system") && !(wants.takes_system)() {
        without_system(messages);
    } else {
        with_one_system(messages, wants.takes_all);
    }
    shaped
}

/// The keys under which a part contains its picture or sound. The message already contains these.
const OF_MEDIA: [&str; 4] = ["audio", "image", "image_url", "input_audio"];

/// If the template mentions a key that only some parts have, replaces texts by the parts that they were made of. A part
/// with a picture or a sound becomes a text with its mark, and keeps its other keys.
fn with_own_parts(conversation: &mut Conversation, source: &str) {
    for (index, mut parts) in mem::take(&mut conversation.parts) {
        let fields = parts.iter().filter_map(Value::as_object).flatten().map(|(key, _)| key.as_str());
        let mut own = fields.filter(|key| !["type", "text"].contains(key) && !OF_MEDIA.contains(key));
        let is_named = own.any(|key| source.contains(key));
        let Some(message) = conversation.messages.get_mut(index).filter(|_| is_named) else { continue };
        let text = message["content"].as_str().unwrap_or_default();
        let mut marks = text.chars().filter(|c| conversation.media.iter().any(|medium| medium.mark == *c));
        for part in parts.iter_mut().filter_map(Value::as_object_mut) {
            let is_medium = part.get("type").and_then(Value::as_str).is_some_and(|kind| OF_MEDIA.contains(&kind));
            if is_medium && let Some(mark) = marks.next() {
                part.retain(|key, _| !OF_MEDIA.contains(&key.as_str()));
                part.insert("type".to_owned(), "text".into());
                part.insert("text".to_owned(), mark.to_string().into());
            }
        }
        message["content"] = parts.into();
    }
}

/// If several instructions come at the beginning, and the template refuses or drops all but the first, merges them into
/// the first. Instructions that come later are not moved.
fn with_one_system(messages: &mut Vec<Value>, takes_all: &dyn Fn(&[Role]) -> bool) {
    let role = |message: &Value| {
        let role = message["role"].as_str().filter(|role| ["system", "developer"].contains(role));
        role.map(Role::new)
    };
    let roles: Vec<Role> = messages.iter().map_while(role).collect();
    if roles.len() < 2 || takes_all(&roles) {
        return;
    }
    let texts: Vec<&str> = messages[..roles.len()].iter().filter_map(|message| message["content"].as_str()).collect();
    messages[0]["content"] = texts.join("\n\n").into();
    messages.drain(1..roles.len());
}

/// Adds a text at the beginning or at the end of a content. The content is a text or a list of parts.
pub(super) fn add_text(content: &mut Value, text: &str, is_first: bool) {
    match content {
        Value::Array(parts) => {
            let at = if is_first { 0 } else { parts.len() };
            parts.insert(at, json!({"type": "text", "text": text}));
        }
        content => {
            let said = content.as_str().unwrap_or_default();
            *content = if is_first { [text, said].concat() } else { [said, text].concat() }.into();
        }
    }
}

/// Writes the arguments of calls as JSON text. Some templates append them to other texts (functionary 3.2). Returns
/// `false` if nothing changed.
pub(super) fn with_arguments_as_text(messages: &mut [Value]) -> bool {
    let mut is_changed = false;
    for message in messages {
        for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
            if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|arguments| !arguments.is_string())
            {
                *arguments = arguments.to_string().into();
                is_changed = true;
            }
        }
    }
    is_changed
}

/// Gives tools an empty description or an empty schema if they have none. Without these, templates that show both would
/// fail. Returns `false` if nothing changed.
pub(super) fn with_whole_tools(tools: &mut [Value]) -> bool {
    let mut is_changed = false;
    for tool in tools {
        // A tool may also be given as only its function, without an object around it.
        let tool = match tool.get("function").is_some_and(Value::is_object) {
            true => &mut tool["function"],
            false => tool,
        };
        let Some(fields) = tool.as_object_mut() else { continue };
        for (name, default) in [("description", "".into()), ("parameters", no_parameters())] {
            if fields.get(name).is_none_or(Value::is_null) {
                fields.insert(name.to_owned(), default);
                is_changed = true;
            }
        }
        // The schema `{}` permits any arguments, but templates look for `properties`.
        if let Some(Value::Object(schema)) = fields.get_mut("parameters")
            && !schema.contains_key("properties")
        {
            schema.entry("type").or_insert("object".into());
            schema.insert("properties".to_owned(), json!({}));
            is_changed = true;
        }
    }
    is_changed
}

/// The text of a content. If the content is a list of parts, their texts are joined.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.as_str().unwrap_or_default().to_owned(),
    }
}

fn is_text(value: &Value) -> bool {
    !matches!(value.as_str(), None | Some(""))
}

fn with_thoughts_within(message: &mut Value) {
    let part = |kind: &str, text: &Value| is_text(text).then(|| json!({"type": kind, kind: text}));
    let parts = [part("thinking", &message["reasoning_content"]), part("text", &message["content"])];
    if parts.iter().any(Option::is_some) {
        message["content"] = parts.into_iter().flatten().collect();
    }
}

/// Moves results, and the answer that follows them, into the message that contains the calls.
fn with_results_within(messages: &mut Vec<Value>) {
    let mut rest = mem::take(messages).into_iter().peekable();
    while let Some(mut message) = rest.next() {
        let calls = message["tool_calls"].take();
        let mut responses = Vec::new();
        while let Some(result) = rest.next_if(|next| calls.is_array() && next["role"] == "tool") {
            let mut calls = calls.as_array().into_iter().flatten();
            let call = calls.find(|call| call["id"] == result["tool_call_id"]);
            let name = call.map_or(&result["name"], |call| &call["function"]["name"]);
            let text = result["content"].as_str().unwrap_or_default();
            let response = text.parse().unwrap_or_else(|_| Value::from(text));
            responses.push(json!({"name": name, "response": response}));
        }
        if !responses.is_empty() {
            message["tool_responses"] = responses.into();
            let is_answer = |next: &Value| next["role"] == "assistant" && !next["tool_calls"].is_array();
            let answer = rest.next_if(|next| is_answer(next) && is_text(&next["content"]));
            message["content"] = answer.map_or("".into(), |mut answer| answer["content"].take());
        }
        message["tool_calls"] = calls;
        messages.push(message);
    }
}

/// Moves the text of a system message to the beginning of the next user message.
pub(super) fn without_system(messages: &mut Vec<Value>) {
    let mut system = String::new();
    for mut message in mem::take(messages) {
        if message["role"] == "system" {
            system = system + &text_of(&message["content"]) + "\n\n";
            continue;
        }
        if message["role"] == "user" && !system.is_empty() {
            add_text(&mut message["content"], &mem::take(&mut system), true);
        }
        messages.push(message);
    }
    if !system.is_empty() {
        messages.push(json!({"role": "user", "content": system.trim_end()}));
    }
}

/// Splits a message with several calls into one message for each call, each followed by its result. This is for
/// templates that support only one call per message. Returns `false` if every message has at most one call.
pub(super) fn with_calls_apart(messages: &mut Vec<Value>) -> bool {
    let is_several = |message: &Value| message["tool_calls"].as_array().is_some_and(|calls| calls.len() > 1);
    if !messages.iter().any(is_several) {
        return false;
    }
    let mut rest = mem::take(messages).into_iter().peekable();
    while let Some(mut message) = rest.next() {
        if !is_several(&message) {
            messages.push(message);
            continue;
        }
        let calls = message["tool_calls"].take();
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        for call in calls.as_array().into_iter().flatten() {
            message["tool_calls"] = json!([call]);
            messages.push(message);
            messages.extend(results.extract_if(.., |result| result["tool_call_id"] == call["id"]));
            message = json!({"role": "assistant", "content": ""});
        }
        messages.append(&mut results);
    }
    true
}
