//! OpenAI's Responses API over HTTP: requests as OpenAI's clients send them, and the responses, events and errors in
//! return.

use std::io::{BufRead, BufReader};

use autoplace::chat::ChatTemplate;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};

const DOCUMENT: &str = include_str!("../../../docs/responses.md");
const PATH: &str = "/v1/responses";

/// A template that shows roles, thoughts, calls and tools, and that describes a call format.
const TEMPLATE: &str = "{% if tools %}{{ tools }}{# <tool_call> {\"name\" #}\n{% endif %}\
    {% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
    {{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\n\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{# </think> #}{% endif %}";

/// A template that raises an error. The error's message contains the conversation.
const SHOWS: &str = "{% if messages | length > 1 %}{{ raise_exception(messages | map(attribute='role') | join(',') ~ ' ' ~ \
    messages | map(attribute='content') | join('/') ~ ' ' ~ messages | map(attribute='reasoning_content', default='') | \
    join('/')) }}{% endif %}x";

fn server(template: &str) -> Server {
    Server::start(2048, ChatTemplate::new(template, <_>::default()).unwrap())
}

fn asked(more: &Value) -> Value {
    let mut body = json!({"model": MODEL, "max_output_tokens": 12, "temperature": 0, "input": "In the beginning"});
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
fn respond(server: &Server, more: &Value) -> Value {
    let (status, response) = post(server, more);
    assert_eq!(status, 200, "{response}");
    response
}

/// The data of a stream's events. Checks that each event's name is its type, and that the events' numbers count up.
fn streamed(server: &Server, more: &Value) -> Vec<Value> {
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
            let event: Value = serde_json::from_str(data).expect("JSON, and no [DONE]");
            assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(events.len())));
            events.push(event);
        }
    }
    events
}

fn walk() -> Value {
    json!({"type": "function", "name": "walk", "description": "Walks.", "parameters": {"type": "object",
        "properties": {"days": {"type": "integer", "minimum": 3, "maximum": 7}}, "required": ["days"]}})
}

/// The response without its ids and times, which differ each time.
fn comparable(mut response: Value) -> Value {
    for name in ["id", "created_at", "completed_at"] {
        response[name].take();
    }
    for item in response["output"].as_array_mut().unwrap() {
        assert!(!item["id"].take().as_str().unwrap().is_empty());
        if item["type"] == "function_call" {
            item["call_id"].take();
        }
    }
    response
}

#[test]
fn events_come_in_their_order_and_end_with_the_whole_response() {
    let server = server(TEMPLATE);
    let text = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ];
    let thought = [
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ];
    let call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ];
    let forced = json!({"tools": [walk()], "tool_choice": "required", "max_output_tokens": 100});
    let cut = json!({"tools": [walk()], "tool_choice": {"type": "function", "name": "walk"}, "max_output_tokens": 4});
    let form = json!({"text": {"format": {"type": "json_schema", "name": "f", "schema": {"const": 3}}}});
    let thinks = json!({"chat_template_kwargs": {"enable_thinking": true}, "include": ["reasoning.encrypted_content"]});
    for (more, item, last) in [
        (json!({}), &text[..], "response.incomplete"),
        (forced, &call[..], "response.completed"),
        (cut, &call[..], "response.incomplete"),
        (form, &text[..], "response.completed"),
        (thinks, &thought[..], "response.incomplete"),
    ] {
        let mut more = more;
        more["cache_prompt"] = false.into();
        let events = streamed(&server, &more);
        let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        kinds.dedup();
        assert_eq!(kinds, [&["response.created", "response.in_progress"], item, &[last]].concat(), "{more}");
        let whole = respond(&server, &more);
        let response = events.last().unwrap()["response"].clone();
        let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
        assert_eq!(response["output"], json!([done["item"]]));
        let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
        let item = &response["output"][0];
        let said = if item["type"] == "function_call" { &item["arguments"] } else { &item["content"][0]["text"] };
        assert_eq!(*said, deltas);
        assert_eq!(comparable(response), comparable(whole), "{more}");
    }
}

#[test]
fn a_response_says_what_it_was_asked_and_what_it_took() {
    let server = server(TEMPLATE);
    let more = json!({"instructions": "Be brief.", "metadata": {"a": "b"}, "tools": [walk()], "tool_choice": "none",
        "top_p": 0.5, "user": "Ann", "store": false, "parallel_tool_calls": false});
    let response = respond(&server, &more);
    for (name, value) in more.as_object().unwrap() {
        assert_eq!(response[name], *value, "{name}");
    }
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let usage = &response["usage"];
    let total = usage["input_tokens"].as_u64().unwrap() + 12;
    assert_eq!((&usage["output_tokens"], &usage["total_tokens"]), (&json!(12), &json!(total)));
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    let thinks = json!({"chat_template_kwargs": {"enable_thinking": true}});
    assert_eq!(respond(&server, &thinks)["usage"]["output_tokens_details"]["reasoning_tokens"], 12);
    let again = respond(&server, &more);
    assert!(again["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{again}");
    let (_, counted) = post_to(&server, "/v1/responses/input_tokens", &asked(&more));
    assert_eq!(counted, json!({"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}));
}

#[test]
fn items_are_shown_to_the_model_as_it_knows_them() {
    let server = server(SHOWS);
    let shown = |input: Value| {
        let (status, answer) = post(&server, &json!({"input": input, "instructions": "S"}));
        assert_eq!(status, 400);
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    let text = |kind: &str, text: &str| json!([{"type": kind, "text": text}]);
    let call =
        json!({"type": "function_call", "id": "fc", "call_id": "1", "name": "walk", "arguments": "{\"days\": 3}"});
    let output = |said: Value| json!({"type": "function_call_output", "call_id": "1", "output": said});
    let thought = |more: Value| {
        let mut item = json!({"type": "reasoning", "id": "rs", "summary": []});
        for (name, value) in more.as_object().unwrap() {
            item[name] = value.clone();
        }
        item
    };
    let said = shown(json!([
        {"role": "user", "content": text("input_text", "A")},
        thought(json!({"content": text("reasoning_text", "hm")})),
        {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": text("output_text", "B")},
        call, output(json!("C")), call, output(text("input_text", "D")),
        {"type": "message", "role": "user", "content": "E"},
    ]));
    assert!(said.contains("system,user,assistant,tool,assistant,tool,user S/A/B/C//D/E"), "{said}");
    assert!(said.contains("/hm/"), "{said}");
    // If the client has stored a thought and sends it back, it is read as the thought.
    let kept = shown(json!([{"role": "user", "content": "A"}, thought(json!({"encrypted_content": "aG0="}))]));
    assert!(kept.contains("/hm"), "{kept}");
    let summed =
        shown(json!([{"role": "user", "content": "A"}, thought(json!({"summary": text("summary_text", "sum")}))]));
    assert!(summed.contains("/sum"), "{summed}");
    // For a template without the role `developer`, a developer's message is the system's.
    let developed = shown(json!([{"role": "developer", "content": "D"}, {"role": "user", "content": "A"}]));
    assert!(developed.contains('D') && !developed.contains("developer"), "{developed}");
}

#[test]
fn a_response_follows_another_or_refers_to_its_items_until_it_is_forgotten() {
    let server = server(TEMPLATE);
    let first = respond(&server, &json!({"tools": [walk()], "tool_choice": "required", "max_output_tokens": 100}));
    let call = first["output"][0].clone();
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "far"});
    let input = |middle: Value| json!([{"role": "user", "content": "In the beginning"}, middle, output]);
    let tokens = |more: Value| respond(&server, &more)["usage"]["input_tokens"].clone();
    let whole = tokens(json!({"input": input(call.clone())}));
    let id = &first["id"];
    let followed = respond(&server, &json!({"input": [output], "previous_response_id": id}));
    assert_eq!(followed["usage"]["input_tokens"], whole);
    assert_eq!(followed["previous_response_id"], *id);
    assert_eq!(tokens(json!({"input": input(json!({"type": "item_reference", "id": call["id"]}))})), whole);
    assert_eq!(tokens(json!({"input": input(json!({"id": call["id"]}))})), whole);
    let third = json!({"input": "And then?", "previous_response_id": followed["id"]});
    assert!(tokens(third.clone()).as_u64() > whole.as_u64());

    let one = format!("{PATH}/{}", id.as_str().unwrap());
    assert_eq!(server.get(&one), first);
    let forgotten: Value = ureq::delete(server.url(&one)).call().unwrap().body_mut().read_json().unwrap();
    assert_eq!(forgotten, json!({"id": id, "object": "response", "deleted": true}));
    for more in [
        json!({"previous_response_id": id}),
        third,
        json!({"previous_response_id": respond(&server, &json!({"store": false}))["id"]}),
    ] {
        let (status, answer) = post(&server, &more);
        let error = &answer["error"];
        let expected = (404, &json!("previous_response_id"), &json!("previous_response_not_found"));
        assert_eq!((status, &error["param"], &error["code"]), expected, "{answer}");
    }
    let (status, answer) = post(&server, &json!({"input": [{"type": "item_reference", "id": call["id"]}]}));
    assert_eq!((status, &answer["error"]["param"]), (404, &json!("input[0]")), "{answer}");
}

#[test]
fn tools_of_other_kinds_are_left_out_or_named_where_they_are_wanted() {
    let server = server(TEMPLATE);
    let search = json!({"type": "web_search"});
    let body = asked(&json!({"tools": [search, walk()]}));
    let response = ureq::post(server.url(PATH)).send_json(&body).unwrap();
    let left_out = response.headers()["x-autoplace-left-out"].to_str().unwrap();
    assert_eq!(left_out, "tools[0]: tools of type `web_search` are not supported");
    let allowed = |names: &[&str]| {
        let tools: Vec<Value> = names.iter().map(|name| json!({"type": "function", "name": name})).collect();
        json!({"type": "allowed_tools", "mode": "required", "tools": tools})
    };
    let mut run = walk();
    run["name"] = "run".into();
    let more = json!({"tools": [run, walk()], "tool_choice": allowed(&["walk"]), "max_output_tokens": 100});
    assert_eq!(respond(&server, &more)["output"][0]["name"], "walk");
    for (choice, words) in [
        (json!({"type": "web_search"}), "tool_choice: tools of type `web_search`"),
        (json!("required"), "there is no function that may be"),
        (allowed(&["walk"]), "there is no function that may be"),
        (json!({"type": "function", "name": "walk"}), "there is no function `walk`"),
        (json!("sometimes"), "use `auto`, `none` or `required`"),
    ] {
        let (status, answer) = post(&server, &json!({"tools": [search], "tool_choice": choice}));
        assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains(words), "{answer}");
    }
}

#[test]
fn errors_name_the_place_in_the_request() {
    let server = server(TEMPLATE);
    let user = |content: Value| json!({"input": [{"role": "user", "content": content}]});
    let mut unique = walk();
    unique["strict"] = true.into();
    unique["parameters"]["properties"]["days"] = json!({"type": "array", "uniqueItems": true});
    let cannot = json!({"properties": {"p": {"not": {}}}});
    for (more, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 3}), "input"),
        (
            user(json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "b"}])),
            "input[0].content[1].image_url",
        ),
        (json!({"input": [{"role": "tool", "content": "a"}]}), "input[0].role"),
        (json!({"input": [{"role": "user", "content": "a"}, {"type": "web_search_call", "id": "1"}]}), "input[1]"),
        (
            json!({"input": [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{"}]}),
            "input[1]",
        ),
        (json!({"input": "word ".repeat(5000)}), "input"),
        (json!({"input": "a".repeat(100_000)}), "input"),
        (json!({"max_output_tokens": -3}), "max_output_tokens"),
        (json!({"tools": [{"type": "mcp"}, unique]}), "tools[1].parameters.properties.days"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "f", "schema": cannot}}}),
            "text.format.schema.properties.p",
        ),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format"),
        (json!({"background": true}), "background"),
        (json!({"top_logprobs": 1000}), "top_logprobs"),
        (json!({"text": {"format": {"type": "json_object"}}, "grammar": "root ::= \"a\""}), "grammar"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"store": "no"}), "store"),
        (user(json!([{"type": "input_video"}])), "input[0].content[0]"),
        (json!({"input": [{"role": "user", "content": "a"}, {"type": "reasoning", "content": 3}]}), "input[1].content"),
        (json!({"tools": [walk()], "tool_choice": {"type": "function"}}), "tool_choice.name"),
    ] {
        let (status, answer) = post(&server, &more);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{more}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
    }
    assert_eq!(post(&server, &json!({"model": "other"})).0, 404);
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
            // No field accepts such a list, except for the fields that are only repeated.
            let (status, answer) = post(&server, &json!({"max_output_tokens": 1, name: [{"a": 3}]}));
            let param = answer["error"]["param"].as_str().unwrap_or_default();
            match cells[2].split(':').next().unwrap() {
                "done" if name == "metadata" => assert_eq!(answer["metadata"], json!([{"a": 3}])),
                "done" | "refused" => {
                    assert!((400..500).contains(&status) && param.starts_with(name), "{name}: {answer}");
                }
                "ignored" => assert_eq!(status, 200, "{name}: {answer}"),
                other => panic!("{name} is {other}"),
            }
        }
    }
    assert!(seen > 30, "{seen}");
}
