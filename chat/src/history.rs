//! Typed messages in the shape that a template wants, where it would refuse the usual one or leave something out, as
//! llama.cpp does (`chat.cpp`, `workaround`; `parsers/gpt-oss.cpp`, `gemma4.cpp`, `ministral3.cpp`).

use std::mem;

use serde_json::{Value, json};

use super::conversation::Conversation;
use super::jinja::LocalTime;
use super::message::{Message, Role};

/// The messages with an id for each call that has none, of its number from 1, and with the ids of the calls that they
/// answer at the results: that of a name is the next call of it, another the next call.
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

/// The conversation as the template of this source wants it. `takes_system` says whether it shows a system's message.
pub(super) fn shaped(conversation: &Conversation, source: &str, takes_system: impl FnOnce() -> bool) -> Conversation {
    let mut shaped = conversation.clone();
    // Templates that are not told write a date of their own: `common_chat_extra_context`.
    let now = *shaped.now.get_or_insert_with(LocalTime::now);
    for (name, format) in [("datetime", "%b %d %Y"), ("date_string", "%d %b %Y")] {
        let date = || now.format(format).unwrap_or_default().into();
        shaped.variables.entry(name).or_insert_with(date);
    }
    let messages = &mut shaped.messages;
    // gpt-oss: one of content and thoughts may stand before a call, and of several calls the first is shown.
    if source.contains("<|channel|>") {
        let both = messages.iter_mut().filter(|it| it["tool_calls"].is_array() && is_text(&it["reasoning_content"]));
        both.for_each(|message| message["content"] = "".into());
        with_calls_apart(messages);
    }
    // Ministral 3: thoughts are a part of the content.
    if source.contains("block['type'] == 'thinking'") {
        messages.iter_mut().filter(|it| it["role"] == "assistant").for_each(with_thoughts_within);
    }
    // Gemma 4, before its template looked for the results itself.
    let has = |text: &str| source.contains(text);
    if has("<|tool_call>call:") && has("tool_responses") && !has("{#- OpenAI Chat Completions:") {
        with_results_within(messages);
    }
    if messages.iter().any(|it| it["role"] == "system") && !takes_system() {
        without_system(messages);
    }
    shaped
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

/// Results, and the answer behind them, become part of the message that has the calls.
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

/// A system's message becomes the beginning of the next one of the user.
fn without_system(messages: &mut Vec<Value>) {
    let mut system = String::new();
    for mut message in mem::take(messages) {
        let text = message["content"].as_str().unwrap_or_default();
        if message["role"] == "system" {
            system = system + text + "\n\n";
            continue;
        }
        if message["role"] == "user" {
            message["content"] = (mem::take(&mut system) + text).into();
        }
        messages.push(message);
    }
    if !system.is_empty() {
        messages.push(json!({"role": "user", "content": system.trim_end()}));
    }
}

/// Each call in a message of its own, its result behind it: for templates that know single calls. `false`: there are
/// no others.
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
