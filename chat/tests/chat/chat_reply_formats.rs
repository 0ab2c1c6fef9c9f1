//! The calls of each format, and texts that are no calls.

use autoplace_chat::{CallError, Reply, ReplyFormat, ReplyParser, Tool, ToolCall, ToolCallFormat};
use serde_json::{Value, json};

use test_support::table::{rows, under};

/// Parses a text in this format. The tool `f` has these parameters.
fn read(format: ToolCallFormat, text: &str, parameters: Value) -> Reply {
    let format = ReplyFormat::plain().with_tool_calls(format);
    let mut parser = ReplyParser::new(&format).with_tools(&[Tool::new("f", "", parameters)]);
    parser.push(text);
    parser.finish()
}

/// The calls in the text, or the error that says why there are none.
fn calls(format: ToolCallFormat, text: &str, parameters: Value) -> Result<Vec<ToolCall>, CallError> {
    let mut reply = read(format, text, parameters);
    match reply.malformed.pop() {
        Some(call) => Err(call.reason),
        None => Ok(reply.tool_calls),
    }
}

/// The lines below a heading in `chat_reply_formats.txt`. Each has a format, an answer in this format, and what the
/// answer means.
fn answers(heading: &str) -> impl Iterator<Item = (ToolCallFormat, String, &'static str)> {
    rows(under(include_str!("chat_reply_formats.txt"), heading)).map(|[format, text, meaning]| {
        let format = ToolCallFormat::all().find(|known| known.to_string() == format).expect(format);
        (format, text.replace("\\n", "\n").replace('~', "]<]minimax[>["), meaning)
    })
}

#[test]
fn arguments_are_read_as_each_format_writes_them() {
    let parameters = json!({"properties": {
        "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"items": {"type": "number"}}, "o": {"type": "object"},
    }});
    for (format, text, arguments) in answers("arguments") {
        let read = calls(format, &text, parameters.clone()).unwrap();
        let named: Vec<_> = read.iter().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
        assert_eq!(named, [("f", arguments.parse().unwrap())], "{text}");
    }
}

#[test]
fn bare_text_is_parsed_by_the_schema() {
    let file = under(include_str!("chat_reply_formats.txt"), "bare text and schemas");
    for [schema, text, value] in rows(file) {
        let [schema, value] = [schema, value].map(|json| json.parse::<Value>().expect(json));
        let call = format!("<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>");
        let parameters = json!({
            "$defs": {"Point": {"type": "object"}, "Name": {"$ref": "#/$defs/Text"}, "Text": {"type": "string"}},
            "properties": {"a": schema, "itself": {"$ref": "#/properties/itself"}},
        });
        let read = calls(ToolCallFormat::Glm, &call, parameters).unwrap();
        assert_eq!(read[0].arguments, json!({"a": value}), "{text}: {schema}");
    }
}

#[test]
fn several_calls_in_json_are_a_list_or_come_one_after_the_other() {
    for text in [
        r#"[{"name": "f", "id": 7}, {"name": "g", "id": "x"}]"#,
        "{\"name\": \"f\", \"id\": 7}\n{\"name\": \"g\", \"id\": \"x\"}\n",
        r#"{"name": "f", "id": 7}; {"name": "g", "id": "x"}"#,
    ] {
        let text = format!("<tool_call>{text}</tool_call>");
        let read = calls(ToolCallFormat::Hermes, &text, json!({})).unwrap();
        let ids: Vec<_> = read.iter().map(|call| call.id.as_deref()).collect();
        assert_eq!(ids, [Some("7"), Some("x")], "{text}");
    }
}

#[test]
fn text_that_is_not_a_call_has_a_reason() {
    use ToolCallFormat::*;
    for (format, text, error) in answers("what is no call, and why") {
        assert_eq!(format!("{:?}", calls(format, &text, json!({})).unwrap_err()), error, "{text}");
    }
    for long in [" ".repeat(1000) + "f", "a".repeat(1000)] {
        let text = format!("[TOOL_CALLS]{long}[ARGS]{{}}");
        assert_eq!(calls(Mistral, &text, json!({})), Err(CallError::NotACall), "{text}");
    }
    let no_json = calls(Hermes, r#"<tool_call>{"name": "f"</tool_call>"#, json!({}));
    assert!(matches!(no_json, Err(CallError::Json(_))));
    for (format, text) in [
        (Lfm2, format!("<|tool_call_start|>f(a={})<|tool_call_end|>", "[".repeat(100_000))),
        (
            MiniMaxM3,
            format!("~<tool_call>~<invoke name=\"f\">{}~</tool_call>", "~<a>".repeat(10_000))
                .replace('~', "]<]minimax[>["),
        ),
    ] {
        assert!(calls(format, &text, json!({})).is_err());
    }
}

#[test]
fn a_header_says_what_its_message_is() {
    use ToolCallFormat::*;
    for (format, header, kind) in [
        (Harmony, "<|channel|>analysis<|message|>", "reasoning"),
        (Harmony, "<|start|>assistant<|channel|>final<|message|>", "content"),
        (Harmony, "<|channel|>commentary to=assistant<|channel|>analysis<|message|>", "reasoning"),
        (Harmony, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "f"),
        (Harmony, " to=functions.f<|channel|>commentary json<|message|>", "f"),
        (Harmony, "<|channel|>analysis to=python code<|message|>", "python"),
        (Atem, " to=self<|message|>", "reasoning"),
        (Atem, "<|start|>assistant to=f<|message|>", "content"),
        (FunctionaryV32, "all\n", "content"),
        (FunctionaryV32, ">>>f\n", "f"),
    ] {
        let text = "{\"a\": 1}";
        let reply = read(format, &format!("{header}{text}"), json!({}));
        match kind {
            "content" => assert_eq!(reply.content, text, "{header}"),
            "reasoning" => assert_eq!(reply.reasoning.as_deref(), Some(text), "{header}"),
            tool => assert_eq!(reply.tool_calls[0].name, tool, "{header}"),
        }
    }
    // In a channel, or after a mark for programs, a text that is not JSON is a program.
    for (format, text) in [
        (Harmony, "<|channel|>analysis to=python code<|message|>import math\nprint(1)<|call|>"),
        (Llama3, "<|python_tag|>import math\nprint(1)"),
    ] {
        let call = &read(format, text, json!({})).tool_calls[0];
        assert_eq!((&*call.name, &call.arguments), ("python", &json!({"code": "import math\nprint(1)"})));
    }
    for (format, text) in [(Harmony, "Once upon a time<|message|>"), (FunctionaryV32, ">>> print(1)\n")] {
        assert_eq!(read(format, text, json!({})).content, text);
    }
}

#[test]
fn the_ids_of_kimi_name_an_existing_tool() {
    let tools = [Tool::new("get_weather", "", json!({})), Tool::new("weather", "", json!({}))];
    for id in [
        "functions.get_weather:0",
        "functions.get_weather",
        "get_weather:0",
        "function.get_weather:3",
        "functions:get_weather:0",
        "functions.functions.get_weather:0",
        "functions.get_weather.0",
        "functions.get_weather0",
        "functions_get_weather:0",
        "functions.Get_Weather:0",
    ] {
        let text = format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>");
        let format = ReplyFormat::plain().with_tool_calls(ToolCallFormat::KimiK2);
        let mut parser = ReplyParser::new(&format).with_tools(&tools);
        parser.push(&text).for_each(drop);
        let reply = parser.finish();
        assert_eq!(reply.tool_calls.len(), 1, "{id}: {reply:?}");
        assert_eq!(reply.tool_calls[0].name, "get_weather", "{id}");
    }
}

#[test]
fn a_forced_call_that_is_cut_short_is_still_a_call() {
    let tools = [Tool::new("get_weather", "", json!({})), Tool::new("note", "", json!({}))];
    let whole = r#"{"name": "get_weather", "arguments": {"city": "Bonn"}}"#;
    for end in 0..=whole.len() {
        for length in [1, whole.len()] {
            let mut parser = ReplyParser::new(&ReplyFormat::forced_call()).with_tools(&tools);
            let text = &whole.as_bytes()[..end];
            text.chunks(length).for_each(|piece| parser.push(std::str::from_utf8(piece).unwrap()).for_each(drop));
            let reply = parser.finish();
            assert_eq!((reply.content.as_str(), reply.malformed.len()), ("", 0), "{}", &whole[..end]);
            let begins = r#"{"name": "g"#.len();
            assert_eq!(reply.tool_calls.len(), usize::from(end >= begins), "{}", &whole[..end]);
            let arguments = whole.find(r#"{"city"#).unwrap();
            if let Some(call) = reply.tool_calls.first() {
                assert_eq!(call.name, "get_weather");
                let expected = match end {
                    // Only the end of the call is missing here.
                    _ if end >= whole.len() - 1 => json!({"city": "Bonn"}),
                    _ => json!(whole.get(arguments..end.max(arguments)).unwrap()),
                };
                assert_eq!(call.arguments, expected, "{}", &whole[..end]);
            }
        }
    }
}
