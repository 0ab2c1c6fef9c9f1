//! Calls whose arguments are tags within tags, each behind a token: MiniMax M3's.

use serde_json::{Map, Value};

use super::{CallError, arguments};
use crate::{Tool, ToolCall};

/// The token before every tag.
const TOKEN: &str = "]<]minimax[>[";
/// Tags of the elements of a list.
const ITEM: &str = "item";
/// Tags within each other, as deep as `serde_json` reads values.
const DEPTH: u8 = 127;

/// The calls in `text`: each `<invoke name="f">`, with a tag for each argument.
pub(super) fn calls(text: &str, tools: &[Tool]) -> Result<Vec<ToolCall>, CallError> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (tag, behind) = open(rest)?;
        let name = tag
            .strip_prefix("invoke name=\"")
            .and_then(|name| name.strip_suffix('"'))
            .ok_or_else(|| CallError::unexpected("invoke", tag))?;
        let name = arguments::tool_name(name)?;
        let schema = tools
            .iter()
            .find(|tool| tool.name == name)
            .map(|tool| &tool.parameters);
        let (value, behind) = inner(behind, schema, DEPTH)?;
        let arguments = match value {
            Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
            value => arguments::object(value)?,
        };
        calls.push(ToolCall {
            id: None,
            name,
            arguments,
        });
        rest = close(behind, "invoke")?.trim_start();
    }
    if calls.is_empty() {
        return Err(CallError::NotACall);
    }
    Ok(calls)
}

/// Whether the text ends as a call does.
pub(super) fn complete(text: &str) -> bool {
    text.trim_end().ends_with("]<]minimax[>[</invoke>")
}

/// What is within a tag: other tags, or text.
fn inner<'a>(
    text: &'a str,
    schema: Option<&Value>,
    depth: u8,
) -> Result<(Value, &'a str), CallError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(CallError::unexpected("a value less deep", text));
    };
    let mut rest = text.trim_start();
    if !opens(rest) {
        let end = text
            .find(TOKEN)
            .ok_or_else(|| CallError::unexpected(TOKEN, ""))?;
        let (text, behind) = text.split_at(end);
        return Ok((arguments::value(text, schema), behind));
    }
    let mut entries = Vec::new();
    while opens(rest) {
        let (tag, behind) = open(rest)?;
        let (value, behind) = inner(behind, within(schema, tag), depth)?;
        rest = close(behind, tag)?.trim_start();
        entries.push((tag.to_owned(), value));
    }
    let value = if entries.iter().all(|(tag, _)| tag == ITEM) {
        Value::Array(entries.into_iter().map(|(_, value)| value).collect())
    } else {
        Value::Object(entries.into_iter().collect())
    };
    Ok((value, rest))
}

/// The schema of what a tag holds.
fn within<'a>(schema: Option<&'a Value>, tag: &str) -> Option<&'a Value> {
    let schema = schema?;
    match schema
        .get("properties")
        .and_then(|properties| properties.get(tag))
    {
        Some(property) => Some(property),
        None if tag == ITEM => schema.get("items"),
        None => None,
    }
}

fn opens(text: &str) -> bool {
    text.strip_prefix(TOKEN)
        .is_some_and(|tag| tag.starts_with('<') && !tag.starts_with("</"))
}

fn open(text: &str) -> Result<(&str, &str), CallError> {
    text.strip_prefix(TOKEN)
        .and_then(|tag| tag.strip_prefix('<'))
        .and_then(|tag| tag.split_once('>'))
        .ok_or_else(|| CallError::unexpected("a tag", text))
}

fn close<'a>(text: &'a str, tag: &str) -> Result<&'a str, CallError> {
    text.strip_prefix(TOKEN)
        .and_then(|rest| rest.strip_prefix("</"))
        .and_then(|rest| rest.strip_prefix(tag))
        .and_then(|rest| rest.strip_prefix('>'))
        .ok_or_else(|| CallError::unexpected(&format!("</{tag}>"), text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{TOKEN, calls};
    use crate::Tool;

    fn written(text: &str) -> String {
        text.replace('~', TOKEN)
    }

    #[test]
    fn tags_hold_text_tags_and_lists() {
        let tool = Tool::new(
            "f",
            "",
            json!({"properties": {"n": {"type": "integer"}, "l": {"items": {"type": "number"}}, "o": {"type": "object"}}}),
        );
        let text = written(
            "\n~<invoke name=\"f\">~<s>one <b>~</s>~<n>2~</n>~<l>~<item>1~</item>~<item>2~</item>~</l>~<o>~<k>v~</k>~</o>~</invoke>\n",
        );
        let read = calls(&text, &[tool]).unwrap();
        assert_eq!(
            read[0].arguments,
            json!({"s": "one <b>", "n": 2, "l": [1, 2], "o": {"k": "v"}})
        );
    }

    #[test]
    fn a_call_needs_no_arguments() {
        let read = calls(&written("~<invoke name=\"f\">~</invoke>"), &[]).unwrap();
        assert_eq!(read[0].arguments, json!({}));
    }

    #[test]
    fn tags_that_do_not_match_are_an_error() {
        for text in [
            "~<invoke name=\"f\">~<a>1~</b>~</invoke>",
            "~<invoke name=\"f\">",
            "~<call>",
            "f",
        ] {
            assert!(calls(&written(text), &[]).is_err(), "{text}");
        }
        let deep = format!("~<invoke name=\"f\">{}", "~<a>".repeat(10_000));
        assert!(calls(&written(&deep), &[]).is_err());
    }
}
