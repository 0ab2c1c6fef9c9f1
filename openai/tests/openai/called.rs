//! Constraints on tool calls and forms, and notes about keywords that are not enforced.

use autoplace::chat::ChatTemplate;
use autoplace_openai::{Api, ApiError, Completion};
use serde_json::{Value, json};

use crate::api::alone;
use crate::server::Server;

/// A template that shows tools and describes the format `<tool_call>`.
const SHOWS_TOOLS: &str = "{{ tools }}{# <tool_call> {\"name\" #}{{ messages[-1].content }}";

fn api() -> Api {
    let (_, _, api) = alone();
    api.template(ChatTemplate::new(SHOWS_TOOLS, <_>::default()).unwrap())
}

fn chat(api: &Api, more: &Value) -> Result<Completion, ApiError> {
    let mut body = json!({"messages": [{"role": "user", "content": "How far?"}], "max_tokens": 200});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    api.chat(body.to_string().as_bytes())
}

fn tool(name: &str, strict: bool, properties: &Value) -> Value {
    let parameters = json!({"type": "object", "properties": properties, "required": [properties.as_object().unwrap().keys().next()]});
    json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
}

fn days() -> Value {
    json!({"days": {"type": "integer", "minimum": 3, "maximum": 7}})
}

/// A list with unique entries, which no grammar can enforce.
fn tags() -> Value {
    json!({"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2, "uniqueItems": true}})
}

#[test]
fn a_strict_schema_is_enforced_or_refused_by_its_place_whatever_is_chosen() {
    let api = api();
    let tools = json!([tool("walk", true, &days()), tool("tag", true, &tags())]);
    for choice in [json!("auto"), json!("required"), Value::Null] {
        let error = chat(&api, &json!({"tools": tools, "tool_choice": choice})).unwrap_err();
        let place = Some("tools[1].function.parameters.properties.tags");
        assert_eq!((error.status, error.param.as_deref()), (400, place), "{error}");
        assert!(error.message.contains("uniqueItems"), "{error}");
    }
    let schema = json!({"type": "object", "properties": {"p": {"type": "array", "contains": {"type": "null"}}}});
    for (form, place) in [
        (
            json!({"type": "json_schema", "json_schema": {"name": "a", "strict": false, "schema": schema}}),
            "response_format.json_schema.schema.properties.p",
        ),
        (json!({"type": "json_object", "schema": schema}), "response_format.schema.properties.p"),
        (json!({"type": "json_object", "schema": {"$ref": "#"}}), "response_format.schema"),
    ] {
        // Whether there is a tool or not, the error contains the place in the form.
        for tools in [json!([]), json!([tool("walk", false, &days())])] {
            let error = chat(&api, &json!({"response_format": form, "tools": tools})).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(place)), "{error}");
        }
    }
}

#[test]
fn a_schema_without_an_end_is_the_requests_fault_wherever_it_stands() {
    let api = api();
    let endless = json!({"$ref": "#"});
    let called =
        |strict: bool| json!({"type": "function", "function": {"name": "f", "strict": strict, "parameters": endless}});
    for (more, place) in [
        (json!({"guided_json": endless}), "guided_json"),
        (json!({"json_schema": endless}), "json_schema"),
        (json!({"tools": [called(true)], "tool_choice": "required"}), "tools[0].function.parameters"),
        (json!({"tools": [called(true)]}), "tools[0].function.parameters"),
    ] {
        let Err(error) = chat(&api, &more) else { panic!("{more} is not refused") };
        assert_eq!((error.status, error.param.as_deref()), (400, Some(place)), "{more}: {error}");
    }
    // If a tool is not `strict`, its calls are constrained as far as a grammar can express the schema.
    let asked = json!({"tools": [called(false)], "tool_choice": "required", "max_tokens": 60});
    let completion = chat(&api, &asked).unwrap();
    let said = completion.unenforced().to_vec();
    assert!(said.len() == 1 && said[0].starts_with("tools[0].function.parameters: "), "{said:?}");
    assert!(completion.wait().is_ok());
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_reported_and_blocks_no_other_tool() {
    let api = api();
    let tools = json!([tool("walk", true, &days()), tool("tag", false, &tags())]);
    let completion = chat(&api, &json!({"tools": tools, "tool_choice": "required", "seed": 3})).unwrap();
    let said = completion.unenforced().to_vec();
    assert_eq!(said, ["tools[1].function.parameters.properties.tags: `uniqueItems` is not enforced"]);
    let answer = completion.wait().unwrap();
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    match call["name"].as_str().unwrap() {
        "walk" => assert!((3..=7).contains(&arguments["days"].as_i64().unwrap()), "{call}"),
        _ => assert!(arguments["tags"].is_array(), "{call}"),
    }
    let walk = json!({"type": "function", "function": {"name": "walk"}});
    let named = chat(&api, &json!({"tools": tools, "tool_choice": walk})).unwrap();
    assert!(named.unenforced().is_empty(), "what is not called is not spoken of");
}

#[test]
fn beside_tools_a_form_is_the_form_or_a_call() {
    let api = api();
    let form = json!({"type": "json_schema", "json_schema": {"name": "a", "schema":
        {"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]}}});
    let asked = json!({"response_format": form, "tools": [tool("walk", false, &days())]});
    for seed in 0..6 {
        for stream in [false, true] {
            let mut asked = asked.clone();
            (asked["seed"], asked["stream"]) = (seed.into(), stream.into());
            let completion = chat(&api, &asked).unwrap();
            let (content, call) = match stream {
                false => {
                    let message = completion.wait().unwrap()["choices"][0]["message"].take();
                    let call = message["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned);
                    (message["content"].as_str().unwrap_or_default().to_owned(), call)
                }
                true => {
                    let (mut content, mut call) = (String::new(), None);
                    for chunk in completion.chunks().map(Result::unwrap) {
                        let delta = &chunk["choices"][0]["delta"];
                        content += delta["content"].as_str().unwrap_or_default();
                        let arguments = delta["tool_calls"][0]["function"]["arguments"].as_str();
                        call = call.or(arguments.map(str::to_owned));
                    }
                    (content, call)
                }
            };
            match call {
                Some(arguments) => {
                    let arguments: Value = serde_json::from_str(&arguments).unwrap();
                    assert!(
                        (3..=7).contains(&arguments["days"].as_i64().unwrap()) && content.trim().is_empty(),
                        "{content}"
                    );
                }
                None => assert!(serde_json::from_str::<Value>(&content).unwrap()["rain"].is_boolean(), "{content}"),
            }
        }
    }
    let required = chat(&api, &json!({"response_format": form, "tools": asked["tools"], "tool_choice": "required"}));
    let answer = required.unwrap().wait().unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
}

#[test]
fn an_object_is_closed_unless_json_schemas_rule_is_requested() {
    let api = api();
    let grown = |seed: u32, more: Value| {
        let schema = json!({"type": "object", "properties": {"a": {"type": "null"}}});
        let mut asked = json!({"json_schema": schema, "seed": seed, "max_tokens": 60});
        for (name, value) in more.as_object().unwrap() {
            asked[name] = value.clone();
        }
        let answer = chat(&api, &asked).unwrap().wait().unwrap();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    // The only two objects that have no property other than "a".
    let is_closed = |text: &str| [json!({}), json!({"a": null})].map(Some).contains(&serde_json::from_str(text).ok());
    for seed in 1..=6 {
        let closed = grown(seed, json!({}));
        assert!(is_closed(&closed), "{closed}");
    }
    // If objects are open, a property may have any name. The limit may end the text too early.
    let open = (1..=6).map(|seed| grown(seed, json!({"disable_additional_properties": false, "logit_bias": {}})));
    let open: Vec<String> = open.collect();
    assert!(open.iter().all(|text| text.trim_start().starts_with('{')), "{open:?}");
    assert!(open.iter().any(|text| !is_closed(text)), "{open:?}");
}

#[test]
fn an_empty_name_is_this_model() {
    let (_, _, api) = alone();
    let complete =
        |model: &str| api.complete(json!({"model": model, "prompt": "a", "max_tokens": 1}).to_string().as_bytes());
    assert!(complete("").is_ok());
    assert_eq!(complete("other").unwrap_err().status, 404);
}

#[test]
fn a_server_says_what_was_not_enforced_and_which_paths_there_are() {
    let server = Server::start(1024, ChatTemplate::new(SHOWS_TOOLS, <_>::default()).unwrap());
    let body = json!({"messages": [{"role": "user", "content": "How far?"}], "max_tokens": 100,
        "tools": [tool("tag", false, &tags())], "tool_choice": "required"});
    let response = ureq::post(server.url("/v1/chat/completions")).send_json(&body).unwrap();
    let said = response.headers()["x-autoplace-unenforced"].to_str().unwrap();
    assert_eq!(said, "tools[0].function.parameters.properties.tags: `uniqueItems` is not enforced");
    let get = |path: &str| ureq::get(server.url(path)).config().http_status_as_error(false).build().call().unwrap();
    let mut nowhere = get("/v1/nothing");
    let error: Value = nowhere.body_mut().read_json().unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(nowhere.status(), 404);
    assert!(message.contains("GET /v1/nothing") && message.contains("POST /v1/chat/completions"), "{message}");
}
