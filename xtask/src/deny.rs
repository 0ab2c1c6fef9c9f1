//! `deny`: runs cargo-deny on the dependencies, with the rules of `deny.toml`: licences, duplicates, sources and
//! advisories.

use std::process::Command;

use anyhow::Result;

use crate::setup;
use crate::workspace::{Workspace, run};

const VERSION: &str = "0.20.2";

/// Fails for a violation of `deny.toml`.
pub(crate) fn deny(workspace: &Workspace) -> Result<()> {
    let tool = setup::tool(workspace, "cargo-deny", VERSION)?;
    let deny =
        |arguments: &[&str]| run(Command::new(&tool).current_dir(&workspace.root).args(["--locked"]).args(arguments));
    deny(&["check", "licenses", "bans", "sources"])?;
    // The database of advisories is a separate repository, which some machines cannot reach.
    if let Err(error) = deny(&["fetch", "db"]) {
        eprintln!("warning: nothing was compared with the advisories: {error:#}");
        return Ok(());
    }
    deny(&["--offline", "check", "advisories"])
}
