//! Calls that are JSON: `{"name": .., "arguments": {..}}`, several of them, or a list.

use serde_json::{Map, Value};

use super::{CallError, arguments};
use crate::ToolCall;

/// What models call a call's parts.
const NAME: &[&str] = &["name", "tool_name", "function"];
const ARGUMENTS: &[&str] = &["arguments", "parameters"];
const ID: &[&str] = &["id", "tool_call_id", "call_id"];

/// How an object is a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `{"name": "f", "arguments": {..}}`, under any of their names.
    NameAndArguments,
    /// `{"f": {..}}`
    NameIsKey,
}

/// The calls in `text`: one value after the other, each an object or a list of objects.
pub(super) fn calls(text: &str, shape: Shape) -> Result<Vec<ToolCall>, CallError> {
    let mut calls = Vec::new();
    let mut rest = skip(text);
    if rest.is_empty() {
        return Err(CallError::NotACall);
    }
    while !rest.is_empty() {
        let (value, behind) = value(rest)?;
        rest = skip(behind);
        match value {
            Value::Array(values) => {
                for value in values {
                    calls.push(call(value, shape)?);
                }
            }
            value => calls.push(call(value, shape)?),
        }
    }
    Ok(calls)
}

/// The value that `text` begins with, and what stands behind it.
pub(super) fn value(text: &str) -> Result<(Value, &str), CallError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    match values.next() {
        Some(Ok(value)) => {
            let behind = text.get(values.byte_offset()..).unwrap_or_default();
            Ok((value, behind))
        }
        Some(Err(error)) => Err(CallError::Json(error.to_string())),
        None => Err(CallError::NotAnObject),
    }
}

fn skip(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_whitespace() || c == ',' || c == ';')
}

fn call(value: Value, shape: Shape) -> Result<ToolCall, CallError> {
    let Value::Object(mut object) = value else {
        return Err(CallError::unexpected("an object", &value.to_string()));
    };
    if shape == Shape::NameIsKey
        && object.len() == 1
        && let Some((name, arguments)) = object.iter().next()
    {
        return Ok(ToolCall {
            id: None,
            name: name.clone(),
            arguments: arguments::object(arguments.clone())?,
        });
    }
    let id = take(&mut object, ID).and_then(|id| match id {
        Value::String(id) => Some(id),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    });
    match take(&mut object, NAME) {
        Some(Value::String(name)) if !name.is_empty() => {
            let given = take(&mut object, ARGUMENTS).unwrap_or_default();
            let arguments = arguments::object(given)?;
            Ok(ToolCall {
                id,
                name,
                arguments,
            })
        }
        // `{"type": "function", "function": {"name": .., ..}}`
        Some(function @ Value::Object(_)) => {
            let inner = call(function, Shape::NameAndArguments)?;
            Ok(ToolCall {
                id: id.or(inner.id),
                ..inner
            })
        }
        _ => Err(CallError::NoName),
    }
}

fn take(object: &mut Map<String, Value>, names: &[&str]) -> Option<Value> {
    names.iter().find_map(|name| object.remove(*name))
}

/// Follows JSON byte by byte: where its strings are, and where its first value ends.
#[derive(Debug, Clone)]
pub(super) struct Follow {
    lists: bool,
    depth: u32,
    in_string: bool,
    escaped: bool,
    broken: bool,
    ended: bool,
}

impl Follow {
    /// Begins at the first `{`, or with `lists` also at the first `[`.
    pub(super) fn new(lists: bool) -> Self {
        Self {
            lists,
            depth: 0,
            in_string: false,
            escaped: false,
            broken: false,
            ended: false,
        }
    }

    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    /// Whether a whole value has been read.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether this is outside of values: before, between or behind them.
    pub(super) fn outside(&self) -> bool {
        self.depth == 0
    }

    pub(super) fn byte(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                // No string of JSON goes over a line: a quote is missing somewhere, and quotes say nothing any more.
                b'\n' => (self.in_string, self.broken) = (false, true),
                _ => {}
            }
            return;
        }
        match byte {
            b'"' if self.depth > 0 => self.in_string = !self.broken,
            b'{' => self.depth = self.depth.saturating_add(1),
            b'[' if self.lists || self.depth > 0 => self.depth = self.depth.saturating_add(1),
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                self.ended |= self.depth == 0;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Follow, Shape, calls};
    use crate::reply::CallError;

    #[test]
    fn a_call_goes_by_several_names() {
        for text in [
            r#"{"name": "f", "arguments": {"a": 1}}"#,
            r#"{"tool_name": "f", "parameters": {"a": 1}}"#,
            r#"{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}"#,
            r#"{"function": "f", "parameters": {"a": 1}}"#,
        ] {
            let calls = calls(text, Shape::NameAndArguments).unwrap();
            assert_eq!(
                (calls[0].name.as_str(), &calls[0].arguments),
                ("f", &json!({"a": 1})),
                "{text}"
            );
        }
    }

    #[test]
    fn calls_stand_in_lists_or_one_after_the_other() {
        let texts = [
            r#"[{"name": "f", "id": 7}, {"name": "g", "id": "x"}]"#,
            "{\"name\": \"f\", \"id\": 7}\n{\"name\": \"g\", \"id\": \"x\"}\n",
            r#"{"name": "f", "id": 7}; {"name": "g", "id": "x"}"#,
        ];
        for text in texts {
            let calls = calls(text, Shape::NameAndArguments).unwrap();
            let ids: Vec<_> = calls.iter().map(|call| call.id.as_deref()).collect();
            assert_eq!(ids, [Some("7"), Some("x")], "{text}");
        }
    }

    #[test]
    fn what_is_no_call_says_why() {
        let error = |text| calls(text, Shape::NameAndArguments).unwrap_err();
        assert_eq!(error(r#"{"arguments": {}}"#), CallError::NoName);
        assert_eq!(
            error(r#"{"name": "f", "arguments": [1]}"#),
            CallError::NotAnObject
        );
        assert!(matches!(error(r#"{"name": "f""#), CallError::Json(_)));
        assert!(matches!(error("[1]"), CallError::Unexpected { .. }));
        assert_eq!(error(" "), CallError::NotACall);
    }

    #[test]
    fn a_value_ends_with_its_last_bracket() {
        let text = br#" f {"a": ["}\"]", {}]} "#;
        let mut follow = Follow::new(false);
        let end = text.iter().position(|byte| {
            follow.byte(*byte);
            follow.ended()
        });
        assert_eq!(end, Some(text.len() - 2));
    }
}
