//! `conformance`: compares the estimate with llama.cpp over the large grid, for the table in `docs/conformance.md`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::setup;
use crate::workspace::Workspace;

const BEGIN: &str = "<!-- cargo xtask conformance --write: begin -->\n";
const END: &str = "<!-- cargo xtask conformance --write: end -->\n";

/// Runs the large grid and prints its table. For each architecture, the table shows how far each quantity deviates from
/// llama.cpp's. With `write` it replaces the table in the document.
pub(crate) fn conformance(workspace: &Workspace, write: bool) -> Result<()> {
    let path = workspace.root.join("docs/conformance.md");
    // The document is read first, so that an error is reported before the minutes that the table takes.
    let (before, after) = document(&path)?;
    let table = table(workspace)?;
    print!("{table}");
    if !write {
        return Ok(());
    }
    std::fs::write(&path, format!("{before}{BEGIN}\n{table}\n{END}{after}"))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The text before and after the table.
fn document(path: &Path) -> Result<(String, String)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before.to_owned(), after.to_owned()))
    });
    parts.with_context(|| format!("{} has no place for the table", path.display()))
}

/// The table of the large grid. Fails if llama.cpp contradicts the estimate.
fn table(workspace: &Workspace) -> Result<String> {
    setup::native()?;
    // Without `--package`, cargo resolves features as in `cargo test --workspace`, and both commands share their
    // builds.
    let mut command = workspace.cargo(&["test", "--workspace"]);
    command.args(["--test=load", "--", "--ignored", "--nocapture", "conformance::"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        print!("{printed}");
        bail!("the estimate claims what llama.cpp does not allocate");
    }
    let rows = printed.lines().filter(|line| line.starts_with('|'));
    let table: String = rows.map(|row| format!("{row}\n")).collect();
    ensure!(!table.is_empty(), "the grid printed no table:\n{printed}");
    Ok(table)
}
