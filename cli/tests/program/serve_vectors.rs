//! `autoplace serve MODEL --embeddings`: a server of vectors or scores alone.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::cli_support::{User, text};
use crate::server::{CHAT, FILE, MODEL, Server};

const VECTORS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";

/// A server of this model alone.
fn start(model: &str, args: &[&str]) -> Server {
    let words = [&["--port", "0", "--threads", "1", model], args].concat();
    Server::start_without_model(&[], &words)
}

#[test]
fn llama_servers_flags_serve_the_vectors_of_a_model() {
    let beside = Server::start(&["--ctx", "512", "--embed", FILE]);
    let body = json!({"input": ["In the beginning", "b"]}).to_string();
    let expected = beside.post(VECTORS, &body).1["data"].take();
    assert_eq!(expected.as_array().unwrap().len(), 2, "{expected}");
    let alone = start(FILE, &["--embedding", "--pooling", "mean", "-a", "ada,babbage", "-np", "2"]);
    let (status, answer) = alone.post(VECTORS, &body);
    assert_eq!((status, &answer["data"], &answer["model"]), (200, &expected, &json!("ada")), "{answer}");
    // Each of its names is a name of it, and other names are none.
    let named = |name: &str| alone.post(VECTORS, &json!({"model": name, "input": "b"}).to_string());
    for name in ["ada", "babbage"] {
        let (status, answer) = named(name);
        assert_eq!((status, &answer["model"]), (200, &json!("ada")), "{answer}");
        assert_eq!(alone.get(&format!("/v1/models/{name}")).1["aliases"], json!(["ada", "babbage"]));
    }
    assert_eq!(named(MODEL).0, 404);
    assert_eq!(alone.get("/v1/models").1["data"][0]["id"], "ada");
    assert_eq!(alone.get("/health").1["status"], "ok");
    // It writes no texts and ranks nothing.
    let (status, refused) = alone.post(CHAT, r#"{"messages": [{"role": "user", "content": "a"}]}"#);
    assert_eq!(status, 501, "{refused}");
    assert_eq!(alone.post(RERANK, r#"{"query": "a", "documents": ["b"]}"#).0, 501);
    assert!(alone.said().contains("computes vectors (/v1/embeddings)"), "{}", alone.said());
    assert!(!alone.said().contains("without effect"), "{}", alone.said());
}

#[test]
fn settings_of_texts_without_effect_beside_embeddings_are_named() {
    let more = ["--temp", "0.5", "-n", "9", "--cache-ram", "1GiB", "--context-shift", "--prompt-chunk", "64"];
    let alone = start(FILE, &[&["--embedding", "--pooling", "mean", "--ctx", "512"], &more[..]].concat());
    let named = alone.said().lines().find_map(|line| Some(line.split_once("writes no texts: ")?.1.to_owned()));
    let mut named: Vec<String> = named.unwrap().split(", ").map(str::to_owned).collect();
    named.sort();
    assert_eq!(named, ["--cache-ram", "--context-shift", "--max-tokens", "--prompt-chunk", "--temp"]);
}

/// The value of a metric.
fn metric(server: &Server, name: &str) -> f64 {
    let text = server.raw(&["GET /metrics HTTP/1.1", &format!("host: {}", server.address)]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

#[test]
fn llama_servers_clients_ask_a_server_of_vectors_for_tokens_facts_and_counts() {
    let texts = Server::start(&["--ctx", "512"]);
    for more in [&[][..], &["--isolated"]] {
        let alone = start(FILE, &[&["--embedding", "--pooling", "mean", "--ctx", "512", "-a", "ada"], more].concat());
        for (path, body) in [
            ("/tokenize", json!({"content": "In the beginning", "add_special": true})),
            ("/tokenize", json!({"content": ["a", 7], "with_pieces": true})),
            ("/tokenize", json!({"content": [1_000_000]})),
            ("/detokenize", json!({"tokens": [300, 301]})),
            ("/detokenize", json!({"tokens": [-1]})),
        ] {
            let body = body.to_string();
            assert_eq!(alone.post(path, &body), texts.post(path, &body), "{path} {body}");
        }
        let (props, expected) = (alone.get("/props").1, texts.get("/props").1);
        for same in ["bos_token", "eos_token", "modalities", "build_info", "total_slots"] {
            assert!(!props[same].is_null() && props[same] == expected[same], "{same}: {props}");
        }
        assert_eq!((&props["model_alias"], &props["model_path"]), (&json!("ada"), &json!("ada")));
        assert_eq!(props["default_generation_settings"], json!({"n_ctx": 512, "params": {}}));
        let slots = json!([{"id": 0, "n_ctx": 512, "speculative": false, "is_processing": false}]);
        assert_eq!(alone.get("/slots?fail_on_no_slot=1"), (200, slots));
        assert_eq!(metric(&alone, "llamacpp:prompt_tokens_total"), 0.0);
        let body = json!({"input": ["In the beginning", "b"]}).to_string();
        let tokens = [(); 2].map(|()| alone.post(VECTORS, &body).1["usage"]["prompt_tokens"].as_f64().unwrap());
        assert_eq!(metric(&alone, "llamacpp:prompt_tokens_total"), tokens.iter().sum::<f64>());
        assert_eq!(metric(&alone, "autoplace:answers_total"), 2.0);
        assert!(metric(&alone, "llamacpp:prompt_seconds_total") > 0.0);
        for gauge in ["llamacpp:requests_processing", "llamacpp:requests_deferred"] {
            assert_eq!(metric(&alone, gauge), 0.0, "{gauge}");
        }
        // A text that is too long has no answer, and its context is the one of the facts.
        let (status, refused) = alone.post(VECTORS, &json!({"input": "a b ".repeat(600)}).to_string());
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("the longest text that can be embedded is 512"), "{refused}");
        assert_eq!(metric(&alone, "autoplace:answers_total"), 2.0);
        for (status, answer) in [alone.get("/tokenize"), alone.post("/v1/models", "{}"), alone.post("/health", "{}")] {
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(status == 405 && message.contains("does not accept"), "{status} {answer}");
        }
        assert_eq!(alone.post("/apply-template", r#"{"messages": []}"#).0, 501);
    }
}

#[test]
fn llama_servers_flags_serve_the_scores_of_a_reranker() {
    let folder = tempfile::tempdir().unwrap();
    let reranker = test_support::embedding_models::reranker(autoplace::gguf::TensorType::F32);
    let reranker = test_support::random_weights::write(&reranker, folder.path());
    let reranker = reranker.to_str().unwrap();
    let body = json!({"query": "a", "documents": ["b", "c d", "e"]}).to_string();
    let results = |server: &Server| -> Value { server.post(RERANK, &body).1["results"].take() };
    let expected = results(&Server::start(&["--ctx", "512", "--reranker", reranker]));
    assert_eq!(expected.as_array().unwrap().len(), 3, "{expected}");
    // The file says that it is a reranker, so the last one needs no pooling.
    for flags in [&["--reranking"][..], &["--embedding", "--pooling", "rank"], &["--embeddings"]] {
        let server = start(reranker, flags);
        assert_eq!(results(&server), expected, "{flags:?}");
        assert_eq!(server.post("/rerank", &body).0, 200, "{flags:?}");
        // The form of Hugging Face's TEI is a list.
        let (status, list) = server.post("/rerank", r#"{"query": "a", "texts": ["b", "c d"]}"#);
        assert_eq!((status, list.as_array().map(Vec::len)), (200, Some(2)), "{list}");
        let tokens = server.post("/tokenize", r#"{"content": "b"}"#).1["tokens"].take();
        assert_eq!(tokens.as_array().map(Vec::len), Some(1), "{tokens}");
        assert_eq!(server.get("/props").1["total_slots"], 1);
        assert_eq!(metric(&server, "autoplace:answers_total"), 3.0);
        assert_eq!(server.post(VECTORS, r#"{"input": "a"}"#).0, 501, "{flags:?}");
    }
}

#[test]
fn a_server_of_vectors_is_configured_by_variables_and_guarded_by_keys() {
    let variables = [
        ("LLAMA_ARG_MODEL", FILE),
        ("LLAMA_ARG_EMBEDDINGS", "1"),
        ("LLAMA_ARG_POOLING", "last"),
        ("LLAMA_API_KEY", "sesame"),
    ];
    let server = Server::start_without_model(&variables, &["--port", "0", "--threads", "1"]);
    assert_eq!(server.post(VECTORS, r#"{"input": "a"}"#).0, 401);
    assert_eq!(server.get("/health").0, 200);
    assert!(server.said().contains("LLAMA_ARG_POOLING (--embeddings=last)"), "{}", server.said());
}

#[test]
fn what_a_server_of_vectors_cannot_do_is_refused_at_the_start() {
    let user = User::new();
    let refused = |args: &[&str], code: i32, part: &str| {
        let args = [&["serve", FILE, "--port", "0"], args].concat();
        let ended = user.command(&args).stdin(Stdio::null()).output().unwrap();
        let said = text(&ended.stderr);
        assert!(ended.status.code() == Some(code) && said.contains(part), "{args:?}: {said}");
    };
    refused(&["--embedding", "--pooling", "none"], 1, "--embeddings: with the pooling `none`");
    refused(&["--embedding", "--mmproj", FILE], 1, "--mmproj: with --embeddings");
    refused(&["--embedding", "--embed", FILE], 2, "cannot be used with");
    refused(&["--rerank", "--models-dir", "."], 2, "cannot be used with");
}
