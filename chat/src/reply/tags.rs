//! Calls in which arguments have tags: `<function=f><parameter=a>1</parameter></function>` and
//! `f<arg_key>a</arg_key><arg_value>1</arg_value>`. MiniMax M3's nested tags are read here too.

use serde_json::{Map, Value};

use super::CallError;
use super::arguments::{self, Schema};
use super::reader::{Reader, each};
use crate::{Tool, ToolCall};

/// The tags that a format uses.
#[derive(Debug)]
pub(super) struct Tags {
    /// The texts before the tool's name, after the name, and after the last argument. If the first is empty, there is
    /// only one call. If the second is empty, the name ends where an argument begins.
    pub(super) call: [&'static str; 3],
    /// The texts before and after the name of an argument. If the second is `>`, the name may be the value of an
    /// attribute: `name="a"`.
    pub(super) key: [&'static str; 2],
    /// The texts before and after a value.
    pub(super) value: [&'static str; 2],
    /// Whether each value has lines of its own.
    pub(super) lines: bool,
}

/// `<invoke name="f"><parameter name="a">1</parameter></invoke>`, in which the tags' names have a prefix.
macro_rules! invoke {
    ($prefix:literal) => {
        Tags {
            call: [concat!("<", $prefix, "invoke name="), ">", concat!("</", $prefix, "invoke>")],
            key: [concat!("<", $prefix, "parameter name="), ">"],
            value: ["", concat!("</", $prefix, "parameter>")],
            lines: false,
        }
    };
}

pub(super) const MINIMAX_M2: Tags = invoke!("");
/// In this format, an attribute says which values are strings.
pub(super) const DEEPSEEK_V32: Tags = invoke!("｜DSML｜");
pub(super) const ATEM: Tags = invoke!("atem:");

pub(super) const QWEN3_CODER: Tags = Tags {
    call: ["<function=", ">", "</function>"],
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    lines: true,
};

/// [`QWEN3_CODER`] after `<function=`. It is for answers without the mark `<tool_call>`: there, `<function=` is the
/// opening mark.
pub(super) const QWEN3_CODER_BARE: Tags = Tags { call: ["", ">", "</function>"], ..QWEN3_CODER };

/// The tags that follow `<function name="`.
pub(super) const MINICPM5: Tags =
    Tags { call: ["", "\">", "</function>"], key: ["<param name=", ">"], value: ["", "</param>"], lines: false };

pub(super) const SEED_OSS: Tags = Tags { lines: false, ..QWEN3_CODER };

pub(super) const GLM: Tags =
    Tags { call: ["", "", ""], key: ["<arg_key>", "</arg_key>"], value: ["<arg_value>", "</arg_value>"], lines: false };

pub(super) const HUNYUAN: Tags = Tags {
    call: ["", "<tool_sep:opensource>", ""],
    key: ["<arg_key:opensource>", "</arg_key:opensource>"],
    value: ["<arg_value:opensource>", "</arg_value:opensource>"],
    lines: false,
};

/// Parses the calls in `text`.
pub(super) fn calls(text: &str, tags: &Tags, tools: &[Tool]) -> Result<Vec<ToolCall>, CallError> {
    each(text, "", |reader, calls| {
        if tags.call[0].is_empty() && !calls.is_empty() {
            return reader.end();
        }
        calls.push(call(reader, tags, tools)?);
        // Sometimes models write a closing tag twice.
        while tags.next_is_close(reader) {}
        Ok(())
    })
}

fn call(reader: &mut Reader<'_>, tags: &Tags, tools: &[Tool]) -> Result<ToolCall, CallError> {
    let [open, name_end, close] = tags.call;
    let ([key, key_end], [value, value_end]) = (tags.key, tags.value);
    reader.expect(open)?;
    let name = match name_end {
        "" => reader.take(reader.0.find(key).unwrap_or(reader.0.len())),
        _ => reader.until(name_end)?,
    };
    let name = arguments::tool_name(attribute(name))?;
    let schema = Schema::find(tools, &name);
    let mut object = Map::new();
    while reader.next_is(key) {
        let header = match reader.0.find(value).filter(|_| !value.is_empty()) {
            // The tag that closes the name is missing.
            Some(at) if !reader.0[..at].contains(key_end) => reader.take(at),
            _ => reader.until(key_end)?,
        };
        if !value.is_empty() {
            while reader.next_is(key_end) {}
            reader.expect(value)?;
        }
        let name = attribute(header);
        let text = if reader.0.starts_with(CDATA) {
            reader.until("]]></param>")?
        } else {
            let is_argument = |other: &str| {
                let is_known = schema.is_none_or(|schema| schema.property(other).is_some());
                is_known && other != name && !object.contains_key(other)
            };
            let text = reader.take(tags.value_end(reader.0, is_argument));
            while reader.next_is(value_end) {}
            text
        };
        let text = text.strip_prefix(CDATA).unwrap_or(text);
        let value = read_value(text, header, tags, schema.and_then(|schema| schema.property(name)));
        object.insert(name.to_owned(), value);
    }
    let is_next_call = !open.is_empty() && reader.0.starts_with(open);
    if !reader.0.is_empty() && !is_next_call {
        reader.expect(if close.is_empty() { key } else { close })?;
    }
    Ok(ToolCall::new(name, object.into()))
}

impl Tags {
    /// Skips a tag that closes a value or a call. Returns whether such a tag came next.
    fn next_is_close(&self, reader: &mut Reader<'_>) -> bool {
        [self.value[1], self.call[2]].iter().any(|close| !close.is_empty() && reader.next_is(close))
    }

    /// `text` begins with a value. Returns where this value ends. If a tag opens and closes inside a value, both tags
    /// belong to the value. If the closing tag is missing, the value ends before the next argument, or with the call.
    fn value_end(&self, text: &str, is_argument: impl Fn(&str) -> bool) -> usize {
        let ([key, key_end], close, [_, value_end]) = (self.key, self.call[2], self.value);
        // The tag that opens an argument. Its name is on one line and not too long.
        let opens = |text: &str| {
            let header = text.strip_prefix(key)?;
            let end = header.find(key_end).filter(|end| *end <= MAX_HEADER)?;
            let name = attribute(&header[..end]);
            (!name.is_empty() && !name.contains(['\n', '<']) && is_argument(name)).then_some(())
        };
        let (mut depth, mut next_argument) = (1, None);
        for (at, _) in text.match_indices(['<', ']']) {
            let rest = &text[at..];
            if rest.starts_with(value_end) {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            } else if opens(rest).is_some() {
                depth += 1;
                next_argument = next_argument.or(Some(at));
            } else if !close.is_empty() && rest.starts_with(close) {
                let behind = rest[close.len()..].trim_start();
                let is_end = behind.is_empty() || behind.starts_with(close) || self.begins_call(behind);
                if is_end {
                    return next_argument.unwrap_or(at);
                }
            }
        }
        next_argument.unwrap_or(text.len())
    }

    fn begins_call(&self, text: &str) -> bool {
        let open = self.call[0];
        !open.is_empty() && text.starts_with(open)
    }
}

/// Maximum bytes of the tag that opens an argument.
const MAX_HEADER: usize = 256;

fn read_value(text: &str, header: &str, tags: &Tags, schema: Option<Schema<'_>>) -> Value {
    let mut text = text;
    if tags.lines {
        text = text.strip_prefix('\n').unwrap_or(text);
        text = text.strip_suffix('\n').unwrap_or(text);
    }
    if header.contains("string=\"true\"") {
        text.into()
    } else if header.contains("string=\"false\"") {
        text.parse().unwrap_or_else(|_| text.into())
    } else {
        arguments::value(text, schema)
    }
}

/// The `a` in `a`, and the `a` in `"a" more="b"`.
fn attribute(header: &str) -> &str {
    match header.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default(),
        None => header.trim(),
    }
}

/// The prefix that MiniCPM5 writes before a value that contains marks.
const CDATA: &str = "<![CDATA[";

/// The token that comes before each tag of MiniMax M3.
const TOKEN: &str = "]<]minimax[>[";
/// The text with which an opening tag begins.
pub(super) const OPEN: &str = "]<]minimax[>[<";
/// The text with which a call begins.
pub(super) const INVOKE: &str = "]<]minimax[>[<invoke";
/// The tag around the items of lists.
const ITEM: &str = "item";
/// Maximum nesting of tags. For values, it is the same in `serde_json`.
const DEPTH: u8 = 127;

/// The calls in `text`. Each is an `<invoke name="f">` with a tag for every argument and every nested value.
pub(super) fn nested_calls(text: &str, tools: &[Tool]) -> Result<Vec<ToolCall>, CallError> {
    each(text, "", |reader, calls| {
        let tag = open(reader)?;
        let name = tag.strip_prefix("invoke name=\"").and_then(|name| name.strip_suffix('"'));
        let name = name.ok_or_else(|| CallError::unexpected("invoke", tag))?;
        let name = arguments::tool_name(name)?;
        let value = inner(reader, Schema::find(tools, &name), Enclosing { schema: None, tag: "invoke" }, DEPTH)?;
        calls.push(ToolCall::new(name, arguments::object(value)?));
        close(reader, "invoke", "")
    })
}

/// The value that contains another value.
#[derive(Clone, Copy)]
struct Enclosing<'a> {
    schema: Option<Schema<'a>>,
    /// The tag of the inner value.
    tag: &'a str,
}

/// Parses what stands inside a tag: other tags, or text.
fn inner(
    reader: &mut Reader<'_>,
    schema: Option<Schema<'_>>,
    enclosing: Enclosing<'_>,
    depth: u8,
) -> Result<Value, CallError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(reader.unexpected("a value that is nested less deeply"));
    };
    let opened = |reader: &Reader<'_>| {
        let tag = reader.0.trim_start().strip_prefix(OPEN)?;
        let name = &tag[..tag.find('>').unwrap_or(tag.len())];
        (!name.starts_with('/')).then(|| name.to_owned())
    };
    if opened(reader).is_none() {
        let end = reader.0.find(TOKEN).ok_or_else(|| reader.unexpected(TOKEN))?;
        return Ok(arguments::value(reader.take(end), schema));
    }
    let mut entries = Vec::new();
    while let Some(next) = opened(reader) {
        let has = |schema: Option<Schema<'_>>| schema.is_some_and(|schema| schema.property(&next).is_some());
        // This property belongs to the enclosing value and not to the inner one. So a closing tag is missing.
        if next.starts_with("invoke name=") || (!has(schema) && has(enclosing.schema)) {
            break;
        }
        let tag = open(reader)?;
        let within = schema.and_then(|schema| schema.property(tag).or_else(|| schema.items().filter(|_| tag == ITEM)));
        entries.push((tag.to_owned(), inner(reader, within, Enclosing { schema, tag }, depth)?));
        close(reader, tag, enclosing.tag)?;
    }
    Ok(if entries.iter().all(|(tag, _)| tag == ITEM) {
        entries.into_iter().map(|(_, value)| value).collect()
    } else {
        Value::Object(entries.into_iter().collect())
    })
}

fn open<'a>(reader: &mut Reader<'a>) -> Result<&'a str, CallError> {
    reader.expect(OPEN)?;
    reader.until(">")
}

/// Reads a closing tag. It may be there several times. It may be missing if the text ends, if another tag opens, or if
/// the closing tag of the enclosing value follows.
fn close(reader: &mut Reader<'_>, tag: &str, enclosing: &str) -> Result<(), CallError> {
    let close = format!("{TOKEN}</{tag}>");
    if reader.next_is(&close) {
        while reader.next_is(&close) {}
        return Ok(());
    }
    let opens = reader.0.starts_with(OPEN) && !reader.0.starts_with(&format!("{OPEN}/"));
    match reader.0.is_empty() || opens || reader.0.starts_with(&format!("{TOKEN}</{enclosing}>")) {
        true => Ok(()),
        false => Err(reader.unexpected(&close)),
    }
}
