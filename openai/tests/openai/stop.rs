//! The stop of a server while answers are running.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace_openai::{Api, Server};
use serde_json::{Value, json};
use test_support::{demo_path, wait};

use crate::server::{MODEL, Server as Running};

/// A server whose context has room for one text at a time.
fn start(timeout: Duration) -> Running {
    let model = Model::builder(demo_path()).n_ctx(16_384).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let mut sampling = model.sampling();
    // With this bias, the model ends no text: `</s>` and its other tokens before the first word are not chosen.
    sampling.logit_bias.extend([0, 1, 2].map(|token| (token, -1000.0)));
    let api = Api::new(&model, &engine, MODEL).template(ChatTemplate::family("chatml").unwrap()).sampling(sampling);
    Running::run(Server::new(api).timeout(timeout), &engine)
}

/// The status and the text of an answer, whole or streamed. Panics if the connection breaks before the answer's end.
fn answer(url: String, body: &Value) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent.post(url).send_json(body).unwrap();
    let text = answer.body_mut().read_to_string().expect("the answer ends as HTTP demands");
    (answer.status().as_u16(), text)
}

#[test]
fn a_stopped_server_ends_answers_with_an_error_after_its_limit() {
    // The limit is also the one of a request's head, which a busy machine may read late. Each text takes much longer.
    let server = start(Duration::from_secs(1));
    let said = json!([{"role": "user", "content": "a"}]);
    let bodies = [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 15_000})),
        ("/v1/chat/completions", json!({"messages": said, "max_tokens": 15_000})),
        ("/v1/messages", json!({"model": MODEL, "messages": said, "max_tokens": 15_000})),
        ("/v1/responses", json!({"model": MODEL, "input": said, "max_output_tokens": 15_000})),
    ];
    // This client never reads: it doesn't keep the server from stopping.
    let mut silent = TcpStream::connect(server.url("").strip_prefix("http://").unwrap()).unwrap();
    let body = json!({"prompt": "a", "stream": true, "logprobs": 100, "max_tokens": 15_000});
    let body = body.to_string();
    let head = format!("host: localhost\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    silent.write_all(format!("POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n{body}").as_bytes()).unwrap();
    wait("runs the first text", || server.engine.metrics().running == 1);
    let clients: Vec<_> = bodies
        .iter()
        .flat_map(|(path, body)| [false, true].map(|stream| (*path, body.clone(), stream)))
        .map(|(path, mut body, stream)| {
            body["stream"] = stream.into();
            let url = server.url(path);
            (path, stream, thread::spawn(move || answer(url, &body)))
        })
        .collect();
    let is_taken = || {
        let metrics = server.engine.metrics();
        metrics.running + metrics.queued == 1 + 2 * bodies.len()
    };
    wait("takes all requests", is_taken);
    // This stops the server, and waits until it has ended.
    drop(server);
    for (path, stream, client) in clients {
        let (status, text) = client.join().unwrap();
        let (expected, words) = match (stream, path) {
            (true, "/v1/responses") => (200, "\"type\":\"response.failed\""),
            (true, "/v1/messages") => (200, "\"type\":\"overloaded_error\""),
            (true, _) => (200, "\"code\":\"shutting_down\""),
            (false, "/v1/messages") => (529, "\"type\":\"overloaded_error\""),
            (false, _) => (503, "\"code\":\"shutting_down\""),
        };
        let is_right = status == expected && text.contains(words) && text.contains("the server is stopping");
        assert!(is_right, "{path}, stream {stream}: {status} {text}");
    }
}

#[test]
fn a_stopped_server_lets_answers_finish_within_its_limit() {
    let server = start(Duration::from_secs(600));
    let body = json!({"prompt": "a", "stream": true, "max_tokens": 200});
    let mut answer = ureq::post(server.url("/v1/completions")).send_json(&body).unwrap().into_body().into_reader();
    answer.read_exact(&mut [0]).unwrap();
    let reader = thread::spawn(move || {
        let mut rest = String::new();
        answer.read_to_string(&mut rest).map(|_| rest)
    });
    drop(server);
    let rest = reader.join().unwrap().unwrap();
    assert!(rest.contains("[DONE]") && !rest.contains("error"), "{rest}");
}
