//! Calls that are a name and then JSON: `name[ARGS]{..}`, `functions.name:0<|tool_call_argument_begin|>{..}`.

use super::{CallError, arguments, json};
use crate::ToolCall;

/// What stands before the arguments.
pub(super) struct Head<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) name: &'a str,
}

/// Reads the text before the arguments.
pub(super) type ReadHead = fn(&str) -> Head<'_>;

/// A call of which `head` reads what stands before the first `{`.
pub(super) fn call(text: &str, head: ReadHead) -> Result<ToolCall, CallError> {
    let (before, json) = text.split_at(text.find('{').unwrap_or(text.len()));
    let Head { id, name } = head(before.trim());
    Ok(ToolCall {
        id: id.map(str::to_owned),
        name: arguments::tool_name(name)?,
        arguments: only_json(json)?,
    })
}

/// Arguments of which nothing but a code fence stands behind.
pub(super) fn only_json(text: &str) -> Result<serde_json::Value, CallError> {
    if text.trim().is_empty() {
        return arguments::object(serde_json::Value::Null);
    }
    let (value, behind) = json::value(text)?;
    let behind = behind.trim();
    if !behind.is_empty() && behind != "```" {
        return Err(CallError::unexpected("the end of the call", behind));
    }
    arguments::object(value)
}

/// `name[CALL_ID]id[ARGS]`, `name[ARGS]`
pub(super) fn mistral(head: &str) -> Head<'_> {
    let head = head.strip_suffix("[ARGS]").unwrap_or(head);
    match head.split_once("[CALL_ID]") {
        Some((name, id)) => Head { id: Some(id), name },
        None => Head {
            id: None,
            name: head,
        },
    }
}

/// `function<｜tool▁sep｜>name` and the beginning of a code fence, or since V3.1 `name<｜tool▁sep｜>`
pub(super) fn deepseek(head: &str) -> Head<'_> {
    let head = head.strip_suffix("```json").unwrap_or(head);
    let name = match head.split_once("<｜tool▁sep｜>") {
        Some((name, behind)) if behind.trim().is_empty() => name,
        Some((_kind, name)) => name,
        None => head,
    };
    Head { id: None, name }
}

/// `functions.name:0<|tool_call_argument_begin|>`: all of it before the mark is the call's id.
pub(super) fn kimi(head: &str) -> Head<'_> {
    let id = head
        .strip_suffix("<|tool_call_argument_begin|>")
        .unwrap_or(head);
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    Head { id: Some(id), name }
}

/// `id<|tool_call:name|>name<|tool_call:args|>`
pub(super) fn solar(head: &str) -> Head<'_> {
    let head = head.strip_suffix("<|tool_call:args|>").unwrap_or(head);
    match head.split_once("<|tool_call:name|>") {
        Some((id, name)) => Head { id: Some(id), name },
        None => Head {
            id: None,
            name: head,
        },
    }
}

/// `name>`, the rest of `<function=name>`
pub(super) fn functionary(head: &str) -> Head<'_> {
    Head {
        id: None,
        name: head.strip_suffix('>').unwrap_or(head),
    }
}
