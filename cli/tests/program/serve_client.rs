//! Third-party clients in Python and JavaScript against `autoplace serve`.

use std::process::{Command, Stdio};

use crate::cli_support::text;
use crate::server::{FILE, MODEL, Server};

#[test]
#[ignore = "wants OpenAI's client: `cargo xtask test clients` installs it, and runs this"]
fn the_official_client_finds_the_api_as_it_knows_it() {
    let python = std::env::var_os("AUTOPLACE_PYTHON").expect("AUTOPLACE_PYTHON is set");
    // `cargo xtask real` sets real models.
    let file = std::env::var("AUTOPLACE_CLIENT_MODEL").unwrap_or_else(|_| FILE.to_owned());
    let model = std::path::Path::new(&file).file_stem().and_then(|name| name.to_str()).expect("a model's file");
    let server = Server::start_with(&file, &["--embed", &file, "--parallel", "8", "--ctx", "4096"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/client.py");
    let url = server.url("");
    let output = Command::new(python).args([script, &url, model]).output();
    let output = output.expect("Python starts");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("all as the API has it"), "{said}");
}

/// A template that shows tools and teaches the marks that most models write around calls.
const SHOWS_TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/tools.jinja");

#[test]
#[ignore = "wants the clients: `cargo xtask clients` installs all of them, `cargo xtask test clients` those of most people"]
fn small_programs_of_clients_find_the_api_as_they_know_it() {
    let programs = std::env::var("AUTOPLACE_CLIENTS").expect("AUTOPLACE_CLIENTS is set");
    let server = Server::start(&["--template", SHOWS_TOOLS, "--embed", FILE, "--parallel", "4", "--ctx", "4096"]);
    let mut failed = Vec::new();
    for line in programs.lines() {
        let (with, file) = line.split_once('\t').expect("an interpreter and a file");
        let mut command = Command::new(with);
        // The clients must not contact other servers.
        command.args([file, &server.url(""), MODEL]).stdin(Stdio::null()).env("CREWAI_DISABLE_TELEMETRY", "true");
        command.envs([
            ("OTEL_SDK_DISABLED", "true"),
            ("HAYSTACK_TELEMETRY_ENABLED", "False"),
            ("OPENAI_API_KEY", "none"),
        ]);
        let output = command.output().expect("it starts");
        let said = text(&output.stdout) + &text(&output.stderr);
        match output.status.success() && said.contains("as the API has it") {
            true => println!("{}", said.lines().find(|line| line.contains("as the API has it")).unwrap_or_default()),
            false => failed.push(format!("{file}: {said}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
