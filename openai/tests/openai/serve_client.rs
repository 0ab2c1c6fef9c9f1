//! OpenAI's own client, in Python, against the example `serve`.

use std::process::Command;

use crate::server::{FILE, MODEL, Server};

#[test]
#[ignore = "wants OpenAI's client: `cargo xtask test clients` installs it, and runs this"]
fn the_official_client_finds_the_api_as_it_knows_it() {
    let python = std::env::var_os("AUTOPLACE_PYTHON").expect("AUTOPLACE_PYTHON is set");
    let server = Server::start(&["--embed", FILE, "--at-once", "8", "--ctx", "512"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/client.py");
    let url = server.url("");
    let output = Command::new(python).args([script, &url, MODEL]).output();
    let output = output.expect("Python starts");
    let said = crate::program::text(&output.stdout) + &crate::program::text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("all as the API has it"), "{said}");
}
