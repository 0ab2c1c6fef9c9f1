//! `fit-params`: how long llama.cpp's own fit takes beside `autoplace plan`, and whether our placements of a mixture of experts are at
//! least as fast. `benches/fit-params` measures and compares; this builds it, and the program that it starts. It lies outside the
//! workspace, because it compiles a second llama.cpp: minutes, once.
//!
//! `fit-table`: the placements of both for models of every kind, which the GPU check compares with the one llama.cpp that it has.

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::workspace::{Workspace, run};

/// Times that each side runs per file, by turns; with 0 the placements alone are compared.
const ROUNDS: u32 = 7;

pub(crate) fn fit_params(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let rounds = match arguments {
        [] => ROUNDS,
        [rounds] => rounds.parse().context("the number of rounds is a number")?,
        _ => bail!("usage: cargo xtask fit-params [ROUNDS]"),
    };
    setup::native()?;
    // llama-cpp-sys-2 makes its bindings when it is built.
    setup::libclang()?;
    // As criterion builds what it measures.
    run(&mut workspace.cargo(&[
        "build",
        "--profile=bench",
        "--package=autoplace",
        "--features=autoplace/cli",
        "--bin=autoplace",
    ]))?;
    let program = workspace
        .target
        .join("release")
        .join(format!("autoplace{}", std::env::consts::EXE_SUFFIX));
    run(workspace
        .cargo(&[
            "run",
            "--release",
            "--locked",
            "--manifest-path=benches/fit-params/Cargo.toml",
            "--",
        ])
        .env("CARGO_TARGET_DIR", workspace.target.join("fit-params"))
        .arg(program)
        .arg(rounds.to_string()))
}

/// Compares all models, or those whose names have one of the words. Fails where a plan is behind.
pub(crate) fn fit_table(workspace: &Workspace, words: &[String]) -> Result<()> {
    setup::native()?;
    let package = "--package=autoplace-gpu-check";
    let mut program = workspace.cargo(&["run", "--release", package, "--", "fit-table"]);
    run(program.args(words))
}
