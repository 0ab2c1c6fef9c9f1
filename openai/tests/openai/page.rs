//! The page that a server shows at the path `/`.

use std::sync::{Arc, Mutex};

use autoplace::Model;
use autoplace::generate::Engine;
use autoplace_openai::server::Activity;
use autoplace_openai::{Api, Server};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use test_support::demo_path;

use crate::server::{MODEL, Server as Running};

fn get(server: &Running, path: &str, authorization: &str) -> ureq::http::Response<ureq::Body> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    agent.get(server.url(path)).header("authorization", authorization).call().unwrap()
}

#[test]
fn a_browser_sees_the_page_with_the_key_as_its_password_and_nothing_else() {
    let model = Model::builder(demo_path()).n_ctx(256).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let seen = Arc::new(Mutex::new(Vec::<Activity>::new()));
    let kept = Arc::clone(&seen);
    let page = move |activity: &Activity| {
        kept.lock().unwrap().push(activity.clone());
        "<p>here</p>".to_owned()
    };
    let api = Api::new(&model, &engine, MODEL);
    let server = Running::run(Server::new(api).key("secret").unwrap().page(page), &engine);
    let basic = |password: &str| format!("Basic {}", BASE64_STANDARD.encode(format!("anybody:{password}")));

    for authorization in ["", "Bearer wrong", &basic("wrong"), &basic("secret2"), "Basic secret", "Basic c2VjcmV0"] {
        let refused = get(&server, "/", authorization);
        let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
        assert!(refused.status() == 401 && challenge.starts_with("Basic "), "{authorization}: {challenge}");
    }
    assert!(seen.lock().unwrap().is_empty());
    for path in ["/v1/models", "/metrics", "/props"] {
        // A browser that has stored a password sends it with every request, even with a request that another site's
        // page has caused.
        let refused = get(&server, path, &basic("secret"));
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["www-authenticate"]),
            (401, &"Bearer".parse().unwrap())
        );
    }
    let asked = json!({"prompt": "In the beginning", "max_tokens": 5, "ignore_eos": true}).to_string();
    let answer = ureq::post(server.url("/v1/completions")).header("authorization", "Bearer secret");
    answer.content_type("application/json").send(&asked).unwrap();
    for authorization in [&*basic("secret"), "Bearer secret"] {
        let mut shown = get(&server, "/", authorization);
        let head = shown.headers().clone();
        assert_eq!(
            (shown.status().as_u16(), shown.body_mut().read_to_string().unwrap()),
            (200, "<p>here</p>".to_owned())
        );
        assert_eq!(head["content-type"], "text/html; charset=utf-8");
        let policy = head["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("script") && !policy.contains("http"), "{policy}");
        assert_eq!((&head["cache-control"], &head["refresh"]), (&"no-store".parse().unwrap(), &"5".parse().unwrap()));
    }
    let seen = seen.lock().unwrap();
    let Activity { model, sequences, metrics, answers, tokens_per_second, .. } = seen[0].clone();
    assert_eq!((&*model, sequences, metrics.generated_tokens, answers), (MODEL, 1, 5, 1));
    assert!(tokens_per_second == 0.0, "nothing is under way: {tokens_per_second}");
}

#[test]
fn without_a_page_there_is_nothing_at_the_root() {
    let model = Model::builder(demo_path()).n_ctx(256).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let server = Running::serve(Api::new(&model, &engine, MODEL), &engine);
    assert_eq!(get(&server, "/", "").status(), 404);
}
