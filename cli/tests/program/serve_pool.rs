//! `autoplace serve` with several models, which come from a file, from a folder and from the command line. Each model
//! runs in a process of its own.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

use crate::cli_support::fails;
use crate::server::{CHAT, FILE, MODEL, PATIENCE, Server, TEXT};
#[cfg(unix)]
use crate::server::{read_until, rest};

/// A folder that contains `pool.toml` and models.
struct Place(tempfile::TempDir);

impl Place {
    fn new(pool: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write(pool);
        fs::create_dir(place.path("models")).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, pool: &str) {
        fs::write(self.path("pool.toml"), pool.replace("DEMO", FILE)).unwrap();
    }

    fn file(&self) -> String {
        self.path("pool.toml")
    }
}

const POOL: &str = r#"
[models.coder]
model = "DEMO"
ctx = 256
template = "chatml"
aliases = ["gpt-4o"]

[models.vectors]
model = "DEMO"
embed = "mean"
"#;

fn asked(model: &str, tokens: u32) -> String {
    json!({"model": model, "prompt": "In the beginning", "max_tokens": tokens, "temperature": 0}).to_string()
}

fn model(server: &Server, name: &str) -> Value {
    server.get(&format!("/v1/models/{name}")).1
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn models_of_a_file_a_folder_and_the_command_line_share_one_server() {
    let place = Place::new(POOL);
    fs::copy(FILE, place.path("models/small.gguf")).unwrap();
    fs::write(place.path("models/broken.gguf"), "GGUF, but no more").unwrap();
    let server = Server::start_pool(&[FILE, "--models", &place.file(), "--models-dir", &place.path("models")]);
    let (_, listed) = server.get("/v1/models");
    let mut names: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert!([MODEL, "coder", "small", "vectors"].iter().all(|name| names.contains(name)), "{names:?}");
    // A model on the command line is loaded at once, before a request names it.
    until("it is loaded in advance", || model(&server, MODEL)["status"]["value"] == "loaded");
    assert_eq!(model(&server, "coder")["status"]["value"], "unloaded");
    let texts = ["coder", "gpt-4o", "small", MODEL].map(|name| {
        let (status, answer) = server.post(TEXT, &asked(name, 6));
        assert_eq!(status, 200, "{name}: {answer}");
        answer["choices"][0]["text"].clone()
    });
    assert_eq!(texts, [&texts[0]; 4].map(Clone::clone), "one model under four names");
    let chat = json!({"model": "coder", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4});
    assert_eq!(server.post(CHAT, &chat.to_string()).0, 200, "its template is named in the file");
    let vectors = server.post("/v1/embeddings", r#"{"model": "vectors", "input": "a"}"#);
    assert_eq!(vectors.0, 200, "{}", vectors.1);
    // Each model runs in a process of its own.
    let processes = ["coder", "small", MODEL].map(|name| model(&server, name)["placement"]["process"].clone());
    assert!(processes.iter().all(Value::is_u64), "{processes:?}");
    assert!(processes[0] != processes[1] && processes[1] != processes[2], "{processes:?}");
    let page = server.raw(&["GET / HTTP/1.1", "host: localhost"]);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<td>coder</td><td>loaded</td>"), "{page}");
    assert!(!page.contains("<script"), "{page}");
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_the_file_and_the_folder_again_and_no_text_is_dropped() {
    let place = Place::new(POOL);
    let server = Server::start_pool(&["--models", &place.file(), "--models-dir", &place.path("models")]);
    let long = json!({"model": "coder", "prompt": "In the beginning", "max_tokens": 200, "stream": true,
        "logit_bias": {"0": -1000, "1": -1000, "2": -1000}});
    let stream = server.sent(TEXT, &long.to_string());
    read_until(&stream, "data: ");
    fs::copy(FILE, place.path("models/late.gguf")).unwrap();
    place.write(&POOL.replace("ctx = 256", "ctx = 128").replace("vectors", "other"));
    server.signal("-HUP");
    until("the new model is listed", || model(&server, "late")["id"] == "late");
    let read = rest(&stream);
    assert!(read.contains("\"finish_reason\":\"length\"") && read.contains("data: [DONE]"), "{read}");
    assert_eq!(server.post("/v1/embeddings", r#"{"model": "vectors", "input": "a"}"#).0, 404);
    assert_eq!(server.post("/v1/embeddings", r#"{"model": "other", "input": "a"}"#).0, 200);
    assert_eq!(server.post(TEXT, &asked("coder", 2)).0, 200);
    assert_eq!(model(&server, "coder")["meta"]["n_ctx"], 128);
    // If the file contains an error, nothing changes, and the error says in which line it is.
    place.write("[models.coder]\nmodel = \"DEMO\"\nctx = 1\n");
    server.signal("-HUP");
    until("it is said", || server.said().contains("pool.toml, line 3, `ctx`"));
    assert_eq!(server.post(TEXT, &asked("late", 2)).0, 200);
}

#[cfg(unix)]
#[test]
fn a_model_that_a_file_names_again_before_its_texts_have_ended_is_not_loaded_twice() {
    // The text is so long that it runs until its reader goes.
    let pool = POOL.replace("ctx = 256", "ctx = 65536");
    let place = Place::new(&pool);
    let server = Server::start_pool(&["--models", &place.file()]);
    let endless = json!({"model": "coder", "prompt": "a", "max_tokens": 60_000, "stream": true, "ignore_eos": true});
    let stream = server.sent(TEXT, &endless.to_string());
    read_until(&stream, "data: ");
    let process = || model(&server, "coder")["placement"]["process"].clone();
    let before = process();
    assert!(before.is_u64(), "{before}");
    place.write("[models.vectors]\nmodel = \"DEMO\"\nembed = \"mean\"\n");
    server.signal("-HUP");
    until("the model is removed", || model(&server, "coder")["id"].is_null());
    // It comes back with another template and another alias.
    place.write(&pool.replace("chatml", "mistral").replace("gpt-4o", "gpt-5"));
    for _ in 0..2 {
        server.signal("-HUP");
    }
    until("the model is back", || model(&server, "coder")["aliases"] == json!(["gpt-5"]));
    assert_eq!((process(), &model(&server, "coder")["in_use"]), (before.clone(), &json!(1)));
    drop(stream);
    assert_eq!(server.post(TEXT, &asked("gpt-5", 2)).0, 200);
    assert_eq!(process(), before);
    let chat = json!({"model": "coder", "messages": [{"role": "user", "content": "Hello!"}]});
    let prompt = server.post("/apply-template", &chat.to_string()).1["prompt"].to_string();
    assert!(prompt.contains("[INST]"), "{prompt}");
}

/// A folder on the network may not answer. Here the file is a pipe that nobody writes to.
#[cfg(unix)]
#[test]
fn ctrl_c_is_heard_while_a_hangup_reads_a_file_that_does_not_answer() {
    let place = Place::new(POOL);
    let mut server = Server::start_pool(&["--models", &place.file()]);
    fs::remove_file(place.file()).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place.file()).status().unwrap().success());
    for _ in 0..3 {
        server.signal("-HUP");
    }
    assert_eq!(server.post(TEXT, &asked("coder", 2)).0, 200);
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_server_and_the_processes_of_its_models() {
    let place = Place::new(POOL);
    let mut server = Server::start_pool(&["--models", &place.file()]);
    assert_eq!(server.post(TEXT, &asked("coder", 2)).0, 200);
    let process = model(&server, "coder")["placement"]["process"].to_string();
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0));
    until("its worker has ended", || !Path::new("/proc").exists() || !Path::new("/proc").join(&process).exists());
}

#[test]
fn flags_of_a_plan_are_what_the_file_leaves_open() {
    let place = Place::new(&(POOL.to_owned() + "[models.open]\nmodel = \"DEMO\"\n"));
    let server = Server::start_pool(&["--models", &place.file(), "--ctx", "192"]);
    for (name, n_ctx) in [("open", 192), ("coder", 256)] {
        assert_eq!(server.post(TEXT, &asked(name, 2)).0, 200, "{name}");
        assert_eq!(model(&server, name)["meta"]["n_ctx"], n_ctx, "{name}");
    }
}

#[test]
fn a_conversation_goes_on_from_its_folder_after_an_unload_and_a_reload() {
    let place = Place::new(POOL);
    let folder = place.path("prompts");
    let server = Server::start_pool(&["--models", &place.file(), "--cache-dir", &folder]);
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(6);
    let body = json!({"model": "coder", "prompt": prompt, "max_tokens": 8, "temperature": 0}).to_string();
    let text = || {
        let (status, answer) = server.post(TEXT, &body);
        assert_eq!(status, 200, "{answer}");
        (answer["choices"][0]["text"].clone(), answer["timings"]["cache_n"].as_u64().unwrap())
    };
    let (first, cached) = text();
    assert_eq!(cached, 0);
    assert_eq!(server.post("/models/unload", r#"{"model": "coder"}"#).0, 200);
    until("it is unloaded", || model(&server, "coder")["status"]["value"] == "unloaded");
    let (again, cached) = text();
    assert_eq!(again, first);
    assert!(cached > 32, "{cached}");
    // Only models that write texts have a store. Each store has a folder of its own.
    let folders: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(folders, ["coder"]);
}

#[cfg(unix)]
#[test]
fn a_killed_worker_takes_no_other_model_and_no_later_request_with_it() {
    let place = Place::new(&(POOL.to_owned() + "[models.b]\nmodel = \"DEMO\"\nctx = 256\n"));
    let server = Server::start_pool(&["--models", &place.file()]);
    let texts = ["coder", "b"].map(|name| server.post(TEXT, &asked(name, 8)).1["choices"][0]["text"].clone());
    let process = model(&server, "coder")["placement"]["process"].to_string();
    let kill = std::process::Command::new("kill").args(["-KILL", &process]).status();
    assert!(kill.unwrap().success());
    let again = ["b", "coder"].map(|name| {
        let (status, answer) = server.post(TEXT, &asked(name, 8));
        assert_eq!(status, 200, "{name}: {answer}");
        answer["choices"][0]["text"].clone()
    });
    assert_eq!([&again[1], &again[0]], [&texts[0], &texts[1]]);
}

/// Makes a folder with this name that contains the demo model, and with `sees` a projector too.
fn folder(place: &Place, name: &str, sees: bool) -> String {
    fs::create_dir(place.path(name)).unwrap();
    let model = place.path(&format!("{name}/{}.gguf", name.rsplit('/').next().unwrap_or(name)));
    fs::copy(FILE, &model).unwrap();
    if sees {
        let projector = place.path(&format!("{name}/mmproj-f16.gguf"));
        mmproj::named("Small LLaVA").write_sparse(&projector).unwrap();
        fill(projector.as_ref());
    }
    model
}

/// A picture of one pixel, as a BMP file in base64.
const PIXEL: &str = "Qk06AAAAAAAAADYAAAAoAAAAAQAAAAEAAAABABgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/wD/AA==";

#[test]
fn a_picture_goes_to_the_model_that_is_named_on_all_three_surfaces() {
    let place = Place::new("");
    let (seeing, blind) = (folder(&place, "seeing", true), folder(&place, "blind", false));
    folder(&place, "models/third", true);
    let named = place.path("seeing/mmproj-f16.gguf");
    place.write(&format!(
        "[models.named]\nmodel = \"{blind}\"\nmmproj = \"{named}\"\n[models.off]\nmodel = \"{seeing}\"\nmmproj = false\n"
    ));
    let (file, models) = (place.file(), place.path("models"));
    let more = ["--models", &file, "--models-dir", &models, "--template", "chatml", "-c", "512"];
    let server = Server::start_pool(&[&[seeing.as_str(), &blind][..], &more].concat());
    let url = format!("data:image/bmp;base64,{PIXEL}");
    let chat = |model: &str| {
        let parts =
            json!([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]);
        let body = json!({"model": model, "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": parts}]});
        server.post(CHAT, &body.to_string())
    };
    let (status, answer) = chat("seeing");
    assert_eq!(status, 200, "{answer}");
    let text = &answer["choices"][0]["message"]["content"];
    let source = json!({"type": "base64", "media_type": "image/bmp", "data": PIXEL});
    let parts = json!([{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]);
    let body =
        json!({"model": "seeing", "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": parts}]});
    let (status, answer) = server.post("/v1/messages", &body.to_string());
    assert_eq!((status, &answer["content"][0]["text"]), (200, text), "{answer}");
    let parts = json!([{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]);
    let body = json!({"model": "seeing", "max_output_tokens": 6, "temperature": 0, "input": [{"role": "user", "content": parts}]});
    let (status, answer) = server.post("/v1/responses", &body.to_string());
    assert_eq!((status, &answer["output"][0]["content"][0]["text"]), (200, text), "{answer}");
    // The file names the projector of one model. The projector of the other is found in the model's folder.
    for model in ["named", "third"] {
        let (status, answer) = chat(model);
        assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, text), "{model}: {answer}");
    }
    for model in ["blind", "off"] {
        let (status, answer) = chat(model);
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["param"], "messages[0].content[1].image_url", "{answer}");
    }
    assert!(server.said().contains("mmproj-f16.gguf"), "{}", server.said());
}

/// If a worker is killed, its text can continue in another worker, at most twice. After that, the request is sent to
/// the model once more.
#[cfg(unix)]
#[test]
fn a_request_whose_workers_are_killed_again_and_again_is_answered_all_the_same() {
    const KILLS: usize = 4;

    let place = Place::new("[models.a]\nmodel = \"DEMO\"\nctx = 4096\n");
    let server = Server::start_pool(&["--models", &place.file()]);
    let asked = json!({
        "model": "a", "prompt": "In the beginning", "max_tokens": 3000, "temperature": 0, "ignore_eos": true,
    });
    let (status, alone) = server.post(TEXT, &asked.to_string());
    assert_eq!(status, 200, "{alone}");
    let process = || model(&server, "a")["placement"]["process"].as_u64();
    thread::scope(|scope| {
        let answer = scope.spawn(|| server.post(TEXT, &asked.to_string()));
        let mut killed = Vec::new();
        until("the workers are killed", || model(&server, "a")["in_use"].as_u64() > Some(0));
        while killed.len() < KILLS {
            assert!(!answer.is_finished(), "the text has ended after {} kills", killed.len());
            if let Some(process) = process().filter(|process| !killed.contains(process)) {
                let kill = std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status();
                assert!(kill.unwrap().success());
                killed.push(process);
            }
        }
        let (status, answer) = answer.join().unwrap();
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["choices"][0]["text"], alone["choices"][0]["text"]);
    });
}

#[test]
fn a_failure_to_start_a_pool_is_one_line_that_names_the_cause() {
    let place = Place::new("[models.a]\nmodel = \"DEMO\"\ncontext = 5\n");
    let file = place.file();
    let serve = |args: &[&str], code, words: &[&str]| fails(&[&["serve", "--port", "0"], args].concat(), code, words);
    serve(&["--models", &file], 1, &["pool.toml, line 3, `context`", "`ctx`"]);
    serve(&["--models", &place.path("none.toml")], 1, &["none.toml"]);
    serve(&["--models-dir", &place.path("models")], 1, &["no model"]);
    serve(&["--models-dir", &place.path("nowhere")], 1, &["nowhere"]);
    serve(&[FILE, FILE], 1, &["another model is named"]);
    // Arguments that place one model are refused, because in a pool they are keys of the file.
    for one in [
        &["--alias", "x"][..],
        &["--device", "none"],
        &["--lora", "x.gguf"],
        &["--plan", "x.json"],
        &["--lora-init-without-apply"],
        &["--mmproj", "x.gguf"],
    ] {
        serve(&[&["--models", &file], one].concat(), 2, &[one[0]]);
    }
    place.write(POOL);
    serve(&["--models", &file, "--cache-ram", "auto"], 1, &["--cache-ram auto", "2GiB"]);
    fails(&["serve", "--port", "0"], 2, &["<MODEL>"]);
}
