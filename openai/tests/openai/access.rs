//! The keys that a server asks for, and the names that its model has.

use std::io::ErrorKind;

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace_openai::server::check_key;
use autoplace_openai::{Api, Endpoint};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use test_support::demo_path;

use crate::server::{MODEL, Server};

fn engine() -> (Model, Engine) {
    let model = Model::builder(demo_path()).n_ctx(256).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    (model, engine)
}

/// The status of the answer to a request with this header.
fn status(server: &Server, path: &str, header: (&str, &str)) -> u16 {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    agent.get(server.url(path)).header(header.0, header.1).call().unwrap().status().as_u16()
}

#[test]
fn each_key_of_a_server_admits_and_nothing_else_does() {
    let (model, engine) = engine();
    let keys = ["sesame", "a,comma", "sesame-of-another-length", "sesame"];
    let server = autoplace_openai::Server::new(Api::new(&model, &engine, MODEL)).page(|_| "<p>here</p>".to_owned());
    let server = keys.iter().fold(server, |server, key| server.key(*key).unwrap());
    let server = Server::run(server, &engine);
    let password = |key: &str| format!("Basic {}", BASE64_STANDARD.encode(format!("anybody:{key}")));
    for key in keys {
        assert_eq!(status(&server, "/v1/models", ("authorization", &format!("Bearer {key}"))), 200, "{key}");
        assert_eq!(status(&server, "/v1/models", ("x-api-key", key)), 200, "{key}");
        assert_eq!(status(&server, "/", ("authorization", &password(key))), 200, "{key}");
    }
    for wrong in ["", "sesam", "sesamf", "sesame2", "a", "comma", "sesame,a,comma", "sesame sesame", "Sesame"] {
        assert_eq!(status(&server, "/v1/models", ("authorization", &format!("Bearer {wrong}"))), 401, "{wrong}");
        assert_eq!(status(&server, "/v1/models", ("x-api-key", wrong)), 401, "{wrong}");
        assert_eq!(status(&server, "/", ("authorization", &password(wrong))), 401, "{wrong}");
    }
    assert_eq!(status(&server, "/health", ("x-api-key", "")), 200);
}

#[test]
fn a_key_that_no_header_can_contain_is_refused_and_not_shown() {
    let (model, engine) = engine();
    for wrong in ["", "my secret", "secret\n", "gehëim"] {
        let server = autoplace_openai::Server::new(Api::new(&model, &engine, MODEL));
        let errors = [check_key(wrong).unwrap_err(), server.key(wrong).unwrap_err()];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong:?}");
            assert!(wrong.is_empty() || !error.to_string().contains(wrong), "{error}");
        }
    }
    let server = autoplace_openai::Server::new(Api::new(&model, &engine, MODEL)).key("sesame").unwrap();
    assert!(!format!("{server:?}").contains("sesame"));
}

#[test]
fn requests_may_use_each_name_of_the_model_and_answers_have_its_first_one() {
    let (model, engine) = engine();
    let template = ChatTemplate::family("chatml").unwrap();
    let api = Api::new(&model, &engine, "demo").template(template).alias("gpt-4o").alias("org/a:b").alias("demo");
    let server = Server::serve(api.clone(), &engine);
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    for name in ["demo", "gpt-4o", "org/a:b", ""] {
        let chat = json!({"model": name, "messages": messages, "max_tokens": 2});
        let text = json!({"model": name, "prompt": "a", "max_tokens": 2});
        let response = json!({"model": name, "input": "a", "max_output_tokens": 2});
        for (path, body) in [
            ("/v1/chat/completions", &chat),
            ("/v1/messages", &chat),
            ("/v1/completions", &text),
            ("/v1/responses", &response),
        ] {
            assert_eq!(server.post(path, body)["model"], "demo", "{path} {name}");
        }
        server.post("/v1/chat/completions/input_tokens", &chat);
    }
    // As in llama-server, there is one entry, whose aliases are all names in alphabetical order.
    let listed = server.get("/v1/models");
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
    let entry = &listed["data"][0];
    assert_eq!((&entry["id"], &entry["aliases"]), (&json!("demo"), &json!(["demo", "gpt-4o", "org/a:b"])));
    for name in ["demo", "gpt-4o", "org/a:b"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")), *entry, "{name}");
    }
    assert_eq!(status(&server, "/v1/models/gpt-4", ("x", "y")), 404);
    assert_eq!(server.get("/props")["model_alias"], "demo");
    assert_eq!(Endpoint::new(server.url("/v1")).models().unwrap(), ["demo"]);

    let refused = api.complete(json!({"model": "gpt-4", "prompt": "a"}).to_string().as_bytes()).unwrap_err();
    assert_eq!((refused.status, refused.code), (404, Some("model_not_found")));
    for name in ["gpt-4", "demo", "gpt-4o", "org/a:b"] {
        assert!(refused.message.contains(&format!("`{name}`")), "{refused}");
    }
}

#[test]
fn a_second_model_with_a_name_of_the_first_is_not_listed() {
    let (model, engine) = engine();
    let listed = Api::new(&model, &engine, "a").alias("b").models(&["b", "c", "a"]);
    let ids: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|entry| &entry["id"]).collect();
    assert_eq!(ids, ["a", "c"]);
}
