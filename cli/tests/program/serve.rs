//! Clients of `autoplace serve`. Some are refused, some read slowly, and some disconnect.

use std::process::Stdio;
use std::thread;

use crate::cli_support::{User, fails, text};
use crate::server::{CHAT, FILE, MODEL, Server, TEXT, read_until, rest};
use serde_json::{Value, json};

/// The length of a context and of a text in it. Generating the text takes longer than all clients here wait.
const LONG: &str = "65536";
const TOKENS: u32 = 65_000;

/// A request for a text that goes on to the end of its context.
fn endless(tokens: u32, more: &Value) -> String {
    // With this bias, no token can end the text: neither `</s>`, nor another token that comes before the vocabulary's
    // first word.
    let bias = json!({"0": -1000, "1": -1000, "2": -1000});
    let mut body = json!({"prompt": "In the beginning", "max_tokens": tokens, "logit_bias": bias, "seed": 1});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body.to_string()
}

#[test]
fn answers_are_the_same_with_and_without_isolation() {
    let args = ["--ctx", "512", "--embed", FILE, "--alias", "bible", "--isolated"];
    let servers = [&args[..6], &args].map(Server::start);
    let said = json!([{"role": "user", "content": "Hello!"}]);
    let chat = json!({"model": "bible", "max_tokens": 9, "temperature": 0, "messages": said});
    let [here, there] = servers.each_ref().map(|server| {
        assert!(server.address.starts_with("127.0.0.1:"), "this machine alone");
        let (status, health) = server.get("/health");
        assert_eq!((status, &health["status"]), (200, &json!("ok")));
        let (_, models) = server.get("/v1/models");
        let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
        assert_eq!(ids, ["bible", MODEL]);
        assert_eq!(server.get("/v1/models/bible").1, models["data"][0]);
        let asked = [
            (CHAT, chat.to_string(), "choices"),
            (TEXT, endless(5, &json!({"logprobs": 2})), "choices"),
            ("/v1/embeddings", r#"{"input": ["a", "b c d"]}"#.to_owned(), "data"),
        ];
        let answers = asked.map(|(place, body, part)| {
            let (status, mut answer) = server.post(place, &body);
            assert_eq!(status, 200, "{answer}");
            (answer[part].take(), answer["usage"].take(), answer["object"].take())
        });
        server.until("all have ended", |engine| engine["running"] == 0);
        answers
    });
    assert_eq!((&here[0].1["completion_tokens"], &here[0].2), (&json!(9), &json!("chat.completion")));
    assert!(here[1].0[0]["logprobs"]["top_logprobs"][4].is_object(), "{here:?}");
    let width = |index: usize| here[2].0[index]["embedding"].as_array().unwrap().len();
    assert_eq!(width(0), width(1), "a vector for each text, whatever the pooling");
    assert_eq!(there, here);
    faults_are_refused_alike(&servers);
}

/// Sends requests that contain faults. Every fault must be reported as an error of the client, whether the server or a
/// worker finds it.
fn faults_are_refused_alike(servers: &[Server; 2]) {
    let text = |more: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        (TEXT, body)
    };
    let chat = |content: Value| (CHAT, json!({"messages": [{"role": "user", "content": content}]}));
    let faults = [
        text(json!({"prompt": "word ".repeat(2000)})),
        text(json!({"prompt": "word ".repeat(200_000)})),
        text(json!({"prompt": [1, 2, 1_000_000]})),
        text(json!({"prompt": [1, -7]})),
        text(json!({"logprobs": 1_000_000})),
        text(json!({"logit_bias": {"1000000": 1}})),
        text(json!({"top_p": 2})),
        text(json!({"mirostat": 7})),
        text(json!({"repeat_penalty": -1})),
        text(json!({"json_schema": {"type": "nothing"}})),
        text(json!({"json_schema": false})),
        text(json!({"lora": [{"id": 3, "scale": 1.0}]})),
        chat(json!("word ".repeat(2000))),
        chat(json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])),
        ("/v1/embeddings", json!({"input": "word ".repeat(2000)})),
        ("/v1/embeddings", json!({"input": []})),
        ("/tokenize", json!({"content": [1_000_000], "with_pieces": true})),
        ("/detokenize", json!({"tokens": [1_000_000]})),
    ];
    for (place, body) in faults {
        let body = body.to_string();
        let [here, there] = servers.each_ref().map(|server| server.post(place, &body));
        let shown = &body[..body.len().min(200)];
        assert_eq!(here.0, 400, "{place} {shown}: {}", here.1);
        assert_eq!(there, here, "{place} {shown}");
    }
}

#[test]
fn refusals_have_the_form_of_the_api() {
    let server = Server::start(&["--ctx", "512"]);
    let error = |(status, body): (u16, Value)| {
        let error = &body["error"];
        assert!(error["message"].is_string() && error["type"] == "invalid_request_error", "{body}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{body}");
        (status, error["param"].clone(), error["code"].clone())
    };
    let plain = |status: u16| (status, Value::Null, Value::Null);
    for malformed in ["", "{", "[]", "\u{0}", &"[".repeat(1 << 16)] {
        assert_eq!(error(server.post(CHAT, malformed)), plain(400), "{malformed}");
        assert_eq!(error(server.post(TEXT, malformed)), plain(400), "{malformed}");
    }
    // The body is only a little larger than 16 MiB. If the server leaves much of a body unread, the client may not get
    // the answer.
    let oversized = format!("{{\"prompt\": \"{}\"}}", "a".repeat(16 << 20));
    assert_eq!(error(server.post(TEXT, &oversized)), plain(413));
    let long = json!({"prompt": "word ".repeat(200_000)}).to_string();
    assert_eq!(error(server.post(TEXT, &long)), (400, json!("prompt"), json!("context_length_exceeded")));
    let other = r#"{"model": "other", "prompt": "a"}"#;
    assert_eq!(error(server.post(TEXT, other)), (404, json!("model"), json!("model_not_found")));
    assert_eq!(error(server.get("/v1/models/a/b")), (404, json!("model"), json!("model_not_found")));
    assert_eq!(error(server.get("/v1/nothing")), plain(404));
    assert_eq!(error(server.get(CHAT)), plain(405));
    assert_eq!(error(server.post("/v1/embeddings", "{}")), plain(404), "none is loaded");

    // A page of another site can make a browser send such a request.
    let form = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    assert!(rest(&server.connected(form)).starts_with("HTTP/1.1 415"));
    assert_eq!(server.engine()["generated_tokens"], 0);
}

#[test]
fn a_browser_sees_the_server_at_its_root() {
    let server = Server::start(&["--parallel", "2", "--ctx", "1024", "--alias", "<b>&demo"]);
    assert_eq!(server.post(TEXT, r#"{"prompt": "a", "max_tokens": 3, "ignore_eos": true}"#).0, 200);
    let page = server.raw(&["GET / HTTP/1.1", "host: localhost"]);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("\r\nrefresh: 5\r\n"), "{page}");
    let shown = [
        "<title>&lt;b&gt;&amp;demo</title>",
        "<td>model for clients</td><td>&lt;b&gt;&amp;demo</td>",
        "<td>answers under way</td><td>0 of 2</td>",
        "<td>answers given</td><td>1</td>",
        "<td>tokens written</td><td>3</td>",
        "<td>speed now</td><td>0.0 tok/s</td>",
        "the sentinel",
        "<svg ",
        "autoplace demo",
    ];
    for part in shown {
        assert!(page.contains(part), "no {part}: {page}");
    }
    // The page contains no script, no resource from elsewhere, and no path of this machine.
    let addresses = page.matches("http").count();
    assert!(!page.contains("<script") && addresses == page.matches("xmlns=\"http://www.w3.org").count(), "{page}");
    assert!(!page.contains(env!("CARGO_MANIFEST_DIR")), "{page}");
}

#[test]
fn a_full_queue_is_reported_at_once() {
    let server = Server::start(&["--parallel", "1", "--queue", "1", "--ctx", LONG]);
    let running = server.sent(TEXT, &endless(TOKENS, &json!({})));
    server.until("the first runs", |health| health["running"] == 1);
    let waiting = server.sent(TEXT, &endless(1, &json!({})));
    server.until("the second waits", |health| health["queued"] == 1);
    let (status, body) = server.post(TEXT, r#"{"prompt": "a"}"#);
    assert_eq!((status, &body["error"]["code"]), (503, &json!("overloaded")));
    drop(running);
    assert!(rest(&waiting).contains("\"finish_reason\":\"length\""));
}

#[test]
fn a_client_that_disconnects_frees_its_place() {
    let server = Server::start(&["--parallel", "1", "--ctx", LONG]);
    let freed = |it: &Value| it["running"] == 0 && it["queued"] == 0;

    let streaming = server.sent(TEXT, &endless(TOKENS, &json!({"stream": true})));
    read_until(&streaming, "data: ");
    let waiting = server.sent(TEXT, &endless(TOKENS, &json!({})));
    server.until("the second waits", |health| health["queued"] == 1);
    drop(waiting);
    server.until("it has left the queue", |health| health["queued"] == 0);
    drop(streaming);
    let after = server.until("the stream has ended", freed);
    assert!(after["generated_tokens"].as_u64().unwrap() < u64::from(TOKENS), "{after}");

    let whole = server.sent(TEXT, &endless(TOKENS, &json!({})));
    server.until("it runs", |health| health["running"] == 1);
    drop(whole);
    let at_the_end = server.until("it has ended", freed);
    assert!(at_the_end["generated_tokens"].as_u64().unwrap() < 2 * u64::from(TOKENS), "{at_the_end}");
}

#[test]
fn a_slow_reader_stalls_nobody_and_loses_nothing() {
    let server = Server::start(&["--parallel", "1", "--ctx", "2560"]);
    // The data of each token are so long that the system's buffers cannot contain them all.
    let slow = server.sent(TEXT, &endless(2200, &json!({"stream": true, "logprobs": 128})));
    read_until(&slow, "data: ");
    for _ in 0..3 {
        let (status, answer) = server.post(TEXT, &endless(8, &json!({})));
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(8)));
    }
    let engine = server.engine();
    assert!(engine["generated_tokens"].as_u64().unwrap() < 2200, "{engine}");
    let read = rest(&slow);
    assert_eq!(read.matches("\"text\":").count(), 2200 + 1, "a chunk for each token, and the end");
    assert!(read.contains("\"finish_reason\":\"length\"") && read.contains("data: [DONE]"));
}

#[test]
#[cfg(unix)]
fn running_answers_are_finished_before_the_server_ends() {
    let mut server = Server::start(&["--parallel", "2", "--ctx", "2048"]);
    let streaming = server.sent(TEXT, &endless(1000, &json!({"stream": true})));
    read_until(&streaming, "data: ");
    server.interrupt();
    let read = thread::scope(|scope| scope.spawn(|| rest(&streaming)).join()).unwrap();
    assert!(read.contains("\"finish_reason\":\"length\"") && read.contains("data: [DONE]"));
    assert_eq!(server.wait().code(), Some(0));
    assert!(std::net::TcpStream::connect(&server.address).is_err(), "it listens no more");
}

#[test]
#[cfg(unix)]
fn a_server_runs_although_nobody_reads_where_it_listens() {
    let user = User::new();
    let (served, port) = (0..20)
        .find_map(|_| {
            // Another program may take the port before the server does.
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = user.command(&["serve", FILE, "--ctx", "512", "--threads", "1", "--port"]);
            command.arg(port.to_string()).stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
            let mut server = test_support::running::Running(command.spawn().unwrap());
            let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            test_support::wait("listens or ends", || server.try_wait().unwrap().is_some() || listens());
            let ended = server.try_wait().unwrap();
            assert!(ended.is_none_or(|status| status.code() == Some(1)), "{ended:?}");
            ended.is_none().then_some((server, port))
        })
        .expect("a free port");
    let url = format!("http://127.0.0.1:{port}/v1/completions");
    let body = json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true});
    let answer: Value = ureq::post(url).send_json(&body).unwrap().body_mut().read_json().unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    drop(served);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_under_stdout_is_an_error_in_one_line() {
    for verb in [&["serve", FILE, "--port", "0"][..], &["run", FILE, "a"], &["chat", FILE, "-p", "a"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let user = User::new();
        let mut command = user.command(&[verb, &["--ctx", "512", "--threads", "1", "--template", "chatml"]].concat());
        let output = command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let said = text(&output.stderr);
        let is_right = said.lines().any(|line| line.starts_with("error: cannot write to stdout: "));
        assert!(output.status.code() == Some(1) && is_right, "{verb:?}: {said}");
    }
}

#[test]
#[cfg(unix)]
fn a_second_ctrl_c_ends_the_server_and_it_does_not_crash() {
    for _ in 0..5 {
        let mut server = Server::start(&["--parallel", "2", "--ctx", LONG]);
        let running = [1, 2].map(|_| server.sent(TEXT, &endless(TOKENS / 2, &json!({"stream": true}))));
        running.iter().for_each(|stream| read_until(stream, "data: "));
        server.interrupt();
        test_support::wait("listens no more", || std::net::TcpStream::connect(&server.address).is_err());
        server.interrupt();
        let status = server.wait();
        assert_eq!(status.code(), Some(130), "{status:?}");
    }
}

#[test]
fn a_failure_to_start_is_one_line() {
    let serve = |args: &[&str], code, word| fails(&[&["serve", FILE, "--port", "0"], args].concat(), code, &[word]);
    fails(&["serve", "nothing.gguf", "--port", "0"], 1, &["nothing.gguf"]);
    serve(&["--template", "nothing"], 1, "nothing");
    fails(&["serve", FILE, "--port", "65536"], 2, &["65536"]);
    serve(&["--host", "somewhere"], 2, "somewhere");
    serve(&["-np", "0"], 2, "parallel");
    serve(&["--host", "192.0.2.1", "--without-key"], 1, "192.0.2.1");
    serve(&["--host", "0.0.0.0"], 1, "--api-key-file");
    serve(&["--api-key-file", "nothing.key"], 1, "nothing.key");
    serve(&["--alias", ","], 2, "--alias: the name is missing");
    serve(&["--api-key", ","], 2, "--api-key: the key is missing");
    serve(&["--api-key", "my secret"], 1, "--api-key: the key");
    // Keys from a file and from our variable are refused together, because the variable may be forgotten.
    let user = User::new();
    let keys = user.path("keys");
    let refused_in = |environment: &[(&str, &str)], args: &[&str], word: &str| {
        let mut command = user.command(&[&["serve", FILE, "--port", "0"], args].concat());
        let refused = command.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap();
        let error = text(&refused.stderr);
        assert!(refused.status.code() == Some(1) && error.contains(word), "{error}");
    };
    let key = ("AUTOPLACE_API_KEY", "sesame");
    refused_in(&[key], &["--api-key-file", FILE], "both --api-key-file and AUTOPLACE_API_KEY");
    for variable in ["AUTOPLACE_API_KEY", "LLAMA_API_KEY"] {
        refused_in(&[(variable, ", ")], &[], &format!("{variable} has no key"));
    }
    let file = keys.to_str().unwrap();
    for (written, word) in [("# none\n\n", "keys: it has no key"), ("sesame\nmy secret\n", "keys: line 2: the key")] {
        std::fs::write(&keys, written).unwrap();
        refused_in(&[], &["--api-key-file", file], word);
        refused_in(&[("LLAMA_ARG_API_KEY_FILE", file)], &[], word);
    }
}

#[test]
fn a_model_has_each_name_of_the_list_and_answers_have_the_first_in_the_alphabet() {
    let server = Server::start(&["--ctx", "512", "--alias", "psalter, bible", "-a", "book"]);
    let (_, listed) = server.get("/v1/models");
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
    let entry = &listed["data"][0];
    assert_eq!((&entry["id"], &entry["aliases"]), (&json!("bible"), &json!(["bible", "book", "psalter"])));
    for name in ["bible", "book", "psalter"] {
        let (status, answer) = server.post(TEXT, &json!({"model": name, "prompt": "a", "max_tokens": 1}).to_string());
        assert_eq!((status, &answer["model"]), (200, &json!("bible")), "{name}: {answer}");
        assert_eq!(server.get(&format!("/v1/models/{name}")).1, *entry);
    }
    assert_eq!(server.post(TEXT, &json!({"model": MODEL, "prompt": "a"}).to_string()).0, 404);
}
