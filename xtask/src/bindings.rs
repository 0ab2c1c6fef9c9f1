//! `bindings`: the raw bindings are committed, so that users need no libclang. This regenerates them, through the build script
//! of llama-sys, and compares or replaces the committed file. A line of that has a hash of what it was made from and of its
//! text: while both are the same, nothing needs to be generated to know that the file is what it should be.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{setup, source, tree};

const COMMITTED: &str = "llama-sys/src/bindings.rs";

/// Before the hash, in a line of its own.
const MADE: &str = "// Made from and into: ";

/// Whether the committed bindings have to be generated again to be checked.
pub(crate) fn are_known(workspace: &Workspace) -> Result<bool> {
    let (committed, made) = committed(workspace)?;
    Ok(made == Some(hash(workspace, &committed)?))
}

/// Fails when the committed bindings are not what bindgen makes of the pinned llama.cpp's headers.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    if are_known(workspace)? {
        println!("{COMMITTED}, and what it is made from, are as `cargo xtask bindings --write` has left them");
        return Ok(());
    }
    let fresh = regenerate(workspace)?;
    let (committed, _) = committed(workspace)?;
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
    let made = format!("{MADE}{}", hash(workspace, &fresh)?);
    fs::write(&path, format!("{made}\n{}\n", fresh.join("\n")))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {COMMITTED} ({} lines)", fresh.len());
    Ok(())
}

/// The committed bindings without the line that has the hash, and that.
fn committed(workspace: &Workspace) -> Result<(Vec<String>, Option<String>)> {
    let mut lines = lines_of(workspace.root.join(COMMITTED))?;
    let made = lines.first().and_then(|line| line.strip_prefix(MADE)).map(str::to_owned);
    if made.is_some() {
        lines.remove(0);
    }
    Ok((lines, made))
}

/// Of llama.cpp's source, of our C++, of bindgen's settings and version, and of what it has made.
fn hash(workspace: &Workspace, lines: &[String]) -> Result<String> {
    let mut hash = DefaultHasher::new();
    let llama_cpp = source::find(workspace)?;
    let ours = workspace.root.join("llama-sys");
    for folder in ["include", "src", "ggml"].map(|it| llama_cpp.join(it)).into_iter().chain([ours.join("native")]) {
        for file in tree::files(&folder)? {
            (&file, fs::read(folder.join(&file))?).hash(&mut hash);
        }
    }
    fs::read(ours.join("build/bindings.rs"))?.hash(&mut hash);
    let locked = fs::read_to_string(workspace.root.join("Cargo.lock"))?;
    locked.lines().skip_while(|line| *line != "name = \"bindgen\"").nth(1).hash(&mut hash);
    lines.hash(&mut hash);
    Ok(format!("{:016x}", hash.finish()))
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
