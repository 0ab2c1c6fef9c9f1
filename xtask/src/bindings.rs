//! `bindings`: the raw bindings are committed, so that users need no libclang. This regenerates them, through the build script
//! of llama-sys, and compares or replaces the committed file.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::workspace::Workspace;

const COMMITTED: &str = "llama-sys/src/bindings.rs";

/// Fails when the committed bindings are not what bindgen makes of the pinned llama.cpp's headers.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let fresh = regenerate(workspace)?;
    let committed = lines_of(workspace.root.join(COMMITTED))?;
    if fresh == committed {
        println!("{COMMITTED} is up to date ({} lines)", committed.len());
        return Ok(());
    }
    let at = fresh.iter().zip(&committed).take_while(|(a, b)| a == b).count();
    let show = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "(end of file)".into());
    bail!(
        "{COMMITTED} is not what bindgen generates; `cargo xtask bindings --write` replaces it. First difference, line {}:\n  \
         committed: {}\n  generated: {}",
        at + 1,
        show(&committed),
        show(&fresh)
    )
}

/// Replaces the committed bindings.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let fresh = regenerate(workspace)?;
    let path = workspace.root.join(COMMITTED);
    fs::write(&path, fresh.join("\n") + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {COMMITTED} ({} lines)", fresh.len());
    Ok(())
}

/// Lets the build script run bindgen, and reads what it wrote.
fn regenerate(workspace: &Workspace) -> Result<Vec<String>> {
    setup::native()?;
    setup::libclang()?;
    // Those of the steps before, so that their native build is found.
    let features = match workspace.vulkan {
        Some(_) => "--features=bindgen,rpc,vulkan",
        None => "--features=bindgen,rpc",
    };
    // Bindings that lack what the crate already uses do not compile; the build script has written the new ones by then.
    let checked = workspace
        .cargo(&["check", "--package=autoplace-llama-sys", features, "--message-format=json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let messages = String::from_utf8_lossy(&checked.stdout);
    // The build script names its file in an environment variable of the crate, which cargo repeats here.
    let path = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["reason"] == "build-script-executed")
        .filter_map(|message| message["env"].as_array().cloned())
        .flatten()
        .find(|variable| variable[0] == "LLAMA_SYS_GENERATED_BINDINGS")
        .and_then(|variable| variable[1].as_str().map(PathBuf::from))
        .context("the build script of llama-sys did not say where it wrote the bindings")?;
    lines_of(path)
}

/// Lines without their ends: git may have written the committed file with other newlines.
fn lines_of(path: PathBuf) -> Result<Vec<String>> {
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}
