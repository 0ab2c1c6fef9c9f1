//! Calls that are JSON: `{"name": .., "arguments": {..}}`, several such objects, or a list of them.

use serde_json::{Map, Value};

use super::reader::{Reader, each};
use super::{CallError, arguments};
use crate::{Tool, ToolCall};

/// The names that models use for this key.
const NAME: &[&str] = &["name", "tool_name", "function"];
const ARGUMENTS: &[&str] = &["arguments", "parameters"];
const ID: &[&str] = &["id", "tool_call_id", "call_id"];

/// The calls in `text`. It contains values one after the other, each of which is an object or a list of objects.
pub(super) fn calls(text: &str) -> Result<Vec<ToolCall>, CallError> {
    calls_as(text, call)
}

/// The calls in `text`, each written as `{"f": {..}}`.
pub(super) fn calls_by_name(text: &str) -> Result<Vec<ToolCall>, CallError> {
    calls_as(text, |object| match object.iter().next() {
        Some((name, arguments)) if object.len() == 1 => Ok(ToolCall::new(name, arguments::object(arguments.clone())?)),
        _ => call(object),
    })
}

fn calls_as(
    text: &str,
    call: impl Fn(Map<String, Value>) -> Result<ToolCall, CallError>,
) -> Result<Vec<ToolCall>, CallError> {
    each(text, ",;", |reader, calls| {
        let values = match value(reader)? {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            calls.push(match value {
                Value::Object(object) => call(object)?,
                value => return Err(CallError::unexpected("an object", &value.to_string())),
            });
        }
        Ok(())
    })
}

/// Arguments that are JSON. Only a code fence may follow them.
pub(super) fn arguments(text: &str) -> Result<Value, CallError> {
    let mut reader = Reader(text);
    if text.trim().is_empty() {
        return arguments::object(Value::Null);
    }
    let value = value(&mut reader)?;
    reader.0 = reader.0.trim();
    if reader.0 != "```" {
        reader.end()?;
    }
    arguments::object(value)
}

/// Parses the next value.
fn value(reader: &mut Reader<'_>) -> Result<Value, CallError> {
    let mut values = serde_json::Deserializer::from_str(reader.0).into_iter();
    let value = values.next().ok_or(CallError::NotAnObject)?;
    let value = value.map_err(|error| CallError::Json(error.to_string()))?;
    reader.take(values.byte_offset());
    Ok(value)
}

fn call(mut object: Map<String, Value>) -> Result<ToolCall, CallError> {
    let mut take = |names: &[&str]| names.iter().find_map(|name| object.remove(*name));
    let id = take(ID).and_then(|id| match id {
        Value::String(id) => Some(id),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    });
    match take(NAME) {
        Some(Value::String(name)) if !name.is_empty() => {
            Ok(ToolCall { id, name, arguments: arguments::object(take(ARGUMENTS).unwrap_or_default())? })
        }
        // `{"type": "function", "function": {"name": .., ..}}`
        Some(Value::Object(function)) => {
            let inner = call(function)?;
            Ok(ToolCall { id: id.or(inner.id), ..inner })
        }
        _ => Err(CallError::NoName),
    }
}

/// The call `{"name": .., "arguments": {..}}` in a text that may have ended anywhere, so that the call is incomplete.
/// If only a part of the name is there, and exactly one name of the `tools` begins with it, that name is used. `None`
/// if there is no such tool.
pub(super) fn cut_off(text: &str, tools: &[Tool]) -> Option<ToolCall> {
    let mut reader = Reader(text);
    if !reader.next_is("{") || !reader.next_is("\"name\"") || !reader.next_is(":") {
        return only(tools, "");
    }
    reader.next_is("");
    let mut values = serde_json::Deserializer::from_str(reader.0).into_iter::<String>();
    let Some(Ok(name)) = values.next() else {
        return only(tools, reader.0.strip_prefix('"').unwrap_or_default());
    };
    reader.take(values.byte_offset());
    let has_arguments = reader.next_is(",") && reader.next_is("\"arguments\"") && reader.next_is(":");
    let so_far = if has_arguments { reader.0.trim_start() } else { "" };
    // If only the end of the call is missing, the arguments may be complete.
    let whole = serde_json::from_str(so_far).ok().filter(Value::is_object);
    Some(ToolCall::new(name, whole.unwrap_or_else(|| so_far.into())))
}

/// A call without arguments. The tool is the only one whose name begins with this text.
fn only(tools: &[Tool], beginning: &str) -> Option<ToolCall> {
    let mut named = tools.iter().filter(|tool| tool.name.starts_with(beginning));
    let tool = named.next()?;
    named.next().is_none().then(|| ToolCall::new(tool.name.as_str(), "".into()))
}

/// Follows JSON byte by byte, and recognises strings, brackets and the ends of values.
#[derive(Debug, Default)]
pub(super) struct Follow {
    lists: bool,
    /// How many brackets are open; 0 outside of values.
    pub(super) depth: u32,
    pub(super) in_string: bool,
    /// Whether there is any text between values other than commas and semicolons.
    pub(super) stray: bool,
    escaped: bool,
    broken: bool,
}

impl Follow {
    /// A value begins at `{`, and with `lists` also at `[`.
    pub(super) fn new(lists: bool) -> Self {
        Self { lists, ..Self::default() }
    }

    /// Reads the next byte. Returns whether a value ends with this byte.
    pub(super) fn byte(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                // In JSON, a string contains no line break, so a quotation mark must be missing. From here on,
                // quotation marks are ignored.
                b'\n' => (self.in_string, self.broken) = (false, true),
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' if self.depth > 0 => self.in_string = !self.broken,
            b'{' => self.depth = self.depth.saturating_add(1),
            b'[' if self.lists || self.depth > 0 => self.depth = self.depth.saturating_add(1),
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {
                let is_between = byte.is_ascii_whitespace() || b",;".contains(&byte);
                self.stray |= self.depth == 0 && !is_between;
            }
        }
        false
    }
}
