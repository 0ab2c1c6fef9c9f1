//! Clients that send nothing more after their request: those that still read get their answer, and the texts of those
//! that have gone are cancelled.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use autoplace::Model;
use autoplace::generate::Engine;
use autoplace_openai::Api;
use serde_json::{Value, json};
use test_support::{demo_path, wait};

use crate::server::{MODEL, Server};

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// More tokens than are computed in the time of a test.
const ENDLESS: u64 = 60_000;

/// A server whose context has room for one text at a time. No text ends before it has all of its tokens.
fn start() -> Server {
    let model = Model::builder(demo_path()).n_ctx(65_536).n_threads(1).load().unwrap();
    let engine = Engine::new(&model).unwrap();
    let mut sampling = model.sampling();
    sampling.logit_bias.extend([0, 1, 2].map(|token| (token, -1000.0)));
    Server::serve(Api::new(&model, &engine, MODEL).sampling(sampling), &engine)
}

/// Sends a request for a text of so many tokens.
fn ask(server: &Server, tokens: u64, stream: bool) -> TcpStream {
    let body = json!({"prompt": "a", "max_tokens": tokens, "stream": stream}).to_string();
    send(server, &format!("POST /v1/completions HTTP/1.1\r\ncontent-length: {}", body.len()), &body)
}

fn send(server: &Server, head: &str, body: &str) -> TcpStream {
    let mut client = TcpStream::connect(server.url("").strip_prefix("http://").unwrap()).unwrap();
    let head = format!("{head}\r\nhost: localhost\r\ncontent-type: application/json\r\n\r\n{body}");
    client.write_all(head.as_bytes()).unwrap();
    client
}

fn sends_nothing_more(client: &TcpStream) {
    client.shutdown(Shutdown::Write).unwrap();
}

fn rest(mut client: TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

fn is_running(server: &Server) {
    wait("runs the text", || server.engine.metrics().running == 1);
}

#[test]
fn a_client_that_sends_nothing_more_gets_its_whole_answer() {
    let server = start();
    for is_begun in [false, true] {
        for stream in [false, true] {
            let client = ask(&server, 2000, stream);
            if is_begun {
                is_running(&server);
            }
            sends_nothing_more(&client);
            let answer = rest(client);
            // In a stream, comments take the place of this line.
            let answer = answer.trim_start_matches(CONTINUE);
            assert!(answer.starts_with("HTTP/1.1 200"), "{is_begun} {stream}: {answer}");
            if stream {
                assert!(answer.contains("\"finish_reason\":\"length\"") && answer.contains("data: [DONE]"), "{answer}");
            } else {
                let (_, body) = answer.split_once("\r\n\r\n").unwrap();
                let body: Value = serde_json::from_str(body).unwrap();
                assert_eq!(body["usage"]["completion_tokens"], 2000, "{body}");
            }
        }
    }
    // Requests without a body, and those that end before their body does.
    let client = send(&server, "GET /health HTTP/1.1", "");
    sends_nothing_more(&client);
    assert!(rest(client).contains("HTTP/1.1 200"));
    let client = send(&server, "POST /v1/completions HTTP/1.1\r\ncontent-length: 100", "{\"prompt\"");
    sends_nothing_more(&client);
    assert!(!rest(client).contains("HTTP/1.1 200"));
    // Two requests, one after the other.
    let mut client = send(&server, "GET /health HTTP/1.1", "");
    assert!(client.read(&mut [0; 1 << 16]).unwrap() > 0);
    client.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    sends_nothing_more(&client);
    assert!(rest(client).contains("HTTP/1.1 200"));
}

#[test]
fn the_text_of_a_client_that_has_gone_is_cancelled_however_it_has_gone() {
    let server = start();
    let is_cancelled = |before: u64| {
        server.until_idle();
        let metrics = server.engine.metrics();
        assert!(metrics.generated_tokens < before + ENDLESS, "{metrics:?}");
    };
    let generated = || server.engine.metrics().generated_tokens;
    for stream in [false, true] {
        // It goes at once, without having read anything, while its text runs.
        let before = generated();
        let client = ask(&server, ENDLESS, stream);
        is_running(&server);
        drop(client);
        is_cancelled(before);
        // It goes while its text waits for another one.
        let running = ask(&server, ENDLESS, false);
        is_running(&server);
        let client = ask(&server, ENDLESS, stream);
        wait("waits", || server.engine.metrics().queued == 1);
        drop(client);
        wait("waits no more", || server.engine.metrics().queued == 0);
        drop(running);
        is_cancelled(before);
    }
    // It sends nothing more, waits for its answer, has read all that came, and then goes.
    let before = generated();
    let mut client = ask(&server, ENDLESS, false);
    is_running(&server);
    sends_nothing_more(&client);
    let mut read = [0; CONTINUE.len()];
    client.read_exact(&mut read).unwrap();
    assert_eq!(read, CONTINUE.as_bytes());
    drop(client);
    is_cancelled(before);
}
