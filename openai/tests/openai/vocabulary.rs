//! The other requests that llama-server's clients send, besides those for answers: for tokens, for prompts, for facts
//! about the server, and for its metrics.

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::memory::Pooling;
use autoplace_openai::RerankRequest;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use test_support::embedding_models::reranker;
use test_support::{demo_path, wait};

fn server() -> Server {
    Server::start(512, ChatTemplate::family("chatml").unwrap())
}

/// The status and the body of an answer.
fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let request = ureq::post(server.url(path)).config().http_status_as_error(false).build();
    let mut response = request.send_json(body).unwrap();
    (response.status().as_u16(), response.body_mut().read_json().unwrap())
}

fn text(server: &Server, path: &str) -> String {
    ureq::get(server.url(path)).call().unwrap().body_mut().read_to_string().unwrap()
}

#[test]
fn a_text_becomes_tokens_and_tokens_become_the_text() {
    let server = server();
    for said in ["And it came to pass", "", "\u{e4}\u{1f600} \n\t", "<|im_start|>user"] {
        let tokens = server.post("/tokenize", &json!({"content": said}))["tokens"].clone();
        let text = server.post("/detokenize", &json!({"tokens": tokens}))["content"].clone();
        // This vocabulary puts a space before each text.
        let text = text.as_str().unwrap();
        assert_eq!(text.strip_prefix(' ').unwrap_or(text), said, "{tokens}");
        let pieces = server.post("/tokenize", &json!({"content": said, "with_pieces": true}))["tokens"].clone();
        let pieces = pieces.as_array().unwrap().iter();
        let bytes: Vec<u8> = pieces
            .flat_map(|piece| match &piece["piece"] {
                Value::String(text) => text.clone().into_bytes(),
                bytes => serde_json::from_value(bytes.clone()).unwrap(),
            })
            .collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
    let plain = server.post("/tokenize", &json!({"content": "a b"}))["tokens"].clone();
    let special = server.post("/tokenize", &json!({"content": "a b", "add_special": true}))["tokens"].clone();
    assert!(special.as_array().unwrap().ends_with(plain.as_array().unwrap()));
    let mixed = server.post("/tokenize", &json!({"content": [7, "a b"]}))["tokens"].clone();
    assert_eq!(mixed, json!([&[json!(7)], &plain.as_array().unwrap()[..]].concat()));
    for (path, body, param) in [
        ("/tokenize", json!({"content": "a".repeat(2 << 20)}), "content"),
        ("/tokenize", json!({"content": "a b ".repeat(60_000), "with_pieces": true}), "with_pieces"),
        ("/tokenize", json!({"content": 3}), "content"),
        ("/tokenize", json!({"content": [1_000_000], "with_pieces": true}), "content[0]"),
        ("/tokenize", json!({"content": ["a b", 1_000_000]}), "content[1]"),
        ("/tokenize", json!({"content": ["a b", -1], "with_pieces": true}), "content[1]"),
        ("/tokenize", json!({"content": vec!["a"; 4097]}), "content"),
        ("/detokenize", json!({"tokens": [1, -1]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
    ] {
        let (status, answer) = post(&server, path, &body);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    }
}

#[test]
fn the_prompt_of_a_chat_can_be_seen_and_counted_before_it_is_computed() {
    let server = server();
    let body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1});
    let prompt = server.post("/apply-template", &body)["prompt"].clone();
    assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    let counted = server.post("/v1/chat/completions/input_tokens", &body);
    let used = server.post("/v1/chat/completions", &body)["usage"]["prompt_tokens"].clone();
    assert_eq!(counted, json!({"object": "response.input_tokens", "input_tokens": used}));
    let (status, answer) = post(&server, "/apply-template", &json!({"messages": []}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages")));
}

#[test]
fn facts_about_the_server_contain_no_path_and_no_text() {
    let server = server();
    server.post("/v1/completions", &json!({"prompt": "mellon mellon", "max_tokens": 4}));
    let props = server.get("/props");
    assert_eq!((&props["total_slots"], &props["default_generation_settings"]["n_ctx"]), (&json!(1), &json!(512)));
    assert_eq!((&props["model_alias"], &props["model_path"]), (&json!(MODEL), &json!(MODEL)));
    assert!(props["chat_template"].as_str().unwrap().contains("<|im_start|>"), "{props}");
    assert!(props["default_generation_settings"]["params"]["temperature"].is_number(), "{props}");
    let slots = server.get("/slots");
    assert_eq!(slots, json!([{"id": 0, "n_ctx": 512, "speculative": false, "is_processing": false}]));
    assert_eq!(server.get("/slots?fail_on_no_slot=1"), slots);
    assert_eq!(server.get("/models"), server.get("/v1/models"));
    let metrics = text(&server, "/metrics");
    for seen in [props.to_string(), slots.to_string(), metrics] {
        assert!(!seen.contains("mellon") && !seen.contains(&*demo_path().to_string_lossy()), "{seen}");
    }
}

#[test]
fn metrics_count_what_was_computed_by_the_names_of_llama_server() {
    let server = server();
    let value = |text: &str, name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    let before = text(&server, "/metrics");
    assert_eq!(value(&before, "llamacpp:tokens_predicted_total"), 0.0);
    let body = json!({"prompt": "And it came to pass", "max_tokens": 5, "temperature": 0});
    let [first, again] = [(); 2].map(|()| server.post("/v1/completions", &body)["timings"].clone());
    assert!(again["cache_n"].as_f64() > Some(0.0) && first["predicted_n"] == 5, "{first} {again}");
    server.until_idle();
    let after = text(&server, "/metrics");
    let sum = |name: &str| first[name].as_f64().unwrap() + again[name].as_f64().unwrap();
    assert_eq!(value(&after, "llamacpp:tokens_predicted_total"), 10.0);
    assert_eq!(value(&after, "llamacpp:prompt_tokens_total"), sum("prompt_n"));
    assert_eq!(value(&after, "llamacpp:prompt_tokens_cached_total"), sum("cache_n"));
    assert_eq!(value(&after, "autoplace:answers_total"), 2.0);
    assert!((value(&after, "llamacpp:prompt_seconds_total") - sum("prompt_ms") / 1e3).abs() < 1e-3);
    assert_eq!(value(&after, "llamacpp:requests_processing"), 0.0);
    assert!(after.ends_with("# EOF\n") && after.contains("# TYPE llamacpp:tokens_predicted counter"), "{after}");
}

#[test]
fn who_asks_for_a_free_slot_is_refused_while_there_is_none() {
    let server = Server::start(65_536, ChatTemplate::family("chatml").unwrap());
    let status = |path: &str| {
        let request = ureq::get(server.url(path)).config().http_status_as_error(false).build();
        request.call().unwrap().status().as_u16()
    };
    assert_eq!(status("/slots?fail_on_no_slot=1"), 200);
    // This text would run for a long time. It ends when its connection does.
    let body = json!({"prompt": "In the beginning", "max_tokens": 60_000, "ignore_eos": true, "stream": true});
    let text = ureq::post(server.url("/v1/completions")).send_json(&body).unwrap();
    wait("is busy", || status("/slots?fail_on_no_slot=1") == 503);
    assert_eq!(status("/slots"), 200);
    drop(text);
    wait("is free again", || status("/slots?fail_on_no_slot=1") == 200);
}

#[test]
fn documents_are_ordered_by_their_scores_in_each_shape() {
    let folder = tempfile::tempdir().unwrap();
    let path = test_support::random_weights::write(&reranker(autoplace::gguf::TensorType::F32), folder.path());
    let model = Model::builder(&path).embeddings(Pooling::Rank).n_threads(1).load().unwrap();
    let mut embedder = model.embedder().unwrap();
    let documents = ["the moon pulls the sea", "a stone", "the warm sea"];
    let scores = embedder.rerank("tide on the river", &documents).unwrap();
    let mut order: Vec<usize> = (0..3).collect();
    order.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
    let mut answer = |more: Value| {
        let mut body = json!({"query": "tide on the river"});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        RerankRequest::read(body.to_string().as_bytes(), "ranker").and_then(|request| request.answer(&mut embedder))
    };
    let jina = answer(json!({"documents": documents, "model": "ranker"})).unwrap();
    let indices = |results: &Value| -> Vec<usize> {
        results.as_array().unwrap().iter().map(|result| result["index"].as_u64().unwrap() as usize).collect()
    };
    assert_eq!(indices(&jina["results"]), order);
    assert!(jina["usage"]["total_tokens"].as_u64() > Some(0) && jina["results"][0]["relevance_score"].is_number());
    let objects = json!(documents.map(|text| json!({"text": text})));
    let two = answer(json!({"documents": objects, "top_n": 2, "return_documents": true})).unwrap();
    assert_eq!(indices(&two["results"]), order[..2]);
    assert_eq!(two["results"][0]["document"]["text"], documents[order[0]]);
    let tei = answer(json!({"texts": documents, "return_text": true})).unwrap();
    assert_eq!(indices(&tei), order);
    assert_eq!((&tei[0]["text"], tei[0]["score"].is_number()), (&json!(documents[order[0]]), true));
    let scores = answer(json!({"texts": documents})).unwrap();
    assert_eq!((indices(&scores), scores[0].get("text")), (order, None));
    for (more, param) in [
        (json!({}), "documents"),
        (json!({"documents": []}), "documents"),
        (json!({"documents": vec!["a"; 2049]}), "documents"),
        (json!({"documents": [3]}), "documents[0]"),
        (json!({"documents": ["a"], "query": 3}), "query"),
        (json!({"documents": ["a"], "model": "other"}), "model"),
        (json!({"documents": ["a"], "max_tokens_per_doc": 3}), "max_tokens_per_doc"),
        (json!({"documents": ["a", "sea ".repeat(3000)]}), "documents[1]"),
        (json!({"texts": ["a".repeat(1 << 20)]}), "texts[0]"),
    ] {
        assert_eq!(answer(more).unwrap_err().param.as_deref(), Some(param));
    }
    // The document has few enough bytes, but its tokens together with those of the question are too many.
    let error = answer(json!({"documents": ["a", "sea ".repeat(190)]})).unwrap_err();
    assert_eq!((error.param.as_deref(), error.code), (Some("documents[1]"), Some("context_length_exceeded")));
    assert!(error.message.contains("tokens long with its query"), "{}", error.message);
    let server = server();
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let (status, answer) = post(&server, path, &json!({"query": "a", "documents": ["b"]}));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 404 && message.contains("--reranker"), "{path}: {answer}");
    }
}
