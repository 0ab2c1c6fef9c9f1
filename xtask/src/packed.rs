//! Tests the example `packed` in the form that users get: one folder with program, runtime and model. The folder is
//! packed and then unpacked in a root folder that contains only the C library (no compiler, no Rust, no shell). The
//! program is run there.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::gpu_bundle::{copy, portable};
use crate::tree;
use crate::workspace::{Workspace, output};

const MODEL: &str = "examples/model/autoplace-demo-q8_0.gguf";
const PROMPT: &str = "And the king said unto his servants,";

/// Packs `program` with the runtime of a folder, and runs it.
pub(crate) fn packed(workspace: &Workspace, program: &Path, runtime: &Path) -> Result<()> {
    let folder = tree::afresh(workspace.target.join("runtime/packed"))?;
    copy(program, &folder.join("bin/packed"))?;
    tree::mirror(runtime, &folder.join("lib/autoplace-runtime"), &|_| true)?;
    copy(&workspace.root.join(MODEL), &folder.join("share/model.gguf"))?;
    let archive = tree::pack(workspace, &folder)?;
    println!("packed: {}, {} bytes", archive.display(), fs::metadata(&archive)?.len());

    let root = tree::afresh(workspace.target.join("runtime/root"))?;
    for empty in ["proc", "tmp"] {
        fs::create_dir_all(root.join(empty))?;
    }
    tree::unpack(&archive, &root)?;
    let libraries = tree::files(runtime)?.into_iter().map(|file| runtime.join(file));
    for file in libraries.filter(|file| portable::needs(file).is_ok()).chain([program.to_owned()]) {
        for needed in system_libraries(&file)? {
            copy(&needed, &root.join(needed.strip_prefix("/")?))?;
        }
    }
    let text = inside(&root, "/packed/bin/packed")?;
    let words = text.split_whitespace().count();
    ensure!(words > 5, "the packed application has printed `{text}`");
    println!(
        "packed: with a root folder of {} files, the application prints: {}",
        tree::files(&root)?.len(),
        text.trim()
    );
    Ok(())
}

/// The libraries that the loader takes from the system for a file.
fn system_libraries(file: &Path) -> Result<Vec<PathBuf>> {
    let listed = output(Command::new("ldd").arg(file))?;
    let paths = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let beside = file.parent().context("a file lies in a folder")?;
    Ok(paths.map(PathBuf::from).filter(|path| !path.starts_with(beside)).collect())
}

/// The program's answer to the prompt. It runs in its own root folder, without a network and without our environment.
fn inside(root: &Path, program: &str) -> Result<String> {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--net", "--fork", "--pid", "--mount-proc"]);
    command.arg(format!("--root={}", root.display())).arg(program);
    let mut child = command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start `unshare` of util-linux")?;
    child.stdin.take().context("it is piped")?.write_all(format!("{PROMPT}\n").as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the packed application fails in {} ({})", root.display(), output.status);
    Ok(String::from_utf8(output.stdout)?)
}
