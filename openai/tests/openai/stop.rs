//! The stop of a server while answers are running.

use std::io::Read;
use std::time::Duration;

use autoplace::Model;
use autoplace::generate::Engine;
use autoplace_openai::{Api, Server};
use serde_json::json;
use test_support::demo_path;

use crate::server::{MODEL, Server as Running};

/// Starts a text of this many tokens, stops the server, and returns the rest of the answer.
fn rest_after_stop(timeout: Duration, tokens: u32) -> String {
    let model = Model::builder(demo_path()).n_ctx(16_384).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let server = Running::run(Server::new(Api::new(&model, &engine, MODEL)).timeout(timeout), &engine);
    let body = json!({"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": tokens});
    let mut answer = ureq::post(server.url("/v1/completions")).send_json(&body).unwrap().into_body().into_reader();
    answer.read_exact(&mut [0]).unwrap();
    let reader = std::thread::spawn(move || {
        let mut rest = Vec::new();
        // A closed connection is an error of the reader. The text that arrived before is kept.
        let _ = answer.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    });
    // This stops the server, and waits until it has ended.
    drop(server);
    reader.join().unwrap()
}

#[test]
fn a_stopped_server_cancels_answers_that_run_longer_than_its_limit() {
    // The limit is also the one of a request's head, which a busy machine may read late. The text takes much longer.
    let rest = rest_after_stop(Duration::from_secs(1), 15_000);
    assert!(!rest.contains("[DONE]"), "{} bytes", rest.len());
}

#[test]
fn a_stopped_server_lets_answers_finish_within_its_limit() {
    let rest = rest_after_stop(Duration::from_secs(600), 200);
    assert!(rest.contains("[DONE]"), "{rest}");
}
