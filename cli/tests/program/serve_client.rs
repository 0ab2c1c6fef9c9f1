//! OpenAI's own client, in Python, against `autoplace serve`.

use std::process::Command;

use crate::cli_support::text;
use crate::server::{FILE, MODEL, Server};

#[test]
#[ignore = "wants OpenAI's client: `cargo xtask test clients` installs it, and runs this"]
fn the_official_client_finds_the_api_as_it_knows_it() {
    let python = std::env::var_os("AUTOPLACE_PYTHON").expect("AUTOPLACE_PYTHON is set");
    let server = Server::start(&["--embed", FILE, "--parallel", "8", "--ctx", "4096"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/client.py");
    let url = server.url("");
    let output = Command::new(python).args([script, &url, MODEL]).output();
    let output = output.expect("Python starts");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("all as the API has it"), "{said}");
}
