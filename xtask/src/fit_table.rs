//! `fit-table`: compares placements with llama.cpp's own fit for models of every kind. The GPU check does the
//! comparison, with its own llama.cpp.

use anyhow::Result;

use crate::setup;
use crate::workspace::{Workspace, run};

/// Compares all models, or those whose names contain one of the words. Fails if a plan is worse.
pub(crate) fn fit_table(workspace: &Workspace, words: &[String]) -> Result<()> {
    setup::native()?;
    let package = "--package=autoplace-gpu-check";
    let mut program = workspace.cargo(&["run", "--release", package, "--", "fit-table"]);
    run(program.args(words))
}
