//! `fit-table`: placements beside llama.cpp's own fit for models of every kind, which the GPU check compares with the
//! one llama.cpp that it has.

use anyhow::Result;

use crate::setup;
use crate::workspace::{Workspace, run};

/// Compares all models, or those whose names have one of the words. Fails where a plan is behind.
pub(crate) fn fit_table(workspace: &Workspace, words: &[String]) -> Result<()> {
    setup::native()?;
    let package = "--package=autoplace-gpu-check";
    let mut program = workspace.cargo(&["run", "--release", package, "--", "fit-table"]);
    run(program.args(words))
}
