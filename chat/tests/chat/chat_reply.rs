//! Answers are divided into reasoning, content and tool calls.

use autoplace_chat::{CallError, ReasoningMarks, Reply, ReplyFormat, ReplyParser, ReplyPart, Tool, ToolCallFormat};
use serde_json::json;

use test_support::replies::{SAMPLES, arguments, tools};
use test_support::table::rows;

/// Parses an answer in one piece.
fn read(format: &ReplyFormat, prompt: &str, text: &str) -> Reply {
    let mut parser = ReplyParser::new(format).after_prompt(prompt).with_tools(&tools(Tool::new));
    parser.push(text);
    parser.finish()
}

fn thinking() -> ReplyFormat {
    ReplyFormat::plain().with_reasoning(ReasoningMarks::THINK)
}

fn hermes() -> ReplyFormat {
    thinking().with_tool_calls(ToolCallFormat::Hermes)
}

fn llama() -> ReplyFormat {
    ReplyFormat::plain().with_tool_calls(ToolCallFormat::Llama3)
}

fn parts(parser: &mut ReplyParser, pieces: &[&str]) -> Vec<ReplyPart> {
    pieces.iter().flat_map(|piece| parser.push(piece).collect::<Vec<_>>()).collect()
}

fn content(text: &str) -> ReplyPart {
    ReplyPart::Content(text.to_owned())
}

fn reasoning(text: &str) -> ReplyPart {
    ReplyPart::Reasoning(text.to_owned())
}

#[test]
fn sample_answers_of_every_format_are_parsed_as_written() {
    let mut formats: Vec<_> = ToolCallFormat::all().map(|format| format.to_string()).collect();
    for sample in SAMPLES.iter() {
        let format = ReplyFormat::of_template(&sample.template);
        let name = sample.name;
        formats.retain(|format| format != name);
        assert_eq!(format.tool_calls().map(|format| format.to_string()).as_deref(), Some(name));
        let reply = read(&format, &sample.prompt, sample.text);
        assert_eq!(reply.malformed, [], "{name}");
        assert_eq!((reply.reasoning.as_deref(), &*reply.content), (sample.reasoning, sample.content), "{name}");
        assert_eq!(reply.raw, sample.text, "{name}");
        let calls = reply.tool_calls.iter().map(|call| (&*call.name, call.id.as_deref(), call.arguments.clone()));
        let [first, second] = arguments();
        let expected = [("get_weather", sample.ids[0], first), ("note", sample.ids[1], second)];
        assert_eq!(calls.collect::<Vec<_>>(), expected, "{name}");
        let message = reply.clone().into_message();
        assert_eq!(message.role.as_str(), "assistant");
        let said = (message.content, message.reasoning_content, message.tool_calls);
        assert_eq!(said, (reply.content, reply.reasoning, reply.tool_calls));
    }
    assert_eq!(formats, [""; 0], "without a sample");
}

#[test]
fn plain_text_stays_unchanged() {
    let template = "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}{% endfor %}";
    assert_eq!(ReplyFormat::of_template(template), ReplyFormat::plain());
    let mut parser = ReplyParser::new(&ReplyFormat::plain());
    let pieces = [" <think>", "\n\n", "</think> "];
    assert_eq!(parts(&mut parser, &pieces), pieces.map(content));
    let reply = parser.finish();
    assert_eq!((reply.content, reply.raw), (pieces.concat(), pieces.concat()));
}

#[test]
fn parts_are_returned_once_they_are_certain_and_the_rest_at_the_end() {
    let mut parser = ReplyParser::new(&hermes());
    assert_eq!(parts(&mut parser, &["<thi"]), []);
    assert_eq!(parts(&mut parser, &["nk>\n", "Well"]), [reasoning("Well")]);
    assert_eq!(parts(&mut parser, &[" ", "then"]), [reasoning(" then")]);
    assert_eq!(parts(&mut parser, &["\n</", "think>\n\nA <", "b> "]), [content("A"), content(" <b>")]);
    assert_eq!(parts(&mut parser, &["\n<tool_call>{\"name\": \"f\"}"]), []);
    assert!(matches!(&parts(&mut parser, &["</tool_call>"])[..], [ReplyPart::ToolCall(call)] if call.name == "f"));
    let mut parser = ReplyParser::new(&hermes());
    assert_eq!(parts(&mut parser, &["A", "\n<tool"]), [content("A")]);
    assert_eq!(parser.end().collect::<Vec<_>>(), [content("\n<tool")]);
}

/// Asserts that an answer has this reasoning and this content.
#[track_caller]
fn assert_means(format: &ReplyFormat, prompt: &str, text: &str, reasoning: &str, content: &str) -> Reply {
    let reply = read(format, prompt, text);
    let reasoning = Some(reasoning).filter(|text| !text.is_empty());
    let read = (reply.reasoning.as_deref(), reply.content.as_str());
    assert_eq!(read, (reasoning, content), "{text:?} after {prompt:?}");
    reply
}

#[test]
fn the_prompt_and_the_marks_separate_reasoning_calls_and_content() {
    for [name, prompt, text, reasoning, content, calls] in rows(include_str!("chat_reply.txt")) {
        let marks = match name {
            "closing" => ReasoningMarks::new("", "</think>"),
            "gemma-4" => ReasoningMarks::new("<|channel>thought", "<channel|>"),
            _ => ReasoningMarks::THINK,
        };
        let mut format = ReplyFormat::plain().with_reasoning(marks);
        if let Some(family) = ToolCallFormat::all().find(|known| known.to_string() == name) {
            format = format.with_tool_calls(family);
        }
        let [prompt, text, reasoning, content] =
            [prompt, text, reasoning, content].map(|field| field.replace("\\n", "\n"));
        let reply = assert_means(&format, &prompt, &text, &reasoning, &content);
        let count = format!("{} {}", reply.tool_calls.len(), reply.malformed.len());
        assert_eq!(count, if calls.is_empty() { "0 0" } else { calls }, "{text:?}");
    }
}

#[test]
fn whitespace_next_to_marks_is_removed_and_other_whitespace_stays() {
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let text = format!("\n <think> a  b </think> \n\n c\n\n d \n\n{call}\n");
    assert_means(&hermes(), "", &text, "a  b", "c\n\n d");
    assert_means(&hermes(), "", " \na \n", "", " \na \n");
    let long = "<|start|>".to_owned() + &"once upon a time ".repeat(100);
    let harmony = ReplyFormat::plain().with_tool_calls(ToolCallFormat::Harmony);
    assert_means(&harmony, "", &long, "", &long);
}

#[test]
fn a_model_may_leave_out_the_last_mark() {
    let text = "<tool_call>{\"name\": \"f\"}\n<tool_call>{\"name\": \"g\"}";
    let reply = read(&hermes(), "", text);
    assert_eq!((reply.tool_calls.len(), &*reply.content), (2, ""));
    let coder = ReplyFormat::plain().with_tool_calls(ToolCallFormat::Qwen3Coder);
    for (opening, closing) in [("", "\n</tool_call>"), ("", ""), ("<tool_call>\n", "")] {
        let text = format!("{opening}<function=f>\n<parameter=a>\n1\n</parameter>\n</function>{closing}");
        let reply = read(&coder, "", &text);
        assert_eq!((reply.tool_calls.len(), &*reply.content), (1, ""), "{text}");
    }
}

#[test]
fn a_malformed_call_comes_back_as_content_and_the_next_call_is_read() {
    let text = "A <tool_call>{\"name\": f}</tool_call> B";
    let reply = read(&hermes(), "", text);
    assert_eq!(reply.content, text);
    assert_eq!(reply.malformed[0].text, "<tool_call>{\"name\": f}</tool_call>");
    assert!(matches!(reply.malformed[0].reason, CallError::Json(_)));
    let text = "<tool_call>{\"name\": \"f}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>";
    let reply = read(&hermes(), "", text);
    assert_eq!((reply.malformed.len(), &*reply.tool_calls[0].name), (1, "g"));
}

#[test]
fn every_call_that_is_cut_off_is_returned_as_content() {
    for sample in SAMPLES.iter() {
        let format = ReplyFormat::of_template(&sample.template);
        let place = sample.text.find("Köln").unwrap_or_default();
        let cut = &sample.text[..place + "Köln".len()];
        let reply = read(&format, &sample.prompt, cut);
        assert!(reply.tool_calls.is_empty() && reply.content.ends_with("Köln"), "{}", sample.name);
        let reasons: Vec<_> = reply.malformed.iter().map(|call| &call.reason).collect();
        assert_eq!((reasons, &*reply.raw), (vec![&CallError::CutOff], cut), "{}", sample.name);
    }
}

#[test]
fn json_is_a_call_only_if_it_names_a_tool_and_is_the_whole_answer() {
    let call = r#"{"name": "get_weather", "parameters": {"city": "Bonn"}}"#;
    assert_eq!(read(&llama(), "", call).tool_calls[0].arguments, json!({"city": "Bonn"}));
    for text in [
        r#"{"name": "Ada", "parameters": {}}"#.to_owned(),
        r#"{"city": "Bonn"}"#.to_owned(),
        format!("{call} is how to ask."),
        format!("Ask {call}"),
    ] {
        let reply = read(&llama(), "", &text);
        assert_eq!((&reply.content, reply.tool_calls.len(), reply.malformed.len()), (&text, 0, 0));
    }
    let cut = read(&llama(), "", &call[..call.len() - 4]);
    assert_eq!(cut.malformed[0].reason, CallError::CutOff);
    for (format, text) in [(llama(), call), (hermes(), "<tool_call>{\"name\": \"f\"}</tool_call>")] {
        let mut without_tools = ReplyParser::new(&format).with_tools(&[]);
        without_tools.push(text);
        assert_eq!(without_tools.finish().content, text);
    }
}

#[test]
fn without_tools_calls_of_every_format_are_content_and_reasoning_stays_reasoning() {
    for sample in SAMPLES.iter() {
        let format = ReplyFormat::of_template(&sample.template);
        for size in [1, 7, sample.text.len()] {
            let mut parser = ReplyParser::new(&format).after_prompt(&sample.prompt).with_tools(&[]);
            let mut pieces: Vec<String> = Vec::new();
            for c in sample.text.chars() {
                match pieces.last_mut() {
                    Some(last) if last.len() < size => last.push(c),
                    _ => pieces.push(c.to_string()),
                }
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let said = parts(&mut parser, &pieces);
            let is_call = |part: &ReplyPart| matches!(part, ReplyPart::ToolCall(_));
            let reply = parser.finish();
            assert!(!said.iter().any(is_call) && reply.tool_calls.is_empty(), "{}: {said:?}", sample.name);
            assert_eq!(reply.reasoning.as_deref(), sample.reasoning, "{}", sample.name);
            for words in ["get_weather", "K\u{f6}ln", "note", "wet"] {
                assert!(reply.content.contains(words), "{}: {words} in {:?}", sample.name, reply.content);
            }
        }
    }
}
