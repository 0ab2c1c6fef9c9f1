//! Hostile clients of `autoplace serve`: how much memory they can make the server use, and which of them are admitted.
//! `cargo xtask attack` does the same at full size, and prints numbers.

use std::collections::VecDeque;
use std::io::Write;

use crate::server::{CHAT, FILE, Server, TEXT, rest};
use serde_json::{Value, json};
use test_support::wait;

/// The head of a request whose body has 16 MiB, and a part of that body.
fn half_body(server: &Server, sent: &str) -> String {
    let head = format!("POST {TEXT} HTTP/1.1\r\nhost: {}\r\n", server.address);
    format!("{head}content-type: application/json\r\ncontent-length: 16777216\r\n\r\n{sent}")
}

#[test]
#[cfg(unix)]
fn silent_clients_do_not_block_others() {
    let server = Server::start_with_few_files(&["--ctx", "512"]);
    let half_head = "GET /health HTTP/1.1\r\nho";
    let half_body = half_body(&server, "{\"prompt");
    for half in [half_head, half_body.as_str()] {
        let waiting: Vec<_> = (0..300).map(|_| server.connected(half)).collect();
        assert_eq!(server.get("/health").0, 200);
        assert_eq!(server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1}"#).0, 200);
        // The connection that had waited longest was closed, to make room.
        let mut byte = [0];
        assert!(!matches!(std::io::Read::read(&mut &waiting[0], &mut byte), Ok(1)));
    }
}

#[test]
fn a_flood_of_silent_clients_keeps_no_other_client_waiting() {
    let server = Server::start(&["--ctx", "512"]);
    // More silent clients than the server has connections, also at the same time.
    let mut silent = VecDeque::new();
    for number in 0..3000 {
        silent.push_back(server.connected(""));
        if silent.len() > 800 {
            silent.pop_front();
        }
        if number % 300 == 299 {
            assert_eq!(server.get("/health").0, 200);
            assert_eq!(server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1}"#).0, 200);
        }
    }
}

#[test]
fn of_a_burst_of_clients_that_ask_when_all_have_connected_none_is_dropped() {
    let server = Server::start(&["--ctx", "512"]);
    let clients: Vec<_> = (0..300).map(|_| server.connected("")).collect();
    let head = format!("GET /health HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address);
    for client in &clients {
        (&*client).write_all(head.as_bytes()).unwrap();
    }
    for client in &clients {
        assert!(rest(client).starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn of_many_requests_for_vectors_some_are_refused_and_none_is_lost() {
    const PATH: &str = "/v1/embeddings";
    let server = Server::start(&["--ctx", "512", "--embed", FILE]);
    // While this request is computed, the others wait.
    let long = json!({"input": vec!["word ".repeat(200); 512]}).to_string();
    let long = server.sent(PATH, &long);
    let waiting: Vec<_> = (0..150).map(|_| server.sent(PATH, r#"{"input": "a"}"#)).collect();
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1}"#).0, 200);
    let answers: Vec<String> = waiting.iter().map(rest).collect();
    let [answered, refused] =
        ["HTTP/1.1 200", "HTTP/1.1 503"].map(|status| answers.iter().filter(|it| it.starts_with(status)).count());
    assert_eq!(answered + refused, 150, "{answers:?}");
    assert!(answered >= 63, "{answered}");
    drop(long);
}

#[test]
fn endless_heads_and_bodies_are_cut_off() {
    let server = Server::start(&["--ctx", "512", "--timeout", "2"]);
    let half = server.connected(&half_body(&server, "{\"prompt"));
    assert_eq!(rest(&server.connected("GET /health HTTP/1.1\r\nho")), "");
    assert!(rest(&half).starts_with("HTTP/1.1 408"));
    assert_eq!(server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1}"#).0, 200);
}

#[test]
#[cfg(target_os = "linux")]
fn a_request_takes_a_small_multiple_of_its_body() {
    let folder = tempfile::tempdir().unwrap();
    let reranker = test_support::embedding_models::reranker(autoplace::gguf::TensorType::F32);
    let reranker = test_support::random_weights::write(&reranker, folder.path());
    let server = Server::start(&["--ctx", "512", "--embed", FILE, "--reranker", reranker.to_str().unwrap()]);
    let bytes = 4 << 20;
    let bomb = format!("[{}0]", "{\"\":0},".repeat(bytes / 7));
    let text = "a".repeat(bytes);
    assert_eq!(server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1}"#).0, 200);
    let at_first = server.held();
    let post = |path: &str, body: &str| {
        server.reset_peak();
        let before = server.held();
        let answer = server.post(path, body);
        let taken = server.peak().saturating_sub(before);
        assert!(taken < 10 * bytes as u64, "{path}: {} MiB: {}", taken >> 20, answer.1);
        answer
    };
    let said = format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#);
    let messages = r#"[{"role": "user", "content": "a"}]"#;
    for (path, body, status, param) in [
        (TEXT, format!(r#"{{"prompt": "a", "max_tokens": 1, "x": {bomb}}}"#), 200, None),
        (CHAT, format!(r#"{{"messages": {bomb}}}"#), 400, Some("messages[0]")),
        (CHAT, format!(r#"{{"messages": {messages}, "tools": {bomb}}}"#), 400, Some("tools")),
        (TEXT, format!(r#"{{"prompt": "a", "json_schema": {bomb}}}"#), 400, Some("json_schema")),
        (TEXT, format!(r#"{{"prompt": {bomb}}}"#), 400, Some("prompt[0]")),
        ("/v1/embeddings", format!(r#"{{"input": {bomb}}}"#), 400, Some("input[0]")),
        // The tokens of this text would need much more memory than the text itself.
        (TEXT, format!(r#"{{"prompt": "{text}"}}"#), 400, Some("prompt")),
        ("/v1/embeddings", format!(r#"{{"input": "{text}"}}"#), 400, Some("input[0]")),
        (CHAT, said.clone(), 400, Some("messages")),
        ("/apply-template", said, 400, Some("messages")),
        ("/apply-template", format!(r#"{{"messages": {messages}, "tools": {bomb}}}"#), 400, Some("tools")),
        ("/tokenize", format!(r#"{{"content": "{text}"}}"#), 400, Some("content")),
        ("/tokenize", format!(r#"{{"content": {bomb}}}"#), 400, Some("content[0]")),
        ("/detokenize", format!(r#"{{"tokens": {bomb}}}"#), 400, Some("tokens[0]")),
        ("/detokenize", format!(r#"{{"tokens": [{}0]}}"#, "1,".repeat(bytes / 2)), 400, Some("tokens")),
        ("/v1/rerank", format!(r#"{{"query": "{text}", "documents": ["a"]}}"#), 400, Some("query")),
        ("/v1/rerank", format!(r#"{{"query": "a", "documents": {bomb}}}"#), 400, Some("documents[0]")),
        ("/infill", format!(r#"{{"input_prefix": "{text}", "input_suffix": "", "input_extra": {bomb}}}"#), 501, None),
    ] {
        let (answered, answer) = post(path, &body);
        assert_eq!((answered, answer["error"]["param"].as_str()), (status, param), "{answer}");
    }
    const MESSAGES: &str = "/v1/messages";
    const RESPONSES: &str = "/v1/responses";
    let user = |content: &str| format!(r#"{{"messages": [{{"role": "user", "content": {content}}}]}}"#);
    let blocks = format!("[{}{{}}]", r#"{"type":"text","text":"a"},"#.repeat(bytes / 26));
    let many = format!("[{}0]", r#"{"role":"user","content":"a"},"#.repeat(bytes / 29));
    let deep = format!("{}{}", "[".repeat(bytes / 2), "]".repeat(bytes / 2));
    let schema =
        format!(r#"{{"messages": {messages}, "tools": [{{"name": "f", "input_schema": {{"enum": {bomb}}}}}]}}"#);
    let system = format!(r#"{{"messages": {messages}, "system": "{}"}}"#, "Time: 10:00\\n".repeat(bytes / 14));
    for (path, body, words) in [
        (MESSAGES, format!(r#"{{"messages": {bomb}}}"#), "messages[0]"),
        (MESSAGES, format!(r#"{{"messages": {many}}}"#), "messages: at most 8192 entries are allowed"),
        (MESSAGES, user(&blocks), "messages[0].content: at most 1024 entries are allowed"),
        (MESSAGES, user(&format!("\"{text}\"")), "prompt is too long"),
        (RESPONSES, format!(r#"{{"input": {bomb}}}"#), "input: at most 8192 entries are allowed"),
        (RESPONSES, format!(r#"{{"input": {many}}}"#), "input: at most 8192 entries are allowed"),
        (RESPONSES, format!(r#"{{"input": "{text}"}}"#), "input"),
        (RESPONSES, format!(r#"{{"input": {deep}}}"#), "input[0]"),
        (RESPONSES, format!(r#"{{"input": "a", "tools": {bomb}}}"#), "tools[0]"),
        (RESPONSES, format!(r#"{{"input": "a", "metadata": {bomb}}}"#), "may have only 65536 together"),
        (
            RESPONSES,
            format!(r#"{{"input": "a", "tools": [{{"type": "function", "name": "f", "parameters": {bomb}}}]}}"#),
            "more than 65536 values",
        ),
        (RESPONSES, format!(r#"{{"input": "a", "include": {bomb}}}"#), "include[0]"),
        (MESSAGES, user(&deep), "messages[0].content[0]"),
        (MESSAGES, format!(r#"{{"messages": {messages}, "tools": {bomb}}}"#), "tools[0]"),
        (MESSAGES, schema.clone(), "tools: with it the request has more than 65536 values"),
        (MESSAGES, system, "prompt is too long"),
        ("/v1/messages/count_tokens", schema, "tools: with it the request has more than 65536 values"),
        ("/v1/messages/count_tokens", user(&format!("\"{text}\"")), "prompt is too long"),
    ] {
        let (answered, answer) = post(path, &body);
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(answered == 400 && said.contains(words), "{words}: {answer}");
    }
    // The allocator keeps some memory for the threads that read bodies.
    let kept = server.held().saturating_sub(at_first);
    assert!(kept < 30 * bytes as u64, "{} MiB", kept >> 20);
}

#[test]
fn without_the_key_only_health_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "sesame\n").unwrap();
    let server = Server::start(&["--ctx", "512", "--api-key-file", file.to_str().unwrap()]);
    assert_eq!(server.get("/health").0, 200);
    let models = |authorization: &str| server.raw(&["GET /v1/models HTTP/1.1", "host: localhost", authorization]);
    assert!(models("authorization: Bearer sesame").starts_with("HTTP/1.1 200"));
    assert!(models("x-api-key: sesame").starts_with("HTTP/1.1 200"));
    for wrong in [
        "x: y",
        "x-api-key: sesamf",
        "x-api-key: ",
        "authorization: Bearer sesamf",
        "authorization: Bearer ",
        "authorization: sesame",
    ] {
        let refused = models(wrong);
        assert!(refused.starts_with("HTTP/1.1 401"), "{wrong}: {refused}");
        assert!(refused.contains("www-authenticate: Bearer") && refused.contains("\"error\""));
    }
    assert_eq!(server.post(TEXT, "{}").0, 401);
    assert_eq!(server.get("/v1/nothing").0, 401);
    assert!(!server.said().contains("sesam"));
}

#[test]
fn each_key_of_a_list_a_file_or_a_variable_admits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "# for the phone\nsesame\n\n#basil\n tahini \r\n").unwrap();
    let file = file.to_str().unwrap();
    let arguments = ["--ctx", "512", "--api-key", "thyme,,\"sage,1\"", "--api-key", "mint", "--api-key-file", file];
    // A key of llama-server's variable counts only if nothing else sets a key.
    for (variables, arguments, keys) in [
        (("LLAMA_API_KEY", "basil"), &arguments[..], &["thyme", "sage,1", "mint", "sesame", "tahini"][..]),
        (("AUTOPLACE_API_KEY", "thyme,sesame"), &arguments[..2], &["thyme", "sesame"]),
        (("LLAMA_API_KEY", "thyme,sesame"), &arguments[..2], &["thyme", "sesame"]),
        (("LLAMA_ARG_API_KEY_FILE", file), &arguments[..2], &["sesame", "tahini"]),
    ] {
        let server = Server::start_in(&[variables], arguments);
        let models = |key: &str| {
            server.raw(&["GET /v1/models HTTP/1.1", "host: localhost", &format!("authorization: Bearer {key}")])
        };
        for key in keys {
            assert!(models(key).starts_with("HTTP/1.1 200"), "{variables:?} {key}");
        }
        for wrong in ["", "basil", "#basil", "# for the phone", "thyme,sesame", "sage", "1", "thyme,,\"sage,1\""] {
            assert!(models(wrong).starts_with("HTTP/1.1 401"), "{variables:?} {wrong}");
        }
        let said = server.said();
        assert!(keys.iter().all(|key| !said.contains(key)), "{said}");
        assert_eq!(
            said.contains("requests need a key of LLAMA_"),
            keys.len() == 2 && variables.0 != "AUTOPLACE_API_KEY"
        );
    }
}

#[test]
fn pages_of_other_sites_are_turned_away_on_any_address() {
    let args = ["--ctx", "512", "--host", "0.0.0.0", "--without-key", "--allow-host", "Box.example"];
    let mut server = Server::start(&[&args[..], &["--allow-origin", "https://chat.example"]].concat());
    let port = server.address.split_once(':').unwrap().1.to_owned();
    server.address = format!("127.0.0.1:{port}");
    let asked = |lines: &[&str]| server.raw(&[&["GET /v1/models HTTP/1.1"], lines].concat());
    for (lines, status) in [
        (&["host: evil.example"][..], 403),
        (&["host: evil.example:8080"], 403),
        (&["host: localhost.evil.example"], 403),
        (&["host: 192.0.2.1:8080"], 200),
        (&["host: [::1]"], 200),
        (&["host: LOCALHOST:1"], 200),
        (&["host: box.example:8080"], 200),
        (&["host: localhost", "origin: https://evil.example"], 403),
        (&["host: localhost", "origin: null"], 403),
        (&["host: localhost", "origin: https://chat.example"], 200),
    ] {
        let answer = asked(lines);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{lines:?}: {answer}");
    }
    let preflight = server.raw(&[
        "OPTIONS /v1/completions HTTP/1.1",
        "host: localhost",
        "origin: https://chat.example",
        "access-control-request-method: POST",
    ]);
    assert!(preflight.starts_with("HTTP/1.1 200"), "{preflight}");
    assert!(preflight.contains("access-control-allow-origin: https://chat.example"), "{preflight}");
}

#[test]
fn each_request_is_logged_in_a_line_without_its_content() {
    let server = Server::start(&["--ctx", "512"]);
    let body = json!({"prompt": "mellon", "max_tokens": 1}).to_string();
    let lines = || {
        let said = server.said();
        let lines = said.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    // A request's line is written after its answer was sent.
    assert_eq!(server.post(&format!("{TEXT}?key=mellon"), &body).0, 200);
    wait("logs the first request", || lines().len() == 1);
    assert_eq!(server.post(CHAT, "mellon").0, 400);
    wait("logs the second request", || lines().len() == 2);
    let lines = lines();
    let of = |line: &Value| json!([line["method"], line["path"], line["status"]]);
    let expected = [json!(["POST", TEXT, 200]), json!(["POST", CHAT, 400])];
    assert_eq!(lines.iter().map(of).collect::<Vec<_>>(), expected);
    for line in &lines {
        assert!(line["bytes"].as_u64() > Some(0) && line["ms"].is_u64(), "{line}");
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    assert!(!server.said().contains("mellon"), "{}", server.said());
}
