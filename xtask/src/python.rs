//! Python with what a check needs of it, in an environment of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup;
use crate::workspace::{Workspace, run};

/// The interpreter of an environment with exactly the packages that a file of requirements pins. It is made once, and
/// again when the file changes.
pub(crate) fn environment(workspace: &Workspace, requirements: &str) -> Result<PathBuf> {
    let pinned = workspace.root.join(requirements);
    let name = pinned.parent().and_then(|folder| folder.file_name());
    let name = name.with_context(|| format!("{requirements} lies in no folder"))?;
    let folder = workspace.target.join("python").join(name);
    let program = match cfg!(windows) {
        true => folder.join("Scripts/python.exe"),
        false => folder.join("bin/python"),
    };
    let stamp = folder.join("requirements.txt");
    if fs::read(&stamp).ok() != Some(fs::read(&pinned)?) {
        let python = setup::python()?;
        // What an earlier list has brought must not stay.
        run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&folder))?;
        let install = ["-m", "pip", "install", "--quiet", "--no-compile", "--requirement"];
        run(Command::new(&program).args(install).arg(&pinned))?;
        fs::copy(&pinned, &stamp)?;
    }
    Ok(program)
}
