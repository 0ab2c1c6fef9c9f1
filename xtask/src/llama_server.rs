//! `llama-server`: runs tests against llama.cpp's own server. In these tests, `autoplace doctor --watch` observes the
//! server, and the endpoint client sends it requests.
//!
//! In: the server, compiled by `llama_tools`. Out: the output of the ignored tests of `cli/tests/program/cli_watch.rs`
//! and `openai/tests/openai/endpoint.rs`.

use anyhow::Result;

use crate::llama_tools;
use crate::selected::run_tests;
use crate::workspace::Workspace;

pub(crate) fn llama_server(workspace: &Workspace) -> Result<()> {
    let folder = llama_tools::build(workspace, &["llama-server"])?;
    let program = folder.join(format!("llama-server{}", std::env::consts::EXE_SUFFIX));
    let programs = ["--package=autoplace-cli", "--test=program", "--package=autoplace-openai", "--test=openai"];
    let mut test = workspace.cargo(&["test"]);
    test.args(programs);
    test.args(["--", "--ignored", "--nocapture", "a_real_llama_server"]);
    run_tests(test.env("AUTOPLACE_LLAMA_SERVER", program))
}
