//! `fit-table`: compares our placements with llama.cpp's own fit for models of every kind (`benches/fit_table.rs`).

use anyhow::Result;

use crate::setup;
use crate::workspace::{Workspace, run};

/// Compares all models, or those whose names contain one of the words. Fails if a plan is worse.
pub(crate) fn fit_table(workspace: &Workspace, words: &[String]) -> Result<()> {
    setup::native()?;
    let mut bench = workspace.cargo(&["bench", "--package=autoplace-benches", "--bench=fit_table", "--"]);
    run(bench.args(words))
}
