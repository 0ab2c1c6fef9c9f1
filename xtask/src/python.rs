//! Python environments for checks, and downloads of pinned packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup;
use crate::workspace::{Workspace, run};

/// The interpreter of an environment that has exactly the pinned packages of a requirements file. If the file changes,
/// the environment is made again.
pub(crate) fn environment(workspace: &Workspace, requirements: &str) -> Result<PathBuf> {
    let pinned = workspace.root.join(requirements);
    let name = pinned.parent().and_then(|folder| folder.file_name());
    let name = name.with_context(|| format!("{requirements} lies in no folder"))?;
    let folder = workspace.target.join("python").join(name);
    let program = interpreter(&folder);
    let stamp = folder.join("requirements.txt");
    if fs::read(&stamp).ok() != Some(fs::read(&pinned)?) {
        let python = setup::python()?;
        // `--clear` removes the packages of an earlier list.
        run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&folder))?;
        let install = ["-m", "pip", "install", "--quiet", "--no-compile", "--requirement"];
        run(Command::new(&program).args(install).arg(&pinned))?;
        fs::copy(&pinned, &stamp)?;
    }
    Ok(program)
}

/// Downloads the packages of a requirements file, which pins them by checksum, without building them. Returns an
/// interpreter that can unpack them. Existing files are checked instead of downloaded again.
pub(crate) fn download(workspace: &Workspace, requirements: &str, options: &[&str], to: &Path) -> Result<PathBuf> {
    let folder = workspace.target.join("python/pip");
    let program = interpreter(&folder);
    if !program.is_file() {
        run(Command::new(setup::python()?).args(["-m", "venv", "--clear"]).arg(&folder))?;
    }
    let mut download = Command::new(&program);
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]).args(options);
    run(download.arg("--dest").arg(to).arg("--requirement").arg(workspace.root.join(requirements)))?;
    Ok(program)
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}
