//! `bindings`: regenerates the raw bindings through llama-sys's build script, and compares or replaces the committed
//! file.
//!
//! The bindings are committed, so that users need no libclang. The first line of the file contains a hash of its inputs
//! and of its text. As long as the hash matches, the check needs no generation.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{setup, source, tree};

const COMMITTED: &str = "llama-sys/src/raw/bindings.rs";

/// The prefix of the line with the hash.
const MADE: &str = "// Made from and into: ";

/// Whether the stored hash proves that the committed bindings are current.
pub(crate) fn are_known(workspace: &Workspace) -> Result<bool> {
    let (committed, made) = committed(workspace)?;
    Ok(made == Some(hash(workspace, &committed)?))
}

/// Fails if the committed bindings differ from bindgen's output for the pinned llama.cpp's headers.
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

/// The committed bindings without the hash line, and the hash.
fn committed(workspace: &Workspace) -> Result<(Vec<String>, Option<String>)> {
    let mut lines = lines_of(workspace.root.join(COMMITTED))?;
    let made = lines.first().and_then(|line| line.strip_prefix(MADE)).map(str::to_owned);
    if made.is_some() {
        lines.remove(0);
    }
    Ok((lines, made))
}

/// A hash of llama.cpp's source, our C++, bindgen's settings and version, and the bindings.
fn hash(workspace: &Workspace, lines: &[String]) -> Result<String> {
    let mut hash = DefaultHasher::new();
    let llama_cpp = source::find(workspace)?;
    let ours = workspace.root.join("llama-sys");
    for folder in ["include", "src", "ggml"].map(|name| llama_cpp.join(name)).into_iter().chain([ours.join("native")]) {
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

/// Runs bindgen through the build script and reads its output.
fn regenerate(workspace: &Workspace) -> Result<Vec<String>> {
    setup::native()?;
    setup::libclang()?;
    // The features are the same as in the earlier steps, so that the native build of these steps is reused.
    let features = match workspace.vulkan {
        Some(_) => "--features=bindgen,rpc,vulkan",
        None => "--features=bindgen,rpc",
    };
    // If the new bindings lack an item that the crate uses, the crate does not compile. This does not matter, because
    // the build script has already written the bindings.
    let checked = workspace
        .cargo(&["check", "--package=autoplace-llama-sys", features, "--message-format=json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    let messages = String::from_utf8_lossy(&checked.stdout);
    // The build script publishes the path of its file in an environment variable of the crate, and cargo prints that
    // variable.
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

/// The lines of a file without newline characters, because git may have changed the newlines of the committed file.
fn lines_of(path: PathBuf) -> Result<Vec<String>> {
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}
