use serde_json::{Value, json};

use crate::chat::{ReplyFormat, ReplyParser, Tool, ToolCallFormat};
use crate::decode::constraint::Constraint;
use crate::decode::constraint::tests::{allows, allows_with_control};
use crate::decode::error::Error;

/// For each format: its name, and an answer as models write it, with a call of `walk` that has the arguments `days` and
/// `note`. Formats with channels begin in a header.
const ANSWERS: &str = include_str!("answers.txt");

fn walk(more: &Value) -> Tool {
    let mut parameters = json!({"type": "object", "properties": {
        "days": {"type": "integer", "minimum": 3, "maximum": 7},
        "note": {"type": "string", "maxLength": 5},
    }, "required": ["days"]});
    parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Tool::new("walk", "", parameters)
}

fn answers() -> impl Iterator<Item = (ToolCallFormat, String)> {
    let named = |name: &str| ToolCallFormat::all().find(|format| format.to_string() == name);
    let lines = ANSWERS.lines().filter(|line| !line.starts_with('#'));
    lines.map(move |line| {
        let (name, answer) = line.split_once(": ").expect("a name and an answer");
        (named(name).expect(name), answer.replace("\\n", "\n"))
    })
}

#[test]
fn every_format_has_an_answer_and_is_held_to_the_tool_in_it() {
    let tool = walk(&json!({}));
    for format in ToolCallFormat::all() {
        assert!(answers().any(|(other, _)| other == format), "{format} has no answer");
    }
    let mut wrong = Vec::new();
    for (format, answer) in answers() {
        let held = Constraint::text_or_calls(format, &[(&tool, true)]);
        let others = [answer.replace('4', "9"), answer.replace("walk", "fly"), answer.replace("ab", "abcdef")];
        let mut texts = vec![(answer.clone(), true)];
        texts.extend(others.map(|other| (other, false)));
        // An answer without a call may be any text.
        if format.written_channels().is_none() {
            texts.extend([("Nothing <tool, [TOOL]; 4.".to_owned(), true), (String::new(), true)]);
        }
        let unlike = texts.into_iter().filter(|(text, is_allowed)| allows(&held, text) != *is_allowed);
        wrong.extend(unlike.map(|(text, is_allowed)| format!("{format}: {is_allowed} of {text}")));
        let format_of = ReplyFormat::plain().with_tool_calls(format);
        let mut parser = ReplyParser::new(&format_of).with_tools(std::slice::from_ref(&tool));
        parser.push(&answer);
        let reply = parser.finish();
        let read: Vec<Value> = reply.tool_calls.iter().map(|call| call.arguments.clone()).collect();
        if read != [json!({"days": 4, "note": "ab"})] {
            wrong.push(format!("{format}: {answer} is read as {reply:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn control_tokens_are_marks_and_part_of_no_value() {
    let tool = walk(&json!({}));
    for (format, mark) in [
        (ToolCallFormat::Mistral, "[TOOL_CALLS]"),
        (ToolCallFormat::Gemma4, "<|\"|>"),
        (ToolCallFormat::Glm, "</arg_value>"),
        (ToolCallFormat::KimiK2, "<|tool_call_end|>"),
    ] {
        let held = Constraint::text_or_calls(format, &[(&tool, true)]);
        let (_, answer) = answers().find(|(other, _)| *other == format).unwrap();
        let as_token = answer.replace(mark, &format!("\u{1}{mark}"));
        assert_ne!(answer, as_token);
        assert!(allows_with_control(&held, &as_token, &[mark]), "{format}");
        let in_a_value = answer.replace("ab", &format!("\u{1}{mark}"));
        assert!(!allows_with_control(&held, &in_a_value, &[mark]), "{format}");
    }
}

#[test]
fn bare_texts_are_held_to_their_schemas() {
    let qwen = |schema: Value, value: &str| {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"],
            "$defs": {"short": {"type": "string", "maxLength": 2}, "number": {"type": "integer"}}});
        let tool = Tool::new("f", "", parameters);
        let held = Constraint::text_or_calls(ToolCallFormat::Qwen3Coder, &[(&tool, true)]);
        let answer =
            format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>");
        allows(&held, &answer)
    };
    let text = |more: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    for (schema, value, is_allowed) in [
        (text(json!({"enum": ["red", "a/b"]})), "a/b", true),
        (text(json!({"enum": ["red", "a/b"]})), "blue", false),
        (text(json!({"pattern": "^[a-z]{2}$"})), "ab", true),
        (text(json!({"pattern": "^[a-z]{2}$"})), "abc", false),
        (text(json!({"pattern": "b"})), "abc", true),
        (text(json!({"pattern": "b"})), "ac", false),
        (text(json!({"format": "date"})), "2024-02-29", true),
        (text(json!({"format": "date"})), "2023-02-29", false),
        (text(json!({"pattern": r"^a/b\.c$"})), "a/b.c", true),
        (text(json!({"pattern": r"^a/b\.c$"})), "a/bxc", false),
        (text(json!({"pattern": "^(?:on|off)$"})), "off", true),
        (text(json!({"pattern": "^(?:on|off)$"})), "offer", false),
        (text(json!({"format": "ipv4"})), "10.0.0.1", true),
        (text(json!({"format": "ipv4"})), "10.0.0.256", false),
        (text(json!({"format": "uuid"})), "123e4567-e89b-12d3-a456-426614174000", true),
        (text(json!({"format": "uuid"})), "123e4567", false),
        (text(json!({"minLength": 2})), "a", false),
        (text(json!({})), "two\nlines <b>", true),
        (text(json!({})), "\n  indented\n", true),
        (json!({}), "whatever", true),
        (json!({"type": ["string", "null"], "maxLength": 4}), "null", true),
        (json!({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}), "abc", false),
        (json!({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^x+$"}]}), "xx", true),
        (json!({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^x+$"}]}), "ab", false),
        (json!({"$ref": "#/$defs/short"}), "ab", true),
        (json!({"$ref": "#/$defs/short"}), "abc", false),
        (json!({"type": "array", "items": {"$ref": "#/$defs/number"}}), "[1, 2]", true),
        (json!({"type": "array", "items": {"$ref": "#/$defs/number"}}), "[\"1\"]", false),
        (json!({"type": "boolean"}), "true", true),
        (json!({"type": "boolean"}), "yes", false),
        (json!({"type": "array", "items": {"type": "integer"}}), "[1, 2]", true),
        (json!({"type": "array", "items": {"type": "integer"}}), "[\"1\"]", false),
    ] {
        assert_eq!(qwen(schema.clone(), value), is_allowed, "{schema} {value}");
    }
}

#[test]
fn an_argument_that_a_format_cannot_enforce_is_refused_with_its_place() {
    let refused =
        |tool: &Tool| match Constraint::text_or_calls(ToolCallFormat::Glm, &[(tool, true)]).check().unwrap_err() {
            Error::Constraint { place, reason, .. } => (place, reason),
            error => panic!("{error}"),
        };
    let (place, reason) = refused(&walk(&json!({"anyOf": [{"required": ["note"]}, {"required": ["days"]}]})));
    assert_eq!(place, "tools[0].function.parameters");
    assert!(reason.contains("anyOf") && reason.contains("required"), "{reason}");
    let anchored = json!({"type": "string", "pattern": "a^b|c"});
    let (place, _) = refused(&Tool::new("f", "", json!({"type": "object", "properties": {"a": anchored}})));
    assert_eq!(place, "tools[0].function.parameters.properties.a");
    let one_of = json!({"oneOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "x"}]});
    let (place, reason) = refused(&Tool::new("f", "", json!({"type": "object", "properties": {"a": one_of}})));
    assert_eq!(place, "tools[0].function.parameters.properties.a");
    assert!(reason.contains("oneOf"), "{reason}");
    // A format in JSON can enforce these alternatives. Qwen3-Coder's format can too, because it also accepts JSON.
    let either = walk(&json!({"anyOf": [{"required": ["note"]}, {"required": ["days"]}]}));
    for format in [ToolCallFormat::Hermes, ToolCallFormat::Qwen3Coder] {
        let held = Constraint::text_or_calls(format, &[(&either, true)]);
        assert!(held.check().is_ok(), "{format}");
        assert!(allows(&held, "<tool_call>{\"name\": \"walk\", \"arguments\": {\"days\": 4}}</tool_call>"), "{format}");
        assert!(!allows(&held, "<tool_call>{\"name\": \"walk\", \"arguments\": {}}</tool_call>"), "{format}");
    }
}

#[test]
fn arguments_come_in_order_and_optional_ones_may_be_missing() {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"},
        "c": {"type": "integer"}}, "required": ["b"]});
    let tool = Tool::new("f", "", parameters);
    let held = Constraint::text_or_calls(ToolCallFormat::Lfm2, &[(&tool, true)]);
    for (arguments, is_allowed) in [
        ("b=1", true),
        ("a=1, b=2", true),
        ("a=1,b=2,c=3", true),
        ("b=1, c=2", true),
        ("a=1", false),
        ("", false),
        ("b=1, a=2", false),
        ("b=1,", false),
    ] {
        let answer = format!("<|tool_call_start|>[f({arguments})]<|tool_call_end|>");
        assert_eq!(allows(&held, &answer), is_allowed, "{arguments}");
    }
}
