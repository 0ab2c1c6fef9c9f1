//! Tools for templates that do not show tools. The system message describes the tools, and calls and results become
//! text.
//!
//! The format is Hermes', which many models know: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

use serde_json::{Value, json};

use super::conversation::Conversation;
use super::history::{add_text, text_of};

/// The texts before and after the definitions of the tools.
const BEFORE: &str = "# Tools\n\nYou can call functions to help with the request. These are their definitions, one on each line:\n<tools>\n";
const BEHIND: &str = "</tools>\n\nTo call a function, write its name and its arguments as JSON between these tags, and then stop:\n<tool_call>\n\
     {\"name\": \"the function's name\", \"arguments\": {\"argument\": \"value\"}}\n</tool_call>\n\n\
     The results come in the next message, between <tool_response> and </tool_response>. Without a need for a function, \
     answer in plain text.";

/// The conversation, with tools, calls and results written as text.
pub(super) fn described(conversation: &Conversation) -> Conversation {
    let mut described = conversation.clone();
    let tools = described.tools.take().unwrap_or_default();
    let lines: String = tools.iter().map(|tool| format!("{}\n", tool.get("function").unwrap_or(tool))).collect();
    let text = [BEFORE, &lines, BEHIND].concat();
    let messages = &mut described.messages;
    messages.iter_mut().for_each(with_calls_in_text);
    with_results_of_user(messages);
    match messages.first_mut() {
        Some(first) if first["role"] == "system" || first["role"] == "developer" => {
            add_text(&mut first["content"], &format!("\n\n{text}"), false);
        }
        _ => {
            messages.insert(0, json!({"role": "system", "content": text}));
            described.parts.iter_mut().for_each(|(index, _)| *index += 1);
        }
    }
    described
}

fn with_calls_in_text(message: &mut Value) {
    let Some(fields) = message.as_object_mut() else { return };
    let Some(Value::Array(calls)) = fields.remove("tool_calls") else { return };
    let mut text = String::new();
    for call in &calls {
        let function = call.get("function").unwrap_or(call);
        let arguments = match &function["arguments"] {
            Value::String(json) => json.parse().unwrap_or_else(|_| Value::from(json.as_str())),
            arguments => arguments.clone(),
        };
        let call = json!({"name": function["name"], "arguments": arguments});
        text.push_str(&format!("<tool_call>\n{call}\n</tool_call>\n"));
    }
    let content = fields.entry("content").or_insert_with(|| "".into());
    let is_silent = text_of(content).is_empty();
    add_text(content, &format!("{}{}", if is_silent { "" } else { "\n" }, text.trim_end()), false);
}

/// Turns results into messages of the user. The results of one turn become one message, because many templates require
/// that roles alternate.
fn with_results_of_user(messages: &mut Vec<Value>) {
    let mut index = 0;
    while index < messages.len() {
        if messages[index]["role"] == "tool" {
            let result = text_of(&messages[index]["content"]);
            let text = format!("<tool_response>\n{result}\n</tool_response>");
            let is_next = index > 0 && messages[index - 1]["role"] == RESULTS;
            if is_next {
                messages.remove(index);
                add_text(&mut messages[index - 1]["content"], &format!("\n{text}"), false);
                continue;
            }
            messages[index] = json!({"role": RESULTS, "content": text});
        }
        index += 1;
    }
    for message in messages.iter_mut().filter(|message| message["role"] == RESULTS) {
        message["role"] = "user".into();
    }
}

/// A role that results have until all of them are found.
const RESULTS: &str = "tool results";
