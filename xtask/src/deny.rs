//! `deny`: licences, duplicates and sources of what the workspace depends on, and advisories against it, by
//! cargo-deny; `deny.toml` says what may be.

use std::process::Command;

use anyhow::Result;

use crate::setup;
use crate::workspace::{Workspace, run};

const VERSION: &str = "0.20.2";

/// Fails for what may not be.
pub(crate) fn deny(workspace: &Workspace) -> Result<()> {
    let tool = setup::tool(workspace, "cargo-deny", VERSION)?;
    let deny =
        |arguments: &[&str]| run(Command::new(&tool).current_dir(&workspace.root).args(["--locked"]).args(arguments));
    deny(&["check", "licenses", "bans", "sources"])?;
    // The database is a repository of its own, which not every machine reaches.
    if let Err(error) = deny(&["fetch", "db"]) {
        eprintln!("warning: nothing was compared with the advisories: {error:#}");
        return Ok(());
    }
    deny(&["--offline", "check", "advisories"])
}
