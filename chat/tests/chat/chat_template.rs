//! Chat templates for applications: where they come from, what they refuse, and users' text in a prompt.

use autoplace_chat::{
    ChatTemplate, Conversation, Error, FAMILIES, LocalTime, Message, PromptPart as Part, Role, Tool, ToolCall,
    ToolCallFormat,
};
use autoplace_planner::gguf::Builder;
use proptest::prelude::*;
use serde_json::json;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, <_>::default()).unwrap()
}

fn user(content: &str) -> Conversation {
    Conversation::new(&[Message::user(content)])
}

fn prompt(template: &ChatTemplate, conversation: &Conversation) -> String {
    template.render(conversation).unwrap().into_string()
}

/// A header whose vocabulary has control tokens as its third and fourth token.
fn header() -> Builder {
    Builder::new("llama")
        .str("tokenizer.ggml.model", "gpt2")
        .array_str("tokenizer.ggml.tokens", ["a", "b", "<bos>", "<end>", "<think>"])
        .array_i32("tokenizer.ggml.token_type", &[1, 1, 3, 3, 4])
        .u32("tokenizer.ggml.bos_token_id", 2)
        .u32("tokenizer.ggml.eos_token_id", 3)
}

const CONTENTS: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";

#[test]
fn a_model_s_own_template_sees_its_special_tokens_by_name() {
    let header = header().str("tokenizer.chat_template", CONTENTS).header().unwrap();
    let template = ChatTemplate::from_header(&header).unwrap();
    assert_eq!(prompt(&template, &user("hi")), "<bos>hi<end>");
    // A template that replaces the model's own gets these tokens too. Only control tokens of the vocabulary are
    // protected.
    let other = ChatTemplate::from_source("{{ bos_token }}{{ messages[0].content }}", &header).unwrap();
    for template in [template, other] {
        let rendered = template.render(&user("<think>x<end>")).unwrap();
        let parts: Vec<Part<'_>> = rendered.parts().take(2).collect();
        assert_eq!(parts, [Part::Markup("<bos><think>x"), Part::Text("<end>")]);
    }
}

#[test]
fn a_model_without_a_template_is_an_error_that_says_what_to_do() {
    let error = ChatTemplate::from_header(&header().header().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NoTemplate { .. }));
    let said = error.to_string();
    assert!(said.contains("ChatTemplate::new") && said.contains("chatml"), "{said}");
}

#[test]
fn the_variant_for_tools_is_chosen_automatically_and_others_by_name() {
    let header = header()
        .str("tokenizer.chat_template", "plain")
        .str("tokenizer.chat_template.tool_use", "with {{ tools }}")
        .str("tokenizer.chat_template.rag", "with documents")
        .array_str("tokenizer.chat_templates", ["tool_use", "rag"])
        .header()
        .unwrap();
    let template = ChatTemplate::from_header(&header).unwrap();
    assert_eq!(template.variants().collect::<Vec<_>>(), ["default", "tool_use", "rag"]);
    let tool = Tool::new("now", "The time.", json!({"type": "object", "properties": {}}));
    assert_eq!(prompt(&template, &user("x")), "plain");
    assert!(prompt(&template, &user("x").tools(&[tool])).starts_with("with [{"));
    assert_eq!(prompt(&template.clone().variant("rag").unwrap(), &user("x")), "with documents");
    let error = template.variant("none").unwrap_err();
    assert!(matches!(error, Error::NoVariant { .. }), "{error}");
}

#[test]
fn tools_that_a_template_does_not_show_are_an_error_if_describing_is_off() {
    let names = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}";
    let after_system = format!("{{% if messages[0].role == 'system' %}}{names}{{% endif %}}");
    let refuses = "{{ raise_exception('no') }}";
    for (source, expected) in [
        ("{{ tools }}", true),
        (names, true),
        (&after_system, true),
        ("{{ messages }}", false),
        ("{% if tools %}You have tools.{% endif %}", false),
        // If a template refuses every trial, its source decides.
        (&format!("{refuses}{{{{ tools }}}}"), true),
        (refuses, false),
    ] {
        assert_eq!(template(source).supports_tools(), expected, "{source}");
    }
    let tool = Tool::new("now", "The time.", json!({}));
    for family in FAMILIES {
        let template = ChatTemplate::family(family).unwrap().describe_tools(false);
        let error = template.render(&user("x").tools(std::slice::from_ref(&tool))).unwrap_err();
        assert!(matches!(error, Error::ToolsNotShown { tools: 1 }), "{error}");
        let said = error.to_string();
        assert!(["chat_with", "--template", "Qwen 2.5"].iter().all(|way| said.contains(way)), "{said}");
        assert!(template.render(&user("x").tools(&[])).is_ok(), "{family}");
    }
}

#[test]
fn tools_that_a_template_does_not_show_are_described_in_the_system_s_message() {
    let template = ChatTemplate::family("chatml").unwrap();
    let tool = Tool::new("now", "The time.", json!({"type": "object", "properties": {}}));
    let call = ToolCall { id: None, name: "now".to_owned(), arguments: json!({"zone": "UTC"}) };
    let mut calling = Message::assistant("");
    calling.tool_calls = vec![call.clone()];
    let turns =
        [Message::system("Be brief."), Message::user("What time is it?"), calling, Message::tool(&call, "noon")];
    let conversation = Conversation::new(&turns).tools(std::slice::from_ref(&tool));
    let text = prompt(&template, &conversation);
    assert!(text.starts_with("<|im_start|>system\nBe brief.\n\n# Tools"), "{text}");
    assert!(
        text.contains(r#"{"name":"now","description":"The time.","parameters":{"type":"object","properties":{}}}"#),
        "{text}"
    );
    let call = "<|im_start|>assistant\n<tool_call>\n{\"name\":\"now\",\"arguments\":{\"zone\":\"UTC\"}}\n</tool_call><|im_end|>";
    assert!(text.contains(call), "{text}");
    assert!(text.contains("<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>"), "{text}");
    assert_eq!(template.reply_format(true).tool_calls(), Some(ToolCallFormat::Hermes));
    assert_eq!(template.reply_format(false).tool_calls(), None);
    // If a conversation has no system message, it gets one, even if it is in transformers' form.
    let message = json!({"role": "user", "content": "x"});
    for conversation in [user("x"), Conversation::from_json(vec![message])] {
        let text = prompt(&template, &conversation.tools(std::slice::from_ref(&tool)));
        assert!(text.starts_with("<|im_start|>system\n# Tools"), "{text}");
    }
}

#[test]
fn keys_of_messages_that_are_null_are_left_out_as_in_transformers() {
    let source = "{% for m in messages %}[{{ m.content }}]{% if m.tool_calls is defined %}calls{% endif %}{% endfor %}";
    let message = json!({"role": "assistant", "content": null, "tool_calls": null});
    assert_eq!(prompt(&template(source), &Conversation::from_json(vec![message])), "[]");
    // A null inside a value is kept.
    let message = json!({"role": "user", "content": "x", "own": {"a": null}});
    let rendered = prompt(&template("{{ messages[0] }}"), &Conversation::from_json(vec![message]));
    assert_eq!(rendered, "{'role': 'user', 'content': 'x', 'own': {'a': None}}");
}

#[test]
fn missing_parts_of_a_tool_are_added_if_the_template_fails_without_them() {
    let bare = json!({"type": "function", "function": {"name": "f"}});
    let strict = "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}{{ t.function.parameters.properties | tojson }}{% endfor %}";
    let shown = |source: &str| prompt(&template(source), &user("x").tools_json(vec![bare.clone()]));
    assert_eq!(shown(strict), "f: {}");
    assert_eq!(shown("{{ tools | tojson }}"), r#"[{"type": "function", "function": {"name": "f"}}]"#);
}

#[test]
fn initial_system_messages_are_merged_if_the_template_accepts_only_one() {
    let turns = |late: &[Message]| {
        let first = [Message::system("A"), Message::system("B"), Message::user("Q")];
        Conversation::new(&[&first[..], late].concat())
    };
    let refuses = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}[{{ m.content }}]{% endfor %}";
    let leaves_out =
        "[{{ messages[0].content }}]{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}";
    for source in [refuses, leaves_out] {
        assert_eq!(prompt(&template(source), &turns(&[])), "[A\n\nB][Q]");
    }
    let shows_all = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    assert_eq!(prompt(&template(shows_all), &turns(&[])), "[A][B][Q]");
    let late = template(refuses).render(&turns(&[Message::system("C")])).unwrap_err();
    assert!(matches!(late, Error::Refused { .. }), "{late}");
}

#[test]
fn arguments_are_text_for_a_template_that_appends_them_to_a_text() {
    let mut calling = Message::assistant("");
    calling.tool_calls = vec![ToolCall { id: None, name: "f".to_owned(), arguments: json!({"a": 1}) }];
    let source =
        "{% for c in messages[0].tool_calls %}{{ '>>>' + c.function.name + c.function.arguments }}{% endfor %}";
    assert_eq!(prompt(&template(source), &Conversation::new(&[calling])), ">>>f{\"a\":1}");
}

#[test]
fn parts_keep_their_own_keys_for_a_template_that_names_one() {
    let parts = vec![json!({"type": "text", "text": "Hallo", "source_lang_code": "de"})];
    let conversation = user("Hallo").parts(0, parts);
    let source = "{{ messages[0].content[0].source_lang_code }}: {{ messages[0].content[0].text }}";
    assert_eq!(prompt(&template(source), &conversation), "de: Hallo");
    assert_eq!(prompt(&template("{{ messages[0].content }}"), &conversation), "Hallo");
}

#[test]
fn every_family_renders_a_conversation_and_an_unknown_one_is_an_error() {
    let turns =
        [Message::system("Be brief."), Message::user("Hello!"), Message::assistant("Hi."), Message::user("Bye.")];
    for family in FAMILIES {
        let template = ChatTemplate::family(family).unwrap();
        let text = prompt(&template, &Conversation::new(&turns));
        let mut from = 0;
        for turn in &turns {
            let found = text[from..].find(&turn.content);
            from += found.unwrap_or_else(|| panic!("{family}: no {:?} in {text}", turn.content));
        }
    }
    let error = ChatTemplate::family("nobody").unwrap_err();
    assert!(matches!(error, Error::UnknownFamily { .. }), "{error}");
}

#[test]
fn a_template_itself_refuses_an_unknown_role() {
    let template = ChatTemplate::family("mistral").unwrap();
    let oracle = Message::new(Role::new("oracle"), "I see.");
    let error = template.render(&Conversation::new(&[oracle])).unwrap_err();
    let Error::Refused { reason } = error else { panic!("{error}") };
    assert!(reason.contains("oracle"), "{reason}");
}

#[test]
fn messages_tools_and_calls_have_the_form_that_templates_expect() {
    let call = ToolCall { id: Some("c1".to_owned()), name: "f".to_owned(), arguments: json!({"b": 1, "a": 2}) };
    let mut calling = Message::assistant("");
    calling.tool_calls = vec![call.clone()];
    let result = Message::tool(&call, "done");
    let tool = Tool::new("f", "does", json!({"type": "object"}));
    let conversation = Conversation::new(&[calling, result]).tools(&[tool]);
    let template = template("{{ messages | tojson }}\n{{ tools | tojson }}");
    assert_eq!(
        prompt(&template, &conversation),
        "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"id\": \"c1\", \"function\": \
         {\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 2}}}]}, {\"role\": \"tool\", \"content\": \"done\", \"tool_call_id\": \"c1\", \
         \"name\": \"f\"}]\n[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"does\", \"parameters\": \
         {\"type\": \"object\"}}}]"
    );
}

#[test]
fn typed_messages_are_reshaped_for_the_template() {
    let [f, g] = ["f", "g"].map(|name| ToolCall { id: None, name: name.to_owned(), arguments: json!({}) });
    let results = [Message::tool(&g, "2"), Message::tool(&f, "{\"n\": 1}")];
    let mut calling = Message::assistant("On it.");
    (calling.reasoning_content, calling.tool_calls) = (Some("Hm.".to_owned()), vec![f, g]);
    let before = [Message::system("S"), Message::user("Q"), calling];
    let messages = [&before[..], &results, &[Message::assistant("A")]].concat();
    let mut lines = include_str!("chat_template_shapes.txt").lines().filter(|line| !line.starts_with("# "));
    let each = lines.next().unwrap();
    while let (Some(source), Some(expected)) = (lines.next(), lines.next()) {
        let shown = prompt(&template(&format!("{source}{each}")), &Conversation::new(&messages));
        assert_eq!(format!("=> {}", shown.replace('\n', "\\n")), expected, "{source}");
    }
    // There are templates that only iterate over parts.
    let source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}";
    assert_eq!(prompt(&template(source), &user("hello")), "hello");
}

#[test]
fn a_template_gets_the_time_of_the_conversation() {
    let template = template("{{ strftime_now('%d %b %Y, %H:%M') }}, {{ date_string }}, {{ datetime }}");
    let then = user("x").at(LocalTime::new(2024, 2, 29, 7, 5, 0).unwrap());
    assert_eq!(prompt(&template, &then), "29 Feb 2024, 07:05, 29 Feb 2024, Feb 29 2024");
    assert!(prompt(&template, &then.variable("datetime", "now")).ends_with("29 Feb 2024, now"));
    assert_eq!(LocalTime::new(2023, 2, 29, 0, 0, 0), None);
}

#[test]
fn the_last_message_can_be_continued() {
    let template = ChatTemplate::family("chatml").unwrap();
    let turns = [Message::user("Count."), Message::assistant("One, ")];
    let conversation = Conversation::new(&turns).continue_final_message();
    assert_eq!(prompt(&template, &conversation), "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, ");
    let silent = self::template("nothing of it").render(&conversation);
    assert!(matches!(silent, Err(Error::Continue { .. })));
}

#[test]
fn control_tokens_in_a_user_s_text_are_text() {
    let template = ChatTemplate::family("chatml").unwrap();
    let rendered = template.render(&user("a<|im_end|>b")).unwrap();
    let (begin, end) = ("<|im_start|>user\na", "b<|im_end|>\n<|im_start|>assistant\n");
    let expected = [Part::Markup(begin), Part::Text("<|im_end|>"), Part::Markup(end)];
    assert_eq!(rendered.parts().collect::<Vec<_>>(), expected);
    assert_eq!(template.render(&user("a < b")).unwrap().parts().count(), 1);
}

#[test]
fn operations_on_a_text_do_not_make_it_a_control_token() {
    let alone = ["upper", "title", "trim", "tojson", "e", "reverse", "string", "indent"];
    for filter in alone.into_iter().chain(["list | join", "replace('x', 'y')"]) {
        let source = format!("{{{{ messages[0].content | {filter} }}}}");
        let template = template(&source).with_control_tokens(["<s>", "[INST]"]);
        let rendered = template.render(&user("x [INST]<s>")).unwrap();
        for part in rendered.parts() {
            if let Part::Markup(text) = part {
                assert!(!text.contains("<s>") && !text.contains("[INST]"), "{filter}: {text}");
            }
        }
        assert!(!rendered.as_str().chars().any(|c| u32::from(c) >= 0x10_0000), "{filter}");
    }
}

#[test]
fn texts_do_not_combine_into_a_control_token() {
    let source = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}|> <|im_end|>";
    let template = template(source).with_control_tokens(["<|im_end|>", "<|"]);
    let part = |text: &str| json!({"type": "text", "text": text});
    let message = json!({"role": "user", "content": [part("a<|im_"), part("end|>b <"), part("|im_end")]});
    let rendered = template.render(&Conversation::from_json(vec![message])).unwrap();
    let (markup, token) = (Part::Markup, Part::Text("<|im_end|>"));
    let expected = [markup("a"), token, markup("b "), token, markup(" <|im_end|>")];
    assert_eq!(rendered.parts().collect::<Vec<_>>(), expected);
    // If a text does not complete a token, it is not marked.
    let template = self::template("{{ messages[0].content }}.").with_control_tokens(["<|im_end|>"]);
    let rendered = template.render(&user("a < b <|im_end <")).unwrap();
    assert_eq!(rendered.parts().collect::<Vec<_>>(), [Part::Markup("a < b <|im_end <.")]);
}

/// Texts that contain many control tokens, pieces of them, and stand-ins.
fn any_text() -> impl Strategy<Value = String> {
    let marks = prop::sample::select(&["<|im_end|>", "<|im_start|>", "<|im_", "<", "\u{100000}\u{100001}"]);
    let piece =
        prop_oneof![5 => marks.prop_map(str::to_owned), 1 => "\\PC{0,4}", 1 => any::<char>().prop_map(String::from)];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_is_in_the_prompt_unchanged_and_none_of_it_is_control(texts in prop::collection::vec(any_text(), 1..4)) {
        let template = ChatTemplate::family("chatml").unwrap();
        let turns: Vec<Message> = texts.iter().map(|text| Message::user(text.as_str())).collect();
        let rendered = template.render(&Conversation::new(&turns)).unwrap();
        let turns: String = texts.iter().map(|text| format!("<|im_start|>user\n{text}<|im_end|>\n")).collect();
        prop_assert_eq!(rendered.to_string(), turns + "<|im_start|>assistant\n");
        let whole: String = rendered.parts().map(|part| part.as_str()).collect();
        prop_assert_eq!(&whole, rendered.as_str());
        // Only control tokens that the template itself writes are markup.
        let count = |part: Part<'_>| match part {
            Part::Markup(text) => text.matches("<|im_end|>").count() + text.matches("<|im_start|>").count(),
            Part::Text(_) | Part::Media(..) => 0,
        };
        prop_assert_eq!(rendered.parts().map(count).sum::<usize>(), 2 * texts.len() + 1);
    }

    #[test]
    fn no_source_makes_the_reader_panic(source in "(\\{\\{|\\}\\}|\\{%|%\\}|\\{#|#\\}|-|[a-z ]{1,4}|if|for|in|set|end|[0-9.|()\\[\\]~'\"=é]){0,24}") {
        if let Ok(template) = ChatTemplate::new(&source, <_>::default()) {
            let _ = template.render(&user("x"));
        }
    }
}
