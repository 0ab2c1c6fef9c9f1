//! How each format writes calls, and what is none.

use autoplace_chat::{CallError, Reply, ReplyFormat, ReplyParser, Tool, ToolCall, ToolCallFormat};
use serde_json::{Value, json};

/// What the text is in this format. The tool `f` has these parameters.
fn read(format: ToolCallFormat, text: &str, parameters: Value) -> Reply {
    let format = ReplyFormat::plain().with_tool_calls(format);
    let mut parser = ReplyParser::new(&format).with_tools(&[Tool::new("f", "", parameters)]);
    parser.push(text);
    parser.finish()
}

/// The calls that the text is, or why there is none.
fn calls(format: ToolCallFormat, text: &str, parameters: Value) -> Result<Vec<ToolCall>, CallError> {
    let mut reply = read(format, text, parameters);
    match reply.malformed.pop() {
        Some(call) => Err(call.reason),
        None => Ok(reply.tool_calls),
    }
}

#[test]
fn arguments_are_read_as_each_format_writes_them() {
    use ToolCallFormat::*;
    let parameters = json!({"properties": {
        "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"items": {"type": "number"}}, "o": {"type": "object"},
    }});
    let nested = |text: &str| text.replace('~', "]<]minimax[>[");
    for (format, text, arguments) in [
        // Values on lines of their own, or not.
        (
            Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=a>\n one\ntwo \n</parameter>\n</function>\n</tool_call>",
            json!({"a": " one\ntwo "}),
        ),
        (Glm, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>one\n</arg_value>\n</tool_call>", json!({"a": "one\n"})),
        // The schema or an attribute says what is no string.
        (
            Glm,
            "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>s</arg_key><arg_value>1</arg_value></tool_call>",
            json!({"n": 1, "s": "1"}),
        ),
        (
            DeepSeekV32,
            "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">[1]</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"b\" string=\"true\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            json!({"a": [1], "b": "[1]"}),
        ),
        // Tags hold text, tags and lists.
        (
            MiniMaxM3,
            &nested(
                "~<tool_call>\n~<invoke name=\"f\">~<s>one <b>~</s>~<n>2~</n>~<l>~<item>1~</item>~<item>2~</item>~</l>\
                 ~<o>~<k>v~</k>~</o>~</invoke>\n~</tool_call>",
            ),
            json!({"s": "one <b>", "n": 2, "l": [1, 2], "o": {"k": "v"}}),
        ),
        (MiniMaxM3, &nested("~<tool_call>~<invoke name=\"f\">~</invoke>~</tool_call>"), json!({})),
        // Python's words and quotes, of which one within a string is part of it.
        (
            Lfm2,
            r#"<|tool_call_start|>[f(a='it\'s', b="x, y", c=True, d=None, e=-1.5, g=[1, 'z'], h={"k": (2,)})]<|tool_call_end|>"#,
            json!({"a": "it's", "b": "x, y", "c": true, "d": null, "e": -1.5, "g": [1, "z"], "h": {"k": [2]}}),
        ),
        (Lfm2, "<|tool_call_start|>f(a='it's here', b='x')<|tool_call_end|>", json!({"a": "it's here", "b": "x"})),
        (Lfm2, "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|tool_call_end|>", json!({"a": 1})),
        // Gemma's strings are between tokens.
        (
            Gemma4,
            r#"<|tool_call>call:f{a:<|"|>x, "y"}<|"|>,l:[1,<|"|>z<|"|>],n:2,o:{k:true},z:null}<tool_call|>"#,
            json!({"a": "x, \"y\"}", "l": [1, "z"], "n": 2, "o": {"k": true}, "z": null}),
        ),
        // A method named `call` is the tool.
        (Llama3, r#"<|python_tag|>f.call(query="a (b)")"#, json!({"query": "a (b)"})),
        // The last bracket of a value ends it.
        (Mistral, r#"[TOOL_CALLS] f {"a": ["}\"]", {}]}"#, json!({"a": ["}\"]", {}]})),
    ] {
        let read = calls(format, text, parameters.clone()).unwrap();
        let named: Vec<_> = read.iter().map(|call| (call.name.as_str(), &call.arguments)).collect();
        assert_eq!(named, [("f", &arguments)], "{text}");
    }
}

#[test]
fn bare_text_is_read_as_the_schema_wants_it() {
    for (schema, text, value) in [
        (json!({"type": "integer"}), "12", json!(12)),
        (json!({"type": "number"}), "1.5", json!(1.5)),
        (json!({"type": "boolean"}), "True", json!(true)),
        (json!({"type": "array"}), "[1, 2]", json!([1, 2])),
        (json!({"type": "array"}), "['a', True]", json!(["a", true])),
        (json!({"type": "object"}), "{\"a\": 1}", json!({"a": 1})),
        (json!({"type": "string"}), "12", json!("12")),
        (json!({"type": ["string", "null"]}), "12", json!("12")),
        (json!({"type": ["string", "null"]}), "null", json!(null)),
        (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "null", json!(null)),
        (json!({"enum": ["12", "13"]}), "12", json!("12")),
        (json!({"description": "anything"}), "12", json!("12")),
        // It is not what the schema wants, or there is none.
        (json!({"type": "integer"}), "about 12", json!("about 12")),
        (json!(null), "12", json!("12")),
    ] {
        let call = format!("<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>");
        let parameters = json!({"properties": {"a": schema}});
        let read = calls(ToolCallFormat::Glm, &call, parameters).unwrap();
        assert_eq!(read[0].arguments, json!({"a": value}), "{text}: {schema}");
    }
}

#[test]
fn a_call_in_json_goes_by_several_names() {
    let hermes = |text: &str| {
        let text = format!("<tool_call>{text}</tool_call>");
        calls(ToolCallFormat::Hermes, &text, json!({}))
    };
    for text in [
        r#"{"name": "f", "arguments": {"a": 1}}"#,
        r#"{"tool_name": "f", "parameters": {"a": 1}}"#,
        r#"{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}"#,
        r#"{"function": "f", "parameters": {"a": 1}}"#,
    ] {
        let read = hermes(text).unwrap();
        assert_eq!(read[0].name, "f", "{text}");
        assert_eq!(read[0].arguments, json!({"a": 1}), "{text}");
    }
    for text in [
        r#"[{"name": "f", "id": 7}, {"name": "g", "id": "x"}]"#,
        "{\"name\": \"f\", \"id\": 7}\n{\"name\": \"g\", \"id\": \"x\"}\n",
        r#"{"name": "f", "id": 7}; {"name": "g", "id": "x"}"#,
    ] {
        let read = hermes(text).unwrap();
        let ids: Vec<_> = read.iter().map(|call| call.id.as_deref()).collect();
        assert_eq!(ids, [Some("7"), Some("x")], "{text}");
    }
    for arguments in ["null", "\"\"", "\"{}\""] {
        let read = hermes(&format!("{{\"name\": \"f\", \"arguments\": {arguments}}}"));
        assert_eq!(read.unwrap()[0].arguments, json!({}), "{arguments}");
    }
}

#[test]
fn what_is_no_call_says_why() {
    use ToolCallFormat::*;
    let unexpected =
        |expected: &str, found: &str| CallError::Unexpected { expected: expected.to_owned(), found: found.to_owned() };
    let nested = |text: &str| {
        let text = format!("~<tool_call>{text}~</tool_call>");
        text.replace('~', "]<]minimax[>[")
    };
    let glm = |text: &str| format!("<tool_call>{text}</tool_call>");
    let lfm2 = |text: &str| format!("<|tool_call_start|>{text}<|tool_call_end|>");
    let gemma = |text: &str| format!("<|tool_call>{text}<tool_call|>");
    let (json, spaces, letters) = (glm, " ".repeat(1000), "a".repeat(1000));
    for (format, text, error) in [
        (Hermes, json(r#"{"arguments": {}}"#), CallError::NoName),
        (Hermes, json(r#"{"name": "f", "arguments": [1]}"#), CallError::NotAnObject),
        (Hermes, json(r#"{"name": "f", "arguments": "a"}"#), CallError::NotAnObject),
        (Hermes, json("[1]"), unexpected("an object", "1")),
        (Hermes, json(" "), CallError::NotACall),
        (Glm, glm(" tags are"), CallError::NotACall),
        (Glm, glm("f<arg_key>a</arg_key><arg_value>1</arg_value> g"), unexpected("<arg_key>", "g")),
        (
            Qwen3Coder,
            json("<function=f> and <parameter=a>1</parameter></function>"),
            unexpected("</function>", "and <parameter=a>1</para"),
        ),
        (Qwen3Coder, json("<function=f><parameter=a>1</function>"), unexpected("</parameter>", "1</function>")),
        (
            MiniMaxM3,
            nested("~<invoke name=\"f\">~<a>1~</b>~</invoke>"),
            unexpected("]<]minimax[>[</a>", "]<]minimax[>[</b>]<]mini"),
        ),
        (MiniMaxM3, nested("~<invoke name=\"f\">"), unexpected("]<]minimax[>[", "")),
        (MiniMaxM3, nested("~<call>"), CallError::NotACall),
        (MiniMaxM3, nested("f"), CallError::NotACall),
        (Lfm2, lfm2("f(1)"), unexpected("=", "1)")),
        (Lfm2, lfm2("f(a=b)"), unexpected("a value", "b)")),
        (Lfm2, lfm2("f(a=1"), unexpected(")", "")),
        (Lfm2, lfm2("f(a='x)"), unexpected("'", "")),
        (Lfm2, lfm2("f(a=1 b=2)"), unexpected(")", "b=2)")),
        (Lfm2, lfm2("[f(a=1)"), unexpected("]", "")),
        (Lfm2, lfm2("f g()"), unexpected("the name of a tool", "f g")),
        (Gemma4, gemma("f{}"), CallError::NotACall),
        (Gemma4, gemma("call:f{a:x}"), unexpected("a value", "x}")),
        (Gemma4, gemma("call:f{a:1"), unexpected("}", "")),
        (Gemma4, gemma("call:f{a:1}}"), unexpected("the end of the call", "}")),
        (Gemma4, gemma("call:{}"), CallError::NoName),
        (Mistral, format!("[TOOL_CALLS]{spaces}f[ARGS]{{}}"), CallError::NotACall),
        (Mistral, format!("[TOOL_CALLS]{letters}[ARGS]{{}}"), CallError::NotACall),
    ] {
        assert_eq!(calls(format, &text, json!({})), Err(error), "{text}");
    }
    let no_json = calls(Hermes, &json(r#"{"name": "f""#), json!({}));
    assert!(matches!(no_json, Err(CallError::Json(_))));
    for (format, text) in [
        (Lfm2, lfm2(&format!("f(a={})", "[".repeat(100_000)))),
        (MiniMaxM3, nested(&format!("~<invoke name=\"f\">{}", "~<a>".repeat(10_000)))),
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
        (Harmony, "<|channel|>commentary<|message|>", "content"),
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
    // A channel can run a program.
    let program = read(Harmony, "<|channel|>analysis to=python code<|message|>print(1)<|call|>", json!({}));
    assert_eq!(program.tool_calls[0].arguments, json!({"code": "print(1)"}));
    for (format, text) in [(Harmony, "Once upon a time<|message|>"), (FunctionaryV32, ">>> print(1)\n")] {
        assert_eq!(read(format, text, json!({})).content, text);
    }
}
