//! `first-token`, `conversations`, `server-memory`: compares `autoplace serve` with llama.cpp's llama-server
//! (`cli/tests/program/beside`).

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::llama_tools;
use crate::selected::run_tests;
use crate::workspace::{Workspace, run};

/// The variable for a llama-server that is already built. It must have the options of our own build.
const BUILT: &str = "AUTOPLACE_LLAMA_SERVER";

/// Compiles both servers with the same options, or uses the llama-server in the environment variable, and runs the
/// test of this verb. The first argument is a model.
pub(crate) fn beside(workspace: &Workspace, verb: &str, arguments: &[String]) -> Result<()> {
    let (model, rest) = arguments.split_first().with_context(|| format!("usage: cargo xtask {verb} MODEL ..."))?;
    let model = std::path::absolute(model)?;
    ensure!(model.is_file(), "there is no model at {}", model.display());
    let given = [&[model.to_string_lossy().into_owned()], rest].concat().join("\n");
    run(&mut workspace.cargo(&["build", "--release", "--package=autoplace-cli"]))?;
    let suffix = std::env::consts::EXE_SUFFIX;
    let ours = workspace.target.join("release").join(format!("autoplace{suffix}"));
    let theirs = match std::env::var_os(BUILT) {
        Some(built) => std::path::absolute(PathBuf::from(built))?,
        None => llama_tools::build(workspace, &["llama-server"])?.join(format!("llama-server{suffix}")),
    };
    ensure!(theirs.is_file(), "there is no llama-server at {}", theirs.display());
    // Without `--package`, cargo resolves features as in `cargo test --workspace`, so both commands share their builds.
    let mut command = workspace.cargo(&["test", "--workspace", "--test=program", "--", "--ignored", "--nocapture"]);
    command.arg(format!("beside::{}::", verb.replace('-', "_")));
    run_tests(command.env("AUTOPLACE_BESIDE_ARGUMENTS", given).env("AUTOPLACE_SERVER", ours).env(BUILT, theirs))
}
