//! Settings of llama-server that change paths, streams and defaults of requests.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{CHAT, Server, TEXT, read_until, seen_until};

#[test]
fn all_paths_are_behind_the_prefix_and_need_the_same_key() {
    let server = Server::start(&["--ctx", "512", "--api-prefix", "/llama/v2", "--no-slots", "--api-key", "sesame"]);
    let keyed = |path: &str| -> u16 {
        let head = [&format!("GET {path} HTTP/1.1"), "host: localhost", "x-api-key: sesame"];
        server.raw(&head).split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(keyed("/llama/v2/v1/models"), 200);
    assert_eq!(keyed("/llama/v2/props"), 200);
    assert_eq!((keyed("/llama/v2/"), keyed("/llama/v2")), (200, 200), "the page");
    assert_eq!(keyed("/llama/v2/slots"), 501);
    for path in ["/v1/models", "/health", "/", "/llama/v1/models", "/llama/v2/llama/v2/health"] {
        assert_eq!(keyed(path), 404, "{path}");
    }
    assert_eq!(server.get("/llama/v2/health").0, 200);
    assert_eq!(server.get("/llama/v2/v1/models").0, 401);
    assert_eq!(server.get("/llama/v2/slots").0, 401);
    // Errors of Anthropic's paths keep their form.
    let (status, error) = server.post("/llama/v2/v1/messages", "{}");
    assert_eq!((status, &error["type"]), (401, &json!("error")), "{error}");
}

#[test]
fn a_stream_that_waits_gets_comments_as_often_as_the_server_was_told() {
    let server = Server::start(&["--parallel", "1", "--ctx", "65536", "--sse-ping-interval", "1"]);
    let long = json!({"prompt": "a", "max_tokens": 65_000, "stream": true,
        "logit_bias": {"0": -1000, "1": -1000, "2": -1000}});
    let first = server.sent(TEXT, &long.to_string());
    read_until(&first, "data: ");
    let second = server.sent(TEXT, &long.to_string());
    // The default is longer than this.
    second.set_read_timeout(Some(Duration::from_secs(12))).unwrap();
    read_until(&second, ":\n\n");
    read_until(&second, ":\n\n");
    drop((first, second));
}

#[test]
fn a_stream_that_waits_gets_no_comments_from_a_server_without_pings() {
    let server = Server::start(&["--parallel", "1", "--ctx", "4096", "--sse-ping-interval", "-1"]);
    let body = |tokens: u32| {
        json!({"prompt": "a", "max_tokens": tokens, "stream": true,
            "logit_bias": {"0": -1000, "1": -1000, "2": -1000}})
        .to_string()
    };
    let first = server.sent(TEXT, &body(3000));
    read_until(&first, "data: ");
    // The second stream waits until the first has ended.
    let second = seen_until(&server.sent(TEXT, &body(4)), "data: [DONE]");
    let (_, events) = second.split_once("\r\n\r\n").unwrap();
    assert!(events.contains("data: {"), "{events}");
    assert!(!events.lines().any(|line| line.starts_with(':')), "{events}");
}

#[test]
fn a_large_chunk_of_prompts_is_lowered_to_a_batch_and_both_numbers_are_named() {
    let server = Server::start(&["--ctx", "512", "--batch-size", "128", "--prompt-chunk", "4096"]);
    let said = server.said();
    assert!(said.contains("a batch has 128 tokens, so a chunk of the prompts has 128 instead of 4096"), "{said}");
    assert!(said.contains("128 tokens are computed at once (n_batch) instead of 512 (n_ubatch)"), "{said}");
}

#[test]
fn prompts_are_computed_anew_unless_the_request_says_otherwise() {
    let cached = |server: &Server, more: &Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "In the beginning was the word."}],
            "max_tokens": 1, "temperature": 0});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, answer) = server.post(CHAT, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let server = Server::start(&["--ctx", "512", "--no-cache-prompt"]);
    assert_eq!(cached(&server, &json!({})), 0);
    assert_eq!(cached(&server, &json!({})), 0);
    assert!(cached(&server, &json!({"cache_prompt": true})) > 0);
    let usual = Server::start(&["--ctx", "512"]);
    assert_eq!(cached(&usual, &json!({})), 0);
    assert!(cached(&usual, &json!({})) > 0);
}

#[test]
fn an_answer_without_a_limit_of_its_own_has_the_servers_and_the_model_has_its_tags() {
    let server = Server::start(&["--ctx", "512", "-n", "3", "--tags", "small,old"]);
    assert_eq!(server.get("/v1/models").1["data"][0]["tags"], json!(["old", "small"]));
    let written = |more: &Value| {
        let mut body = json!({"prompt": "In the beginning", "logit_bias": {"0": -1000, "1": -1000, "2": -1000}});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, answer) = server.post(TEXT, &body.to_string());
        assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!("length")), "{answer}");
        answer["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!([json!({}), json!({"max_tokens": 5}), json!({"max_tokens": -1})].map(|more| written(&more)), [3, 5, 3]);
}
