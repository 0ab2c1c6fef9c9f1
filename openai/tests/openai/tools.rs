//! Tools, messages and parts over HTTP: what the template gets, how calls are constrained, and what limits do.

use std::io::{BufRead, BufReader};

use autoplace::chat::ChatTemplate;
use serde_json::{Value, json};

use crate::server::Server;

/// A template that shows no tools.
const TEXTS: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
/// Templates that show tools, and that describe a call format.
const HERMES: &str = "{{ tools }}{# <tool_call> {\"name\" #}{{ messages[-1].content }}";
const GLM: &str = "{{ tools }}{# <tool_call>f<arg_key>a</arg_key> #}{{ messages[-1].content }}";

const PATH: &str = "/v1/chat/completions";

fn server(source: &str) -> Server {
    Server::start(1024, ChatTemplate::new(source, <_>::default()).unwrap())
}

fn walk() -> Value {
    json!({"type": "function", "function": {"name": "walk", "description": "Walks.", "parameters": {"type": "object",
        "properties": {"days": {"type": "integer", "minimum": 3, "maximum": 7}}, "required": ["days"]}}})
}

fn asked(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "How far?"}], "max_tokens": 100, "seed": 3});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The status of the answer, and its body.
fn post(server: &Server, body: &Value) -> (u16, Value) {
    let request = ureq::post(server.url(PATH)).config().http_status_as_error(false).build();
    let mut response = request.send_json(body).unwrap();
    (response.status().as_u16(), response.body_mut().read_json().unwrap())
}

/// The content of a stream, the arguments of its first call, and its finish reason.
fn streamed(server: &Server, body: &Value) -> (String, String, String) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let response = ureq::post(server.url(PATH)).send_json(&body).unwrap();
    let lines = BufReader::new(response.into_body().into_reader()).lines().map(Result::unwrap);
    let (mut content, mut arguments, mut finish) = (String::new(), String::new(), String::new());
    for line in lines.filter(|line| line.starts_with("data: {")) {
        let chunk: Value = serde_json::from_str(&line["data: ".len()..]).unwrap();
        let choice = &chunk["choices"][0];
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        arguments += choice["delta"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
        finish += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (content, arguments, finish)
}

#[test]
fn tools_are_described_to_a_model_whose_template_shows_none_and_can_be_called() {
    let server = server(TEXTS);
    let tokens = |more: Value| {
        let (status, answer) = post(&server, &asked(&more));
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let with = tokens(json!({"tools": [walk()], "tool_choice": "auto", "max_tokens": 1}));
    let without = tokens(json!({"max_tokens": 1}));
    assert!(with > without + 50, "{with} tokens with the tool, {without} without");
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "walk"}})] {
        let (_, answer) = post(&server, &asked(&json!({"tools": [walk()], "tool_choice": choice})));
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!((3..=7).contains(&arguments["days"].as_i64().unwrap()), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn tools_that_must_not_be_described_are_refused_with_advice() {
    let template = ChatTemplate::new(TEXTS, <_>::default()).unwrap().describe_tools(false);
    let server = Server::start(1024, template);
    let (status, answer) = post(&server, &asked(&json!({"tools": [walk()]})));
    let error = &answer["error"];
    assert_eq!((status, &error["param"]), (400, &json!("tools")), "{answer}");
    let message = error["message"].as_str().unwrap();
    for way in ["chat_with", "--template"] {
        assert!(message.contains(way), "{message}");
    }
    assert_eq!(post(&server, &asked(&json!({"tools": [walk()], "tool_choice": "none"}))).0, 200);
}

#[test]
fn parts_keep_the_keys_that_a_template_reads() {
    let wants = "{% if messages[0].content[0].source_lang_code != 'de' %}{{ raise_exception('no language') }}\
        {% endif %}{{ messages[0].content[0].text }}";
    let server = server(wants);
    let said = |part: Value| {
        let messages = json!([{"role": "user", "content": [part]}]);
        post(&server, &asked(&json!({"messages": messages, "max_tokens": 1})))
    };
    let (status, answer) = said(json!({"type": "text", "text": "Hallo", "source_lang_code": "de"}));
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = said(json!({"type": "text", "text": "Hello", "source_lang_code": "en"}));
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("no language"), "{answer}");
}

#[test]
fn initial_system_messages_are_merged_and_a_late_one_is_left_to_the_template() {
    let takes_one = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('a system message comes first') }}{% endif %}\
        {% if m.role == 'system' and 'brief' in m.content and 'kind' not in m.content %}{{ raise_exception('lost') }}\
        {% endif %}\
        {{ m.content }}{% endfor %}";
    let server = server(takes_one);
    let said = |roles: [&str; 3]| {
        let contents = ["Be brief.", "Be kind.", "Hello"];
        let messages: Vec<Value> =
            roles.iter().zip(contents).map(|(role, content)| json!({"role": role, "content": content})).collect();
        post(&server, &asked(&json!({"messages": messages, "max_tokens": 1})))
    };
    for roles in [["system", "system", "user"], ["system", "developer", "user"], ["developer", "system", "user"]] {
        let (status, answer) = said(roles);
        assert_eq!(status, 200, "{roles:?}: {answer}");
    }
    let (status, answer) = said(["user", "assistant", "system"]);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("a system message comes first"), "{answer}");
}

#[test]
fn a_forced_call_that_the_limit_cuts_is_a_call_as_far_as_it_came() {
    let server = server(HERMES);
    let note = json!({"type": "function", "function": {"name": "note", "parameters": {"type": "object",
        "properties": {"text": {"type": "string", "minLength": 200}}, "required": ["text"]}}});
    let mut longest = 0;
    for max_tokens in [1, 4, 8, 16, 32, 64, 128] {
        let body = asked(&json!({"tools": [note], "tool_choice": "required", "max_tokens": max_tokens}));
        let (status, answer) = post(&server, &body);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let message = &choice["message"];
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        assert_eq!(message["content"].as_str().unwrap_or_default(), "", "{answer}");
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(call["name"], "note", "{answer}");
        let arguments = call["arguments"].as_str().unwrap();
        let begins = "{\"text\":";
        let written: String = arguments.chars().filter(|c| !c.is_whitespace()).collect();
        assert!(begins.starts_with(&written) || written.starts_with(begins), "{arguments}");
        longest = longest.max(arguments.len());
        assert_eq!(streamed(&server, &body), (String::new(), arguments.to_owned(), "length".to_owned()));
    }
    assert!(longest > 8, "no call came to its arguments");
}

#[test]
fn a_named_tool_is_known_from_the_first_token_and_one_without_parameters_has_none() {
    let server = server(HERMES);
    let ping = json!({"type": "function", "function": {"name": "ping"}});
    let null = json!({"type": "function", "function": {"name": "ping", "description": null, "parameters": null}});
    for ping in [ping, null] {
        let named = json!({"type": "function", "function": {"name": "ping"}});
        let body = asked(&json!({"tools": [walk(), ping], "tool_choice": named, "max_tokens": 1}));
        let (_, answer) = post(&server, &body);
        assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "ping", "{answer}");
        let body = asked(&json!({"tools": [ping], "tool_choice": "required"}));
        let (_, answer) = post(&server, &body);
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({}), "{answer}");
    }
}

#[test]
fn a_strict_tool_is_held_to_or_refused_by_its_place_in_each_format() {
    let strict = |parameters: Value| json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": parameters}});
    let either = strict(json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}));
    let glm = server(GLM);
    let (status, answer) = post(&glm, &asked(&json!({"tools": [walk(), either]})));
    let error = &answer["error"];
    assert_eq!((status, &error["param"]), (400, &json!("tools[1].function.parameters")), "{answer}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("anyOf") && message.contains("`required`"), "{message}");
    // A call that is required is constrained anyway, and so is a JSON format.
    let forced = asked(&json!({"tools": [walk(), either], "tool_choice": "required"}));
    let hermes = server(HERMES);
    for (server, body) in [(&glm, forced), (&hermes, asked(&json!({"tools": [walk(), either]})))] {
        let (status, answer) = post(server, &body);
        assert_eq!(status, 200, "{answer}");
    }
    let unique = strict(json!({"type": "object", "properties": {"p": {"type": "array", "items": {"type": "string"},
        "uniqueItems": true}}}));
    for tool_choice in ["auto", "required"] {
        let (status, answer) = post(&glm, &asked(&json!({"tools": [unique], "tool_choice": tool_choice})));
        let place = json!("tools[0].function.parameters.properties.p");
        assert_eq!((status, &answer["error"]["param"]), (400, &place), "{answer}");
    }
    // If the constraint concerns only a tool, text remains free.
    let mut held = walk();
    held["function"]["strict"] = true.into();
    let (status, answer) = post(&glm, &asked(&json!({"tools": [held], "max_tokens": 20})));
    assert_eq!(status, 200, "{answer}");
    assert!(answer["choices"][0]["message"]["content"].as_str().is_some_and(|said| !said.is_empty()), "{answer}");
}
