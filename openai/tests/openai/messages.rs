//! Anthropic's Messages API over HTTP: requests as Anthropic's clients send them, and the messages, events and errors
//! in return.

use std::io::{BufRead, BufReader};

use autoplace::chat::ChatTemplate;
use autoplace_openai::ApiError;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};

const DOCUMENT: &str = include_str!("../../../docs/messages.md");
const PATH: &str = "/v1/messages";

/// A template that shows roles, thoughts, calls and tools, and that describes a call format.
const TEMPLATE: &str = "{% if tools %}{{ tools }}{# <tool_call> {\"name\" #}\n{% endif %}\
    {% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
    {{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{# </think> #}{% endif %}";

fn server(template: &str) -> Server {
    Server::start(2048, ChatTemplate::new(template, <_>::default()).unwrap())
}

fn asked(more: &Value) -> Value {
    let mut body = json!({"model": MODEL, "max_tokens": 12, "temperature": 0,
        "messages": [{"role": "user", "content": "In the beginning"}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn post_to(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let request = ureq::post(server.url(path)).config().http_status_as_error(false).build();
    let mut response = request.send_json(body).unwrap();
    (response.status().as_u16(), response.body_mut().read_json().unwrap())
}

fn post(server: &Server, more: &Value) -> (u16, Value) {
    post_to(server, PATH, &asked(more))
}

#[track_caller]
fn message(server: &Server, more: &Value) -> Value {
    let (status, message) = post(server, more);
    assert_eq!(status, 200, "{message}");
    message
}

/// The names of a stream's events, and their data.
fn streamed(server: &Server, more: &Value) -> Vec<(String, Value)> {
    let mut body = asked(more);
    body["stream"] = true.into();
    let response = ureq::post(server.url(PATH)).send_json(&body).unwrap();
    let lines = BufReader::new(response.into_body().into_reader()).lines().map(Result::unwrap);
    let mut name = String::new();
    let mut events = Vec::new();
    for line in lines {
        if let Some(of) = line.strip_prefix("event: ") {
            name = of.to_owned();
        }
        if let Some(data) = line.strip_prefix("data: ") {
            events.push((std::mem::take(&mut name), serde_json::from_str(data).expect("JSON, and no [DONE]")));
        }
    }
    events
}

/// Assembles a message from its events, as a client does.
fn together(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut arguments = String::new();
    for (name, event) in events {
        assert_eq!(event["type"], **name);
        match &**name {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let block = &mut message["content"][event["index"].as_u64().unwrap() as usize];
                let delta = &event["delta"];
                let mut append = |name: &str| {
                    let Value::String(text) = &mut block[name] else { panic!("{name}: {block}") };
                    text.push_str(delta[name].as_str().unwrap());
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append("text"),
                    "thinking_delta" => append("thinking"),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => arguments += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let block = &mut message["content"][event["index"].as_u64().unwrap() as usize];
                if block["type"] == "tool_use" {
                    block["input"] =
                        serde_json::from_str(&std::mem::take(&mut arguments)).unwrap_or_else(|_| json!({}));
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.last().unwrap().0, "message_stop");
    message
}

fn walk() -> Value {
    json!({"name": "walk", "description": "Walks.", "input_schema": {"type": "object",
        "properties": {"days": {"type": "integer", "minimum": 3, "maximum": 7}}, "required": ["days"]}})
}

#[test]
fn a_stream_of_events_says_what_the_whole_message_says() {
    let server = server(TEMPLATE);
    for more in [
        json!({}),
        json!({"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}),
        json!({"tools": [walk()], "tool_choice": {"type": "any"}, "max_tokens": 100}),
        json!({"tools": [walk()], "tool_choice": {"type": "tool", "name": "walk", "disable_parallel_tool_use": true}, "max_tokens": 4}),
        json!({"output_config": {"format": {"type": "json_schema", "schema": {"const": 3}}}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
    ] {
        let mut more = more;
        more["cache_prompt"] = false.into();
        let mut whole = message(&server, &more);
        let mut streamed = together(&streamed(&server, &more));
        // Messages and calls have new ids each time.
        for message in [&mut whole, &mut streamed] {
            assert!(message["id"].take().as_str().unwrap().starts_with("msg"));
            for block in
                message["content"].as_array_mut().unwrap().iter_mut().filter(|block| block["type"] == "tool_use")
            {
                assert!(!block["id"].take().as_str().unwrap().is_empty());
            }
        }
        assert_eq!(whole, streamed, "{more}");
        assert_eq!(
            (&whole["type"], &whole["role"], &whole["model"]),
            (&json!("message"), &json!("assistant"), &json!(MODEL))
        );
    }
    let called = message(&server, &json!({"tools": [walk()], "tool_choice": {"type": "any"}, "max_tokens": 100}));
    assert_eq!(called["stop_reason"], "tool_use");
    assert!((3..=7).contains(&called["content"][0]["input"]["days"].as_i64().unwrap()), "{called}");
    let formed =
        message(&server, &json!({"output_config": {"format": {"type": "json_schema", "schema": {"const": 3}}}}));
    assert_eq!(formed["content"], json!([{"type": "text", "text": "3"}]));
    assert_eq!(formed["stop_reason"], "end_turn");
}

#[test]
fn thoughts_are_blocks_that_are_counted_and_come_back_to_the_model() {
    let server = server(TEMPLATE);
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let thought = message(&server, &thinking);
    let block = &thought["content"][0];
    assert_eq!((&block["type"], &thought["stop_reason"]), (&json!("thinking"), &json!("max_tokens")), "{thought}");
    assert_eq!(thought["usage"]["output_tokens_details"]["thinking_tokens"], 12);
    let without = message(&server, &json!({}));
    assert_eq!(without["content"][0]["type"], "text", "nothing is thought unasked: {without}");
    assert_eq!(without["usage"]["output_tokens_details"]["thinking_tokens"], 0);

    let hidden = message(&server, &json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
    let hidden = &hidden["content"][0];
    assert_eq!(hidden["thinking"], "");
    let count = |block: &Value| {
        let messages = json!([{"role": "user", "content": "Hm"}, {"role": "assistant", "content": [block,
            {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "So."}]}, {"role": "user", "content": "?"}]);
        post_to(&server, "/v1/messages/count_tokens", &asked(&json!({"messages": messages}))).1["input_tokens"]
            .as_u64()
            .unwrap()
    };
    // The signature contains the thought.
    assert_eq!(count(hidden), count(block));
    assert!(count(block) > count(&json!({"type": "thinking", "thinking": "", "signature": ""})));
}

#[test]
fn a_stop_sequence_is_named_and_a_begun_answer_is_continued() {
    let server = server(TEMPLATE);
    let plain = message(&server, &json!({}));
    let text = plain["content"][0]["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(1).unwrap();
    let stopped = message(&server, &json!({"stop_sequences": ["never said", word]}));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    let (begun, _) = text.split_at(text.find(word).unwrap());
    let messages =
        json!([{"role": "user", "content": "In the beginning"}, {"role": "assistant", "content": begun.trim_end()}]);
    let continued = message(&server, &json!({"messages": messages}));
    assert!(continued["content"][0]["text"].as_str().unwrap().trim_start().starts_with(word), "{plain} {continued}");
}

#[test]
fn calls_results_and_documents_are_shown_to_the_model_as_it_knows_them() {
    let server = server(&format!(
        "{{% if messages | length > 1 %}}{{{{ raise_exception({}) }}}}{{% endif %}}x",
        "messages | map(attribute='role') | join(',') ~ ' ' ~ messages | map(attribute='content') | join('/')"
    ));
    let shown = |messages: Value| {
        let (status, answer) = post(
            &server,
            &json!({"messages": messages, "system": [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]}),
        );
        assert_eq!(status, 400);
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "walk", "input": {"days": 3}});
    let said = shown(json!([
        {"role": "user", "content": "A"},
        {"role": "user", "content": [{"type": "document", "title": "B", "source": {"type": "text", "media_type": "text/plain", "data": "C"}},
            {"type": "search_result", "title": "D", "source": "e", "content": [{"type": "text", "text": "F"}]}]},
        {"role": "assistant", "content": [{"type": "text", "text": "G"}, call("1"), call("2")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "H"},
            {"type": "tool_result", "tool_use_id": "2", "is_error": true, "content": [{"type": "text", "text": "I"}]},
            {"type": "text", "text": "J"}]},
    ]));
    assert!(said.contains("system,user,assistant,tool,tool,user S\nT/A\nB\nC\nD\nF/G/H/Error: I/J"), "{said}");
    let said = shown(json!([{"role": "user", "content": "A"}, {"role": "assistant", "content": [call("1")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]));
    assert!(said.contains("system,user,assistant,tool S\nT/A//"), "{said}");
}

#[test]
fn a_line_that_changes_with_each_request_costs_none_of_the_cache() {
    let long = "Follow the rules of the house, and say so where you cannot. ".repeat(8);
    let agent = "You are an agent. ".to_owned() + &long;
    let changing: [fn(usize) -> Value; 3] = [
        |number| json!({"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a51{number};")}),
        |number| json!({"type": "text", "text": format!("Current time: 2026-11-28T22:14:0{number}Z")}),
        |number| json!({"type": "text", "text": format!("x-request-id: {number}f14e45f-ceea-467f-a1ab-3ff2d3a1c7aa")}),
    ];
    for line in changing {
        let server = server(TEMPLATE);
        let asked = |number| {
            let system = json!([line(number), {"type": "text", "text": agent}]);
            let usage = message(&server, &json!({"system": system, "max_tokens": 1}))["usage"].take();
            (usage["cache_read_input_tokens"].as_u64().unwrap(), usage["input_tokens"].as_u64().unwrap())
        };
        let (cached, computed) = asked(1);
        assert_eq!(cached, 0);
        let (cached, rest) = asked(2);
        assert!(cached > computed / 2 && rest < computed / 2, "{cached} of {computed} were cached: {}", line(2));
    }
}

#[test]
fn errors_have_anthropics_form_and_name_the_place() {
    let server = server(TEMPLATE);
    let image = json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}});
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let searching = json!({"type": "web_search_20250305", "name": "web_search"});
    let called = json!({"type": "tool_use", "id": "1", "name": "walk", "input": 3});
    let answered = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": [called]}]);
    let schema = json!({"type": "json_schema", "schema": {"type": "object"}});
    let mut unique = walk();
    unique["strict"] = true.into();
    unique["input_schema"]["properties"]["days"] = json!({"type": "array", "uniqueItems": true});
    for (more, status, kind, words) in [
        (json!({"model": "claude"}), 404, "not_found_error", "claude"),
        (json!({"messages": []}), 400, "invalid_request_error", "messages"),
        (
            user(json!([{"type": "text", "text": "a"}, image])),
            400,
            "invalid_request_error",
            "messages[0].content[1].source: the model takes no images",
        ),
        (user(json!([{"type": "tool_result", "content": "a"}])), 400, "invalid_request_error", "tool_use_id"),
        (user(json!(3)), 400, "invalid_request_error", "messages[0].content"),
        (user(json!("word ".repeat(5000))), 400, "invalid_request_error", "prompt is too long"),
        (user(json!("a".repeat(100_000))), 400, "invalid_request_error", "prompt is too long"),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), 400, "invalid_request_error", "messages[0].role"),
        (json!({"max_tokens": "many"}), 400, "invalid_request_error", "max_tokens"),
        (json!({"stop_sequences": [1]}), 400, "invalid_request_error", "stop_sequences"),
        (json!({"temperature": -1}), 400, "invalid_request_error", "temperature"),
        (json!({"tools": [unique]}), 400, "invalid_request_error", "tools[0].input_schema.properties.days"),
        (json!({"tools": [searching, unique]}), 400, "invalid_request_error", "tools[1].input_schema.properties.days"),
        (
            json!({"tools": [searching], "tool_choice": {"type": "tool", "name": "web_search"}}),
            400,
            "invalid_request_error",
            "tools[0]: tools of type `web_search_20250305`",
        ),
        (json!({"tools": [searching], "tool_choice": {"type": "any"}}), 400, "invalid_request_error", "tool_choice"),
        (json!({"tool_choice": {"type": "tool", "name": "walk"}}), 400, "invalid_request_error", "tool_choice.name"),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"properties": {"p": {"not": {}}}}}}}),
            400,
            "invalid_request_error",
            "output_config.format.schema.properties.p",
        ),
        (json!({"thinking": {"type": "loud"}}), 400, "invalid_request_error", "thinking.type"),
        (
            json!({"thinking": {"type": "enabled", "display": "loud"}}),
            400,
            "invalid_request_error",
            "thinking.display is `loud`",
        ),
        (user(json!([{"type": "video"}])), 400, "invalid_request_error", "blocks of type `video`"),
        (
            user(json!([{"type": "document", "source": {"type": "base64", "data": "YQ=="}}])),
            400,
            "invalid_request_error",
            "documents of type `base64`",
        ),
        (
            json!({"messages": answered}),
            400,
            "invalid_request_error",
            "messages[1].content[0].input: expected an object",
        ),
        (
            json!({"tools": [walk()], "tool_choice": {"type": "tool"}}),
            400,
            "invalid_request_error",
            "`tool_choice.name` is missing",
        ),
        (
            json!({"tools": [walk()], "tool_choice": {"type": "some"}}),
            400,
            "invalid_request_error",
            "tool_choice.type is `some`",
        ),
        (
            json!({"output_config": {"format": {"type": "json_object"}}}),
            400,
            "invalid_request_error",
            "output_config.format: use `json_schema`",
        ),
        (
            json!({"output_config": {"format": schema}, "output_format": schema}),
            400,
            "invalid_request_error",
            "`output_format` is given in addition to `output_config.format`",
        ),
    ] {
        let (answered, answer) = post(&server, &more);
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(
            (answered, &answer["type"], &answer["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{answer}"
        );
        assert!(said.contains(words), "{said}: {words}");
    }
    // Errors that the server itself reports have the same form.
    let mut response = ureq::get(server.url(PATH)).config().http_status_as_error(false).build().call().unwrap();
    let answer: Value = response.body_mut().read_json().unwrap();
    assert_eq!((response.status().as_u16(), &answer["type"]), (405, &json!("error")), "{answer}");
    // A header of the response names a tool that was left out.
    let response = ureq::post(server.url(PATH)).send_json(asked(&json!({"tools": [searching]}))).unwrap();
    let left_out = response.headers()["x-autoplace-left-out"].to_str().unwrap();
    assert!(left_out.starts_with("tools[0]: tools of type `web_search_20250305`"), "{left_out}");
}

/// By these names clients decide whether they ask again.
#[test]
fn each_status_has_the_name_that_anthropic_gives_it() {
    for (ours, theirs, kind) in [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (409, 409, "invalid_request_error"),
        (413, 413, "request_too_large"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (503, 529, "overloaded_error"),
        (504, 504, "timeout_error"),
    ] {
        let error = ApiError::new(ours, "because");
        assert_eq!(error.anthropic_status(), theirs);
        assert_eq!(error.to_anthropic_json()["error"]["type"], kind, "{ours}");
    }
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let server = server(TEMPLATE);
    for more in [json!({}), json!({"system": "Be brief.", "tools": [walk()], "anthropic-version": 3})] {
        let (status, counted) = post_to(&server, "/v1/messages/count_tokens", &asked(&more));
        assert_eq!(status, 200, "{counted}");
        let usage = message(&server, &more)["usage"].take();
        let used = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(counted, json!({"input_tokens": used}));
    }
    let (status, answer) = post_to(&server, "/v1/messages/count_tokens", &asked(&json!({"model": "other"})));
    assert_eq!((status, &answer["error"]["type"]), (404, &json!("not_found_error")));
}

#[test]
fn any_version_of_the_api_is_taken() {
    let server = server(TEMPLATE);
    for version in ["2023-06-01", "2026-10-21", "next"] {
        let request = ureq::post(server.url("/v1/messages/count_tokens")).header("anthropic-version", version);
        assert_eq!(request.send_json(asked(&json!({}))).unwrap().status(), 200, "{version}");
    }
}

#[test]
fn each_field_of_the_table_is_done_or_ignored_or_refused_by_its_name() {
    let server = server(TEMPLATE);
    let (_, table) = DOCUMENT.split_once("| field | |\n|---|---|\n").unwrap();
    let mut seen = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for name in cells[1].split(", ").map(|name| name.trim_matches('`')) {
            seen += 1;
            // There is no field that accepts such a list.
            let (status, answer) = post(&server, &json!({"max_tokens": 1, name: [{"a": 3}]}));
            let said = answer["error"]["message"].as_str().unwrap_or_default();
            match cells[2].split(':').next().unwrap() {
                "done" | "refused" => assert!(status == 400 && said.contains(name), "{name}: {answer}"),
                "ignored" => assert_eq!(status, 200, "{name}: {answer}"),
                other => panic!("{name} is {other}"),
            }
        }
    }
    assert!(seen > 25, "{seen}");
}
