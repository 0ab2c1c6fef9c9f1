//! `size`: prints the lines of Rust in each crate, now and at the last release. The numbers are only information; the
//! verb fails only for a comment that is too wide.

use std::path::Path;

use anyhow::{Result, bail};

use crate::semver::last_release;
use crate::tree;
use crate::workspace::Workspace;

/// The rows of the table, with their folders: the code of each crate, and then all tests.
const GROUPS: [(&str, &[&str]); 14] = [
    ("gguf", &["gguf/src"]),
    ("planner", &["planner/src"]),
    ("autoplace", &["autoplace/src"]),
    ("measure", &["measure/src"]),
    ("pool", &["pool/src"]),
    ("chat", &["chat/src"]),
    ("openai", &["openai/src"]),
    ("hub", &["hub/src"]),
    ("media", &["media/src"]),
    ("cli", &["cli/src"]),
    ("runtime", &["runtime/src"]),
    ("llama-sys", &["llama-sys/src"]),
    ("xtask", &["xtask/src"]),
    ("tests", &TESTS),
];

/// Maximum columns of a comment. rustfmt limits the columns of code.
const MAX_COLUMNS: usize = 120;

const TESTS: [&str; 15] = [
    "test-support/src",
    "bare-llama/src",
    "gguf/tests",
    "planner/tests",
    "chat/tests",
    "autoplace/tests",
    "measure/tests",
    "pool/tests",
    "openai/tests",
    "hub/tests",
    "media/tests",
    "cli/tests",
    "llama-sys/tests",
    "examples/tests",
    "gpu-check/tests",
];

/// Prints the table. Fails for a comment that is too wide.
pub(crate) fn size(workspace: &Workspace) -> Result<()> {
    // An unpacked archive of the source has no history.
    let has_history = workspace.root.join(".git").exists();
    let release = if has_history { last_release(workspace)? } else { None };
    let released = release.as_deref().unwrap_or("no release");
    let mut wide = Vec::new();
    println!("{:<12} {:>7} {:>7} {released:>12}", "", "files", "lines");
    for (name, folders) in GROUPS {
        let (mut files, mut lines) = (0, 0);
        for folder in folders {
            let root = workspace.root.join(folder);
            for file in tree::files(&root)? {
                if !is_ours(&file) {
                    continue;
                }
                let text = std::fs::read_to_string(root.join(&file))?;
                files += 1;
                lines += text.lines().count();
                let found = text.lines().enumerate().filter(|(_, line)| is_wide(line));
                wide.extend(found.map(|(line, _)| format!("{}:{}", Path::new(folder).join(&file).display(), line + 1)));
            }
        }
        let before = match &release {
            Some(tag) => lines_at(workspace, tag, folders)?.to_string(),
            None => "-".to_owned(),
        };
        println!("{name:<12} {files:>7} {lines:>7} {before:>12}");
    }
    if wide.is_empty() {
        return Ok(());
    }
    bail!("comments of more than {MAX_COLUMNS} columns:\n{}", wide.join("\n"));
}

/// Lines of Rust in `folders` at the commit `tag`.
fn lines_at(workspace: &Workspace, tag: &str, folders: &[&str]) -> Result<usize> {
    let list = [&["ls-tree", "-r", "--name-only", tag, "--"], folders].concat();
    let mut lines = 0;
    for file in workspace.git(&list)?.lines().filter(|file| is_ours(Path::new(file))) {
        lines += workspace.git(&["show", &format!("{tag}:{file}")])?.lines().count();
    }
    Ok(lines)
}

/// Whether the file is hand-written Rust and not generated bindings.
fn is_ours(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "rs") && !file.ends_with("bindings.rs")
}

/// Whether the line is a comment that is too wide. Table rows and code in examples are exempt.
fn is_wide(line: &str) -> bool {
    let text = line.trim_start();
    let prose = text.starts_with("//") && !text.contains(['|', '{']);
    prose && line.chars().count() > MAX_COLUMNS
}
