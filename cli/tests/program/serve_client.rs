//! Clients of other authors, in Python and JavaScript, that use `autoplace serve`.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli_support::text;
use crate::server::{FILE, Server};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

#[test]
#[ignore = "wants OpenAI's client: `cargo xtask test clients` installs it, and runs this"]
fn the_official_client_finds_the_api_as_it_knows_it() {
    let python = std::env::var_os("AUTOPLACE_PYTHON").expect("AUTOPLACE_PYTHON is set");
    // `cargo xtask real` sets this variable to the file of a real model.
    let file = std::env::var("AUTOPLACE_CLIENT_MODEL").unwrap_or_else(|_| FILE.to_owned());
    let model = std::path::Path::new(&file).file_stem().and_then(|name| name.to_str()).expect("a model's file");
    let server =
        Server::start_with(&file, &["--template", "chatml", "--embed", &file, "--parallel", "8", "--ctx", "4096"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/client.py");
    let url = server.url("");
    let mut client = Command::new(python);
    client.args([script, &url, model]);
    if file == FILE {
        client.arg("demo");
    }
    let output = client.output().expect("Python starts");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("all as the API has it"), "{said}");
}

/// A template that shows tools. It describes the marks that most models write around calls.
const SHOWS_TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/tools.jinja");

/// A projector of random weights for the demo model, with which clients can send pictures.
fn projector() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file");
    mmproj::named("Small LLaVA").write_sparse(file.path()).expect("it is written");
    fill(file.path());
    file
}

/// Each line of `AUTOPLACE_CLIENTS` contains an interpreter, a file, and how many tokens of context the program needs.
/// For each trial, a program prints a line of JSON. If `AUTOPLACE_CLIENTS_REPORT` names a file, these lines are written
/// to it.
#[test]
#[ignore = "wants the clients: `cargo xtask clients` installs all of them, `cargo xtask test clients` those of most people"]
fn small_programs_of_clients_find_the_api_as_they_know_it() {
    let programs = std::env::var("AUTOPLACE_CLIENTS").expect("AUTOPLACE_CLIENTS is set");
    let file = std::env::var("AUTOPLACE_CLIENT_MODEL").unwrap_or_else(|_| FILE.to_owned());
    let model = std::path::Path::new(&file).file_stem().and_then(|name| name.to_str()).expect("a model's file");
    let is_demo = file == FILE;
    let projector = projector();
    let sees = projector.path().to_str().expect("a text");
    let more: &[&str] = if is_demo { &["--template", SHOWS_TOOLS, "--mmproj", sees] } else { &[] };
    let start = |context: &str| {
        let args = ["--embed", &file, "--parallel", "2", "--ctx", context];
        Server::start_with(&file, &[more, &args].concat())
    };
    let mut server: Option<(String, Server)> = None;
    let (mut report, mut failed) = (String::new(), Vec::new());
    for line in programs.lines() {
        let [with, program, context] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let (_, server) = match server.take().filter(|(size, _)| size == context) {
            Some(running) => server.insert(running),
            None => server.insert((context.to_owned(), start(context))),
        };
        let mut command = Command::new(with);
        // The clients must not send requests to other servers.
        command.args([program, &server.url(""), model]).stdin(Stdio::null()).env("CREWAI_DISABLE_TELEMETRY", "true");
        command.envs([
            ("OTEL_SDK_DISABLED", "true"),
            ("HAYSTACK_TELEMETRY_ENABLED", "False"),
            ("OPENAI_API_KEY", "none"),
            // Only the demo model certainly has a projector.
            ("AUTOPLACE_CLIENT_SEES", if is_demo { "1" } else { "0" }),
        ]);
        let output = command.output().expect("it starts");
        let said = text(&output.stdout) + &text(&output.stderr);
        let trials = text(&output.stdout);
        let trials = trials.lines().filter_map(|line| Some((line, serde_json::from_str::<Value>(line).ok()?)));
        let trials: Vec<(&str, Value)> = trials.filter(|(_, trial)| trial.get("tried").is_some()).collect();
        for (line, trial) in &trials {
            let [client, surface, tried] =
                ["client", "surface", "tried"].map(|name| trial[name].as_str().unwrap_or("?"));
            println!("{client}, {surface}, {tried}: {}", trial["error"].as_str().unwrap_or("as the API has it"));
            report += &format!("{line}\n");
        }
        let is_right = trials.iter().all(|(_, trial)| trial["error"].is_null()) && !trials.is_empty();
        if !(is_right && output.status.success()) {
            failed.push(format!("{program}: {}: {said}", output.status));
        }
    }
    if let Some(file) = std::env::var_os("AUTOPLACE_CLIENTS_REPORT") {
        std::fs::write(file, report).expect("the report is written");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
