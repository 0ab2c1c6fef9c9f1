//! A pool's server in this process. The demo model is in the pool under several names, and one of these computes
//! vectors.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use autoplace::Isolation;
use autoplace::chat::ChatTemplate;
use autoplace::machine::{Host, Machine};
use autoplace::memory::{FlashAttention, KvType, Pooling};
use autoplace::plan::Request;
use autoplace_openai::server::ManyModels;
use autoplace_openai::{Api, Server};
use autoplace_pool::{Limits, ModelHandle, ModelSpec, ModelStatus, Pool, PoolBuilder, Residence};
use serde_json::{Value, json};
use test_support::{demo_path, wait};
use tokio::sync::Notify;

struct Running {
    pool: Pool,
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(pool: PoolBuilder, change: impl FnOnce(Server<ManyModels>) -> Server<ManyModels>) -> Self {
        let pool = pool
            .isolation(Isolation::None)
            .machine(Machine::new(Host::new(8 << 30)))
            .patience(Duration::from_secs(120))
            .configure(|_, builder| builder.n_threads(1).without_learning())
            .start()
            .unwrap();
        let chatml = |_: &ModelHandle, api: Api| Ok(api.template(ChatTemplate::family("chatml").unwrap()));
        let server = change(Server::from_pool(pool.clone()).api(chatml));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let run = move || {
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                server.serve(listener, stopped.notified()).await;
            });
        };
        Self { pool, address, stop, thread: Some(thread::spawn(run)) }
    }

    fn agent() -> ureq::Agent {
        ureq::Agent::config_builder().http_status_as_error(false).build().into()
    }

    fn raw(&self, path: &str, body: &Value) -> ureq::http::Response<ureq::Body> {
        Self::agent().post(format!("http://{}{path}", self.address)).send_json(body).unwrap()
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut response = self.raw(path, body);
        (response.status().as_u16(), response.body_mut().read_json().unwrap())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let mut response = Self::agent().get(format!("http://{}{path}", self.address)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_json().unwrap_or(Value::Null))
    }

    fn state(&self, name: &str) -> Value {
        self.get(&format!("/v1/models/{name}")).1["status"]["value"].clone()
    }

    #[track_caller]
    fn until(&self, name: &str, state: &str) {
        wait(&format!("lets {name} be {state}"), || self.state(name) == state);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.notify_one();
        self.thread.take().map(JoinHandle::join);
    }
}

fn spec(name: &str) -> ModelSpec {
    ModelSpec::new(name, demo_path()).request(Request::new().n_ctx(256))
}

/// Two models that write texts, and one that computes vectors.
fn three() -> PoolBuilder {
    let vectors = ModelSpec::new("vectors", demo_path()).alias("ada").request(Request::new().embeddings(Pooling::Mean));
    Pool::builder().model(spec("a").alias("org/gpt-4o:latest")).model(spec("b")).model(vectors)
}

fn same(server: Server<ManyModels>) -> Server<ManyModels> {
    server
}

/// For each API its path, a body, and the field of the answer that contains the model's name.
fn surfaces() -> Vec<(&'static str, Value, &'static str)> {
    let said = json!([{"role": "user", "content": "Hello!"}]);
    vec![
        ("/v1/chat/completions", json!({"messages": said, "max_tokens": 4, "temperature": 0}), "choices"),
        ("/v1/completions", json!({"prompt": "In the beginning", "max_tokens": 4, "temperature": 0}), "choices"),
        ("/v1/responses", json!({"input": "Hello!", "max_output_tokens": 4, "temperature": 0}), "output"),
        ("/v1/responses/input_tokens", json!({"input": "Hello!"}), "input_tokens"),
        ("/v1/messages", json!({"messages": said, "max_tokens": 4, "temperature": 0}), "content"),
        ("/v1/messages/count_tokens", json!({"messages": said}), "input_tokens"),
        ("/v1/chat/completions/input_tokens", json!({"messages": said}), "input_tokens"),
        ("/tokenize", json!({"content": "In the beginning"}), "tokens"),
        ("/detokenize", json!({"tokens": [300, 301]}), "content"),
        ("/apply-template", json!({"messages": said}), "prompt"),
    ]
}

#[test]
fn each_surface_goes_to_the_model_that_it_names_and_answers_as_that_model_alone() {
    let server = Running::start(three(), same);
    for (path, body, field) in surfaces() {
        let answers = ["a", "org/gpt-4o:latest", "b"].map(|name| {
            let mut body = body.clone();
            body["model"] = name.into();
            let (status, answer) = server.post(path, &body);
            assert_eq!(status, 200, "{path}: {answer}");
            assert!(!answer[field].is_null(), "{path}: {answer}");
            answer
        });
        if answers[0].get("model").is_some() {
            // The answer contains the model's own name, even if the request used an alias.
            assert_eq!([&answers[0]["model"], &answers[1]["model"], &answers[2]["model"]], ["a", "a", "b"], "{path}");
        }
        for nobody in ["c", "../a", "/etc/passwd", "a/", "A"] {
            let mut body = body.clone();
            body["model"] = nobody.into();
            let (status, answer) = server.post(path, &body);
            assert_eq!(status, 404, "{path}: {answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(nobody), "{answer}");
        }
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("a, b, vectors"), "{answer}");
    }
    // The demo model's vocabulary has no fill-in-the-middle tokens.
    assert_eq!(server.post("/infill", &json!({"model": "a", "input_prefix": "a", "input_suffix": "b"})).0, 501);
    let (status, vectors) = server.post("/v1/embeddings", &json!({"model": "vectors", "input": ["a", "b"]}));
    assert_eq!((status, vectors["data"].as_array().map(Vec::len)), (200, Some(2)), "{vectors}");
    let (status, named) = server.post("/v1/embeddings", &json!({"model": "ada", "input": "a"}));
    assert_eq!((status, &named["model"]), (200, &json!("vectors")), "{named}");
    let (status, refused) = server.post("/v1/embeddings", &json!({"model": "a", "input": "a"}));
    assert_eq!(status, 404, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("`embed`"), "{refused}");
    assert_eq!(server.post("/v1/completions", &json!({"model": "vectors", "prompt": "a"})).0, 501);
    // It has the same vocabulary.
    let tokens = |model| server.post("/tokenize", &json!({"model": model, "content": "In the beginning"}));
    assert_eq!(tokens("vectors"), tokens("a"));
    assert_eq!(server.get("/props?model=vectors").1["model_alias"], "vectors");
    assert_eq!(server.get("/slots?model=vectors").1[0]["is_processing"], false);
    assert_eq!(server.get("/metrics?model=vectors").0, 200);
}

#[test]
fn llama_servers_native_paths_take_the_model_from_the_query() {
    let server = Running::start(three(), same);
    assert_eq!(server.get("/props").1["role"], "router");
    assert_eq!(server.get("/slots").0, 400);
    // These requests do not load the model.
    for path in ["/slots?model=a", "/metrics?model=a", "/props?model=a&autoload=false"] {
        let (status, answer) = server.get(path);
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("model_not_loaded")), "{path}");
    }
    assert_eq!(server.state("a"), "unloaded");
    let (status, props) = server.get("/props?model=org%2Fgpt-4o%3Alatest");
    assert_eq!((status, &props["model_alias"]), (200, &json!("a")), "{props}");
    assert_eq!(server.get("/slots?model=a").1.as_array().map(Vec::len), Some(1));
    assert_eq!(server.get("/lora-adapters?model=a"), (200, json!([])));
    assert_eq!(server.post("/lora-adapters?model=a", &json!([])), (200, json!({"success": true})));
    assert_eq!(server.get("/slots?model=b").0, 400);
    assert_eq!(server.get("/slots?model=nobody").0, 404);
    let text = |path: &str| {
        let mut response = Running::agent().get(format!("http://{}{path}", server.address)).call().unwrap();
        response.body_mut().read_to_string().unwrap()
    };
    assert!(text("/metrics?model=a").contains("llamacpp:tokens_predicted_total"));
    let all = text("/metrics");
    for line in ["autoplace:model_loaded{model=\"a\"} 1", "autoplace:model_loaded{model=\"b\"} 0"] {
        assert!(all.contains(line), "no {line} in {all}");
    }
}

#[test]
fn a_path_that_no_model_has_loads_none() {
    let server = Running::start(three(), same);
    let body = json!({"model": "a", "prompt": "a"});
    for path in ["/v1/complete", "/v1/completions/", "/v1/images/generations", "/chat"] {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 404, "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("POST /v1/completions"), "{answer}");
    }
    assert_eq!([server.get("/favicon.ico?model=a").0, server.get("/v1/completions?model=a").0], [404, 405]);
    assert_eq!(server.post("/slots", &body).0, 405);
    assert!(server.pool.status().iter().all(|model| model.residence == Residence::Unloaded));
    assert!(server.pool.last_plan().is_none());
}

#[test]
fn the_body_names_the_model_before_the_path_does() {
    let server = Running::start(three(), same);
    let (status, vectors) = server.post("/v1/embeddings?model=a", &json!({"model": "ada", "input": "a"}));
    assert_eq!((status, &vectors["model"]), (200, &json!("vectors")), "{vectors}");
    let (status, vectors) = server.post("/v1/embeddings?model=ada", &json!({"input": "a"}));
    assert_eq!((status, &vectors["model"]), (200, &json!("vectors")), "{vectors}");
    let (status, text) = server.post("/v1/completions?model=b", &json!({"model": "a", "prompt": "a", "max_tokens": 1}));
    assert_eq!((status, &text["model"]), (200, &json!("a")), "{text}");
    assert_eq!(server.post("/v1/completions?model=a", &json!({"model": "nobody", "prompt": "a"})).0, 404);
}

#[test]
fn models_are_listed_loaded_and_unloaded_as_by_llama_servers_router() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF, but no more").unwrap();
    let server = Running::start(three().model(ModelSpec::new("broken", broken)), same);
    let (_, listed) = server.get("/v1/models");
    assert_eq!(server.get("/models").1, listed);
    let of =
        |field: &str| listed["data"].as_array().unwrap().iter().map(|entry| entry[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("id"), ["a", "b", "vectors", "broken"]);
    assert_eq!(of("status"), vec![json!({"value": "unloaded"}); 4]);
    assert_eq!(listed["data"][0]["aliases"], json!(["org/gpt-4o:latest"]));

    assert_eq!(server.post("/models/load", &json!({"model": "a"})), (200, json!({"success": true})));
    server.until("a", "loaded");
    let (_, model) = server.get("/v1/models/a");
    assert_eq!(model["meta"]["n_ctx"], 256, "{model}");
    wait("is used by nobody", || server.get("/v1/models/a").1["in_use"] == 0);
    assert!(model["placement"]["held"]["host"].as_u64().unwrap() > 0, "{model}");
    assert_eq!(server.post("/models/load", &json!({"model": "a"})).0, 400, "it is loaded");
    assert_eq!(server.post("/models/unload", &json!({"model": "a"})), (200, json!({"success": true})));
    server.until("a", "unloaded");
    assert_eq!(server.post("/models/unload", &json!({"model": "a"})).0, 400, "it is not loaded");
    for path in ["/models/load", "/models/unload"] {
        assert_eq!(server.post(path, &json!({"model": "nobody"})).0, 404);
        assert_eq!(server.post(path, &json!({"model": 5})).0, 400);
        assert_eq!(server.post(path, &json!([])).0, 400);
        assert_eq!(server.post(path, &json!({})).0, 400, "which one?");
    }

    // If a model cannot be loaded, that is an error only for requests that name it.
    let asked = |name: &str| server.post("/v1/completions", &json!({"model": name, "prompt": "a", "max_tokens": 2}));
    let (status, error) = asked("broken");
    assert_eq!((status, &error["error"]["code"]), (500, &json!("model_not_loaded")), "{error}");
    let (_, model) = server.get("/v1/models/broken");
    assert_eq!((&model["status"]["value"], &model["status"]["failed"]), (&json!("unloaded"), &json!(true)), "{model}");
    assert!(model["status"]["error"].as_str().unwrap().contains("broken.gguf"), "{model}");
    assert_eq!(asked("b").0, 200);
    let (_, health) = server.get("/health");
    assert_eq!((&health["status"], &health["models"], &health["loaded"]), (&json!("ok"), &json!(4), &json!(1)));
}

/// The lines of a stream.
fn lines(response: ureq::http::Response<ureq::Body>) -> Vec<String> {
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    BufReader::new(response.into_body().into_reader()).lines().map(Result::unwrap).collect()
}

#[test]
fn a_stream_that_waits_for_its_model_says_so_and_is_then_the_same() {
    let server = Running::start(three(), |server| server.streams_after(Duration::ZERO));
    let said = json!([{"role": "user", "content": "Hello!"}]);
    let body = json!({"model": "a", "messages": said, "max_tokens": 6, "temperature": 0, "stream": true});
    let text = |lines: &[String]| {
        let data = lines.iter().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        data.map(|data| {
            let chunk: Value = serde_json::from_str(data).unwrap();
            chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
        })
        .collect::<String>()
    };
    let waited = lines(server.raw("/v1/chat/completions", &body));
    assert!(waited[0].starts_with(": a ") && waited[0].contains(" s so far"), "{waited:?}");
    assert!(waited.iter().any(|line| line.starts_with(": a is loaded after ")), "{waited:?}");
    assert_eq!(waited.last().map(String::as_str), Some(""));
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let mut response = server.raw("/v1/chat/completions", &whole);
    let header: f64 = response.headers()["x-autoplace-waited"].to_str().unwrap().parse().unwrap();
    assert!(header >= 0.0);
    let answer: Value = response.body_mut().read_json().unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], text(&waited));

    // Once the stream has begun, an error is sent as an event, in the API's form.
    for (path, body, event) in [
        ("/v1/chat/completions", json!({"messages": said, "temperature": "hot"}), "data: {\"error\":"),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": -5}), "data: {\"error\":"),
        ("/v1/messages", json!({"messages": said, "max_tokens": "many"}), "event: error"),
        ("/v1/responses", json!({"input": "a", "temperature": "hot"}), "event: error"),
        ("/v1/chat/completions", json!({"messages": said, "model": "nobody"}), "data: {\"error\":"),
    ] {
        server.pool.unload("b").unwrap();
        server.until("b", "unloaded");
        let mut body = body;
        body["stream"] = true.into();
        if body.get("model").is_none() {
            body["model"] = "b".into();
        }
        let mut response = server.raw(path, &body);
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let told = response.body_mut().read_to_string().unwrap();
        // If the name is unknown, the request is refused at once, and no stream begins.
        if kind == "application/json" {
            assert!(told.contains("nobody"), "{told}");
            continue;
        }
        assert!(told.starts_with(": b ") && told.contains(&format!("\n\n{event}")), "{path}: {told}");
    }
}

/// The paths whose answers can be streams, each with a body, and with a part of the error by which a stopping server
/// ends a stream.
fn streams() -> [(&'static str, Value, &'static str); 5] {
    let said = json!([{"role": "user", "content": "Hello!"}]);
    let of_openai = "\n\ndata: {\"error\":";
    [
        ("/v1/chat/completions", json!({"messages": said}), of_openai),
        ("/v1/completions", json!({"prompt": "a"}), of_openai),
        ("/v1/responses", json!({"input": "a"}), "\n\nevent: error\ndata: {"),
        ("/v1/messages", json!({"messages": said, "max_tokens": 4}), "\n\nevent: error\ndata: {"),
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b"}), of_openai),
    ]
}

/// Sends a request in another thread. The thread returns the status and the whole text of the answer, and panics if the
/// connection breaks before the answer's end.
fn client(server: &Running, path: &str, body: &Value, stream: bool) -> JoinHandle<(u16, String)> {
    let (url, mut body) = (format!("http://{}{path}", server.address), body.clone());
    (body["model"], body["stream"]) = ("a".into(), stream.into());
    thread::spawn(move || {
        let mut answer = Running::agent().post(url).send_json(body).unwrap();
        let text = answer.body_mut().read_to_string().expect("the answer ends as HTTP demands");
        (answer.status().as_u16(), text)
    })
}

#[test]
fn a_stopped_server_ends_requests_that_wait_for_their_model_with_an_error() {
    let limit = Duration::from_secs(1);
    let server = Running::start(three(), |server| server.timeout(limit).streams_after(Duration::ZERO));
    // A model that is to be unloaded gives no more handles, and it stays loaded for this one.
    let held = server.pool.get("a").wait().unwrap();
    assert!(server.pool.unload("a").unwrap());
    let clients: Vec<_> = streams()
        .into_iter()
        .flat_map(|(path, body, error)| [false, true].map(|stream| (path, body.clone(), stream, error)))
        .map(|(path, body, stream, error)| (path, stream, error, client(&server, path, &body, stream)))
        .collect();
    let pool = server.pool.clone();
    let waiting = || pool.status()[0].waiting as usize;
    wait("takes all requests", || waiting() == clients.len());
    // This stops the server, and waits until it has ended.
    drop(server);
    for (path, stream, error, client) in clients {
        let (status, text) = client.join().unwrap();
        let expected = match (stream, path) {
            (true, _) => 200,
            (false, "/v1/messages") => 529,
            (false, _) => 503,
        };
        let word = if path == "/v1/messages" { "overloaded_error" } else { "shutting_down" };
        let is_right = status == expected && text.contains(word) && text.contains("the server is stopping");
        assert!(is_right, "{path}, stream {stream}: {status} {text}");
        assert!(!stream || text.starts_with(": a is in use") && text.contains(error), "{path}: {text}");
    }
    // The pool loads nothing for a request that has ended.
    assert_eq!(waiting(), 0);
    drop(held);
    wait("unloads the model", || pool.status()[0].residence == Residence::Unloaded);
}

#[test]
fn a_stopped_server_ends_a_stream_whose_model_begins_to_answer() {
    let (begins, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (of_server, ends) = (Arc::clone(&begins), Arc::clone(&is_over));
    // The model is loaded, and its routes are made until the client has its answer.
    let server = Running::start(three(), |server| {
        let server = server.timeout(Duration::from_secs(1)).streams_after(Duration::ZERO);
        server.api(move |_, api| {
            of_server.store(true, Ordering::Relaxed);
            wait("answers", || ends.load(Ordering::Relaxed));
            Ok(api)
        })
    });
    let client = client(&server, "/v1/completions", &json!({"prompt": "a"}), true);
    let client = thread::spawn(move || {
        let answer = client.join();
        is_over.store(true, Ordering::Relaxed);
        answer
    });
    wait("begins to answer", || begins.load(Ordering::Relaxed));
    drop(server);
    let (status, text) = client.join().unwrap().unwrap();
    assert_eq!(status, 200);
    assert!(text.starts_with(": a ") && text.contains("\n\ndata: {\"error\":"), "{text}");
    assert!(text.contains("the server is stopping"), "{text}");
}

#[test]
fn a_draft_model_of_the_file_drafts_and_the_text_is_the_one_without_it() {
    // Flash attention is off, because with it the results for many tokens are rounded in another way than for one.
    let mut request = Request::new().n_ctx(256);
    request.params.flash_attn = FlashAttention::Off;
    (request.params.type_k, request.params.type_v) = (KvType::F32, KvType::F32);
    let spec = |name: &str| spec(name).request(request.clone());
    let server = Running::start(Pool::builder().model(spec("plain")).model(spec("fast").draft(demo_path())), same);
    let text = |name: &str| {
        let body = json!({"model": name, "prompt": "And it came to pass", "max_tokens": 60, "temperature": 0});
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let (plain, fast) = (text("plain"), text("fast"));
    assert_eq!(plain["choices"][0]["text"], fast["choices"][0]["text"]);
    assert_eq!(plain["timings"]["draft_n"], Value::Null);
    let is_speculative = |name: &str| server.get(&format!("/slots?model={name}")).1[0]["speculative"].clone();
    assert_eq!(["plain", "fast"].map(is_speculative), [false, true]);
    assert!(fast["timings"]["draft_n_accepted"].as_u64().unwrap_or(0) > 0, "{fast}");
}

#[test]
fn stored_responses_belong_to_the_server_and_outlive_their_model() {
    let server = Running::start(three(), same);
    let (_, first) = server.post("/v1/responses", &json!({"model": "a", "input": "Hello!", "max_output_tokens": 3}));
    let id = first["id"].as_str().unwrap();
    server.pool.unload("a").unwrap();
    server.until("a", "unloaded");
    assert_eq!(server.get(&format!("/v1/responses/{id}")).1["id"], *id);
    let next = json!({"model": "b", "input": "And?", "previous_response_id": id, "max_output_tokens": 3});
    let (status, next) = server.post("/v1/responses", &next);
    assert_eq!((status, &next["previous_response_id"]), (200, &json!(id)), "{next}");
    assert_ne!(next["id"], *id);
    let url = format!("http://{}/v1/responses/{id}", server.address);
    assert_eq!(Running::agent().delete(&url).call().unwrap().status(), 200);
    assert_eq!(server.get(&format!("/v1/responses/{id}")).0, 404);
    // The ids of texts too are unique within the server.
    let ids = ["a", "b", "a", "b"].map(|model| {
        server.post("/v1/completions", &json!({"model": model, "prompt": "a", "max_tokens": 1})).1["id"].to_string()
    });
    let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), 4, "{ids:?}");
}

#[test]
fn a_text_that_runs_is_not_cut_off_by_an_unload_or_by_a_file_that_has_changed() {
    let server = Running::start(three(), same);
    let body = json!({"model": "a", "prompt": "In the beginning", "max_tokens": 200, "temperature": 0, "stream": true,
        "logit_bias": {"0": -1000, "1": -1000, "2": -1000}});
    let tokens = |read: &str| read.matches("\"text\":").count();
    let mut stream = server.raw("/v1/completions", &body).into_body().into_reader();
    let mut first = [0; 6];
    stream.read_exact(&mut first).unwrap();
    assert!(server.pool.unload("a").unwrap());
    let other = spec("a").request(Request::new().n_ctx(128));
    server.pool.set_models(vec![other, spec("c")], Limits::default()).unwrap();
    assert_eq!(server.post("/v1/completions", &json!({"model": "b", "prompt": "a"})).0, 404, "it is gone");
    let (status, answer) = server.post("/v1/completions", &json!({"model": "c", "prompt": "a", "max_tokens": 2}));
    assert_eq!(status, 200, "{answer}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    assert!(tokens(&rest) >= 199, "{}", tokens(&rest));
    // The name now belongs to the new specification.
    assert_eq!(server.post("/v1/completions", &json!({"model": "a", "prompt": "a", "max_tokens": 2})).0, 200);
    assert_eq!(server.get("/v1/models/a").1["meta"]["n_ctx"], 128);
    // A request keeps its model until the server has noticed that its whole answer was sent.
    wait("is used by nobody", || server.pool.status().iter().all(|model| model.in_use == 0));
    let is_loaded = |model: &ModelStatus| model.residence == Residence::Loaded;
    wait("forgets the former model", || server.pool.status().iter().filter(|model| is_loaded(model)).count() == 2);
}

#[test]
fn a_loaded_model_gets_another_name_and_template_and_its_texts_go_on() {
    let template = |handle: &ModelHandle, api: Api| {
        let family = handle.specification().template.clone().unwrap();
        Ok(api.template(ChatTemplate::family(&family).unwrap()))
    };
    let vectors = |name| ModelSpec::new(name, demo_path()).request(Request::new().embeddings(Pooling::Mean));
    let models = Pool::builder().model(spec("a").template("chatml")).model(vectors("v").template("chatml"));
    let server = Running::start(models, |server| server.api(template));
    let embedded = |name: &str| server.post("/v1/embeddings", &json!({"model": name, "input": "a"}));
    let prompt = |name: &str| {
        server.post("/apply-template", &json!({"model": name, "messages": [{"role": "user", "content": "Hello!"}]}))
    };
    let (before, vector) = (prompt("a"), embedded("v"));
    assert_eq!((before.0, vector.0), (200, 200));
    let since = || server.pool.status().into_iter().map(|model| model.since).collect::<Vec<_>>();
    let loaded = since();
    let body = json!({"model": "a", "prompt": "In the beginning", "max_tokens": 200, "stream": true,
        "logit_bias": {"0": -1000, "1": -1000, "2": -1000}});
    let mut stream = server.raw("/v1/completions", &body).into_body().into_reader();
    let mut first = [0; 6];
    stream.read_exact(&mut first).unwrap();
    let renamed = vec![spec("b").template("mistral"), vectors("w").template("mistral")];
    server.pool.set_models(renamed, Limits::default()).unwrap();
    // The context has one sequence, so this text follows the one that runs.
    let (status, answer) = server.post("/v1/completions", &json!({"model": "b", "prompt": "a", "max_tokens": 2}));
    assert_eq!((status, &answer["model"]), (200, &json!("b")), "{answer}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    let after = prompt("b");
    assert_eq!(after.0, 200, "{}", after.1);
    assert_ne!(after.1["prompt"], before.1["prompt"]);
    assert_eq!(embedded("w").1["data"], vector.1["data"]);
    assert_eq!(server.post("/v1/completions", &json!({"model": "a", "prompt": "a"})).0, 404);
    assert_eq!(since(), loaded, "nothing was loaded again");
}

#[test]
fn a_model_that_only_finishes_its_texts_takes_no_name_from_the_one_that_replaces_it() {
    let server = Running::start(Pool::builder().model(spec("a").alias("gpt-4o")), same);
    let held = server.pool.get("a").wait().unwrap();
    let other = spec("a").alias("gpt-4o").request(Request::new().n_ctx(128));
    server.pool.set_models(vec![other], Limits::default()).unwrap();
    // Both models are listed, but only one of them has these names.
    let (_, listed) = server.get("/v1/models");
    let listed = listed["data"].as_array().unwrap();
    let named = |name: &str| {
        let is_named = |it: &&Value| it["id"] == name || it["aliases"].as_array().unwrap().contains(&name.into());
        listed.iter().filter(is_named).count()
    };
    assert_eq!((listed.len(), named("a"), named("gpt-4o")), (2, 1, 1), "{listed:?}");
    for name in ["a", "gpt-4o"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).1["status"]["value"], "unloaded");
    }
    let replaced = server.pool.status().into_iter().find(|model| model.is_replaced).unwrap();
    assert_eq!(server.get(&format!("/v1/models/{}", replaced.name.replace(' ', "%20"))).0, 404);
    // The pool still has one model, so requests need no name.
    let (status, answer) = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 2}));
    assert_eq!((status, &answer["model"]), (200, &json!("a")), "{answer}");
    assert_eq!(server.get("/v1/models/gpt-4o").1["meta"]["n_ctx"], 128);
    drop(held);
}

#[test]
fn more_requests_than_can_be_under_way_are_refused_at_once() {
    // The text is so long that it runs until its reader goes.
    let endless = spec("a").request(Request::new().n_ctx(65_536));
    let server = Running::start(Pool::builder().model(endless).model(spec("b")), |server| server.requests(1));
    let body = json!({"model": "a", "prompt": "a", "max_tokens": 60_000, "stream": true, "ignore_eos": true});
    let mut stream = server.raw("/v1/completions", &body).into_body().into_reader();
    let mut first = [0; 6];
    stream.read_exact(&mut first).unwrap();
    let (status, refused) = server.post("/v1/completions", &json!({"model": "b", "prompt": "a"}));
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("overloaded")));
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.get("/v1/models").0, 200);
    drop(stream);
    let short = json!({"model": "b", "prompt": "a", "max_tokens": 1});
    wait("is answered", || server.post("/v1/completions", &short).0 == 200);
}

#[test]
fn a_pool_has_keys_and_one_page() {
    let server = Running::start(three(), |server| {
        let server = server.key("secret").and_then(|server| server.key("another")).unwrap();
        server.page(|pool| format!("<p>{} models</p>", pool.status().len()))
    });
    assert_eq!(server.get("/health").0, 200);
    for path in ["/v1/models", "/metrics", "/props", "/", "/v1/models/a", "/slots?model=a"] {
        assert_eq!(server.get(path).0, 401, "{path}");
    }
    assert_eq!(server.post("/models/load", &json!({"model": "a"})).0, 401);
    assert_eq!(server.post("/v1/completions", &json!({"model": "a", "prompt": "a"})).0, 401);
    assert_eq!(server.pool.status()[0].residence, Residence::Unloaded);
    let url = format!("http://{}/", server.address);
    for key in ["secret", "another"] {
        let mut page = Running::agent().get(&url).header("authorization", format!("Bearer {key}")).call().unwrap();
        assert_eq!(page.headers()["refresh"], "5");
        assert_eq!(page.body_mut().read_to_string().unwrap(), "<p>3 models</p>");
    }
}
