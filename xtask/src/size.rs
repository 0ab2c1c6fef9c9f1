//! `size`: how many lines there are of each crate, beside what it should have. Every line is read by whoever comes after.

use anyhow::{Result, bail};

use crate::tree;
use crate::workspace::Workspace;

/// Folders, the lines that they should have, and the lines beyond which this fails: a tenth more, or while there are more than that, what
/// there are now.
const BUDGETS: [(&str, &[&str], usize, usize); 7] = [
    ("planner", &["planner/src"], 17_000, 30_700),
    ("autoplace", &["autoplace/src"], 20_000, 28_600),
    ("chat", &["chat/src"], 4_500, 6_400),
    ("openai", &["openai/src"], 3_500, 3_850),
    ("cli", &["cli/src"], 4_500, 4_950),
    ("llama-sys", &["llama-sys/src"], 12_000, 13_200),
    ("tests", &TESTS, 25_000, 43_900),
];

const TESTS: [&str; 8] = [
    "planner/tests",
    "chat/tests",
    "autoplace/tests",
    "openai/tests",
    "cli/tests",
    "llama-sys/tests",
    "examples/tests",
    "gpu-check/tests",
];

/// Prints the table; fails where there is more than there may be.
pub(crate) fn size(workspace: &Workspace) -> Result<()> {
    let mut over = Vec::new();
    println!("{:<18} {:>7} {:>7}", "lines of Rust", "are", "budget");
    for (name, folders, budget, most) in BUDGETS {
        let mut lines = 0;
        for folder in folders {
            let root = workspace.root.join(folder);
            for file in tree::files(&root)? {
                let is_ours =
                    file.extension().is_some_and(|it| it == "rs") && !file.ends_with("bindings.rs");
                if is_ours {
                    lines += std::fs::read_to_string(root.join(file))?.lines().count();
                }
            }
        }
        println!("{name:<18} {lines:>7} {budget:>7}");
        if lines > most {
            over.push(format!("{name} has {lines} lines, and may have {most}"));
        }
    }
    if over.is_empty() {
        return Ok(());
    }
    bail!("{}: take something out first", over.join("; "));
}
