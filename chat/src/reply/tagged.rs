//! Calls whose arguments are tags: `<function=f><parameter=a>1</parameter></function>`,
//! `f<arg_key>a</arg_key><arg_value>1</arg_value>`.

use serde_json::{Map, Value};

use super::{CallError, arguments};
use crate::{Tool, ToolCall};

/// The tags of a format.
#[derive(Debug)]
pub(super) struct Tagged {
    /// Before the name of the tool. Empty: the call is the name and its arguments, and there is one.
    pub(super) call: &'static str,
    /// Behind the name. Empty: the name ends where an argument begins.
    pub(super) name_end: &'static str,
    /// Behind the last argument.
    pub(super) call_end: &'static str,
    /// Before the name of an argument.
    pub(super) key: &'static str,
    /// Behind it. Where this is `>`, the name may be an attribute's value: `name="a"`.
    pub(super) key_end: &'static str,
    /// Before a value.
    pub(super) value: &'static str,
    /// Behind it.
    pub(super) value_end: &'static str,
    /// Whether values stand on lines of their own.
    pub(super) lines: bool,
}

/// Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5
pub(super) const QWEN3_CODER: Tagged = Tagged {
    call: "<function=",
    name_end: ">",
    call_end: "</function>",
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    lines: true,
};

/// Seed-OSS
pub(super) const SEED: Tagged = Tagged {
    lines: false,
    ..QWEN3_CODER
};

/// The same behind `<function=`, where the model left out the mark before it.
pub(super) const QWEN3_CODER_BARE: Tagged = Tagged {
    call: "",
    ..QWEN3_CODER
};

/// GLM 4.5 and later, Ling, Spark, Laguna
pub(super) const GLM: Tagged = Tagged {
    call: "",
    name_end: "",
    call_end: "",
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    lines: false,
};

/// Hunyuan 3
pub(super) const HUNYUAN: Tagged = Tagged {
    call: "",
    name_end: "<tool_sep:opensource>",
    call_end: "",
    key: "<arg_key:opensource>",
    key_end: "</arg_key:opensource>",
    value: "<arg_value:opensource>",
    value_end: "</arg_value:opensource>",
    lines: false,
};

/// MiniMax M2
pub(super) const MINIMAX: Tagged = Tagged {
    call: "<invoke name=",
    name_end: ">",
    call_end: "</invoke>",
    key: "<parameter name=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    lines: false,
};

/// DeepSeek V3.2 and V4: an attribute says which values are strings.
pub(super) const DSML: Tagged = Tagged {
    call: "<｜DSML｜invoke name=",
    name_end: ">",
    call_end: "</｜DSML｜invoke>",
    key: "<｜DSML｜parameter name=",
    key_end: ">",
    value: "",
    value_end: "</｜DSML｜parameter>",
    lines: false,
};

/// ATEM
pub(super) const ATEM: Tagged = Tagged {
    call: "<atem:invoke name=",
    name_end: ">",
    call_end: "</atem:invoke>",
    key: "<atem:parameter name=",
    key_end: ">",
    value: "",
    value_end: "</atem:parameter>",
    lines: false,
};

/// The calls in `text`.
pub(super) fn calls(text: &str, tags: &Tagged, tools: &[Tool]) -> Result<Vec<ToolCall>, CallError> {
    let mut calls = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if !calls.is_empty() && tags.call.is_empty() {
            return Err(CallError::unexpected("the end of the call", rest));
        }
        let (call, behind) = call(rest, tags, tools)?;
        calls.push(call);
        rest = behind.trim_start();
    }
    if calls.is_empty() {
        return Err(CallError::NotACall);
    }
    Ok(calls)
}

fn call<'a>(
    text: &'a str,
    tags: &Tagged,
    tools: &[Tool],
) -> Result<(ToolCall, &'a str), CallError> {
    let rest = expect(text, tags.call)?;
    let (name, mut rest) = if tags.name_end.is_empty() {
        rest.split_at(rest.find(tags.key).unwrap_or(rest.len()))
    } else {
        until(rest, tags.name_end)?
    };
    let name = arguments::tool_name(attribute(name))?;
    let mut object = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix(tags.key) {
            let (header, behind) = until(behind, tags.key_end)?;
            let behind = if tags.value.is_empty() {
                behind
            } else {
                expect(behind.trim_start(), tags.value)?
            };
            let (text, behind) = until(behind, tags.value_end)?;
            let key = attribute(header);
            let value = value(text, header, tags, arguments::schema(tools, &name, key));
            object.insert(key.to_owned(), value);
            rest = behind;
        } else {
            rest = if rest.is_empty() {
                rest
            } else {
                expect(
                    rest,
                    if tags.call_end.is_empty() {
                        tags.key
                    } else {
                        tags.call_end
                    },
                )?
            };
            let call = ToolCall {
                id: None,
                name,
                arguments: Value::Object(object),
            };
            return Ok((call, rest));
        }
    }
}

fn value(text: &str, header: &str, tags: &Tagged, schema: Option<&Value>) -> Value {
    let text = if tags.lines { own_lines(text) } else { text };
    if header.contains("string=\"true\"") {
        Value::String(text.to_owned())
    } else if header.contains("string=\"false\"") {
        serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
    } else {
        arguments::value(text, schema)
    }
}

/// Without the line ends that put it on lines of its own.
fn own_lines(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// `a` of `a`, and of `"a" more="b"`.
fn attribute(header: &str) -> &str {
    match header.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default(),
        None => header.trim(),
    }
}

fn expect<'a>(text: &'a str, mark: &str) -> Result<&'a str, CallError> {
    text.strip_prefix(mark)
        .ok_or_else(|| CallError::unexpected(mark, text))
}

fn until<'a>(text: &'a str, mark: &str) -> Result<(&'a str, &'a str), CallError> {
    text.split_once(mark)
        .ok_or_else(|| CallError::unexpected(mark, ""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{DSML, GLM, QWEN3_CODER, calls};
    use crate::Tool;
    use crate::reply::CallError;

    #[test]
    fn values_stand_on_lines_of_their_own_or_not() {
        let text = "\n<function=f>\n<parameter=a>\n one\ntwo \n</parameter>\n</function>\n";
        let read = calls(text, &QWEN3_CODER, &[]).unwrap();
        assert_eq!(read[0].arguments, json!({"a": " one\ntwo "}));
        let text = "f\n<arg_key>a</arg_key>\n<arg_value>one\n</arg_value>\n";
        let read = calls(text, &GLM, &[]).unwrap();
        assert_eq!(read[0].arguments, json!({"a": "one\n"}));
    }

    #[test]
    fn a_tool_says_which_arguments_are_no_strings() {
        let tool = Tool::new(
            "f",
            "",
            json!({"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}),
        );
        let text = "f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>s</arg_key><arg_value>1</arg_value>";
        let read = calls(text, &GLM, &[tool]).unwrap();
        assert_eq!(read[0].arguments, json!({"n": 1, "s": "1"}));
    }

    #[test]
    fn an_attribute_says_it_where_the_format_has_one() {
        let text = "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">[1]</｜DSML｜parameter>\n\
                    <｜DSML｜parameter name=\"b\" string=\"true\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
        let read = calls(text, &DSML, &[]).unwrap();
        assert_eq!(read[0].arguments, json!({"a": [1], "b": "[1]"}));
    }

    #[test]
    fn what_stands_between_the_tags_is_an_error() {
        let text = "<function=f> and <parameter=a>1</parameter></function>";
        let error = calls(text, &QWEN3_CODER, &[]).unwrap_err();
        assert!(matches!(error, CallError::Unexpected { .. }), "{error}");
        assert!(calls("f g", &GLM, &[]).is_err());
    }
}
