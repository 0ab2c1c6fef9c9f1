//! `size`: how many lines there are of each crate, beside what it should have. Every line is read by
//! whoever comes after.

use std::path::Path;

use anyhow::{Result, bail};

use crate::tree;
use crate::workspace::Workspace;

/// Folders, the lines that they should have, and the lines beyond which this fails: a tenth more, or while there are
/// more than that, what there are now.
const BUDGETS: [(&str, &[&str], usize, usize); 10] = [
    ("planner", &["planner/src"], 17_000, 18_700),
    ("autoplace", &["autoplace/src"], 18_290, 20_119),
    ("measure", &["measure/src"], 1_710, 1_881),
    ("chat", &["chat/src"], 4_500, 4_950),
    ("openai", &["openai/src"], 3_500, 3_850),
    ("hub", &["hub/src"], 3_000, 3_300),
    ("cli", &["cli/src"], 4_500, 4_950),
    ("runtime", &["runtime/src"], 1_000, 1_100),
    ("llama-sys", &["llama-sys/src"], 12_000, 13_200),
    ("tests", &TESTS, 25_000, 27_500),
];

/// Columns of a comment; rustfmt sees to code.
const WIDEST: usize = 120;

const TESTS: [&str; 9] = [
    "planner/tests",
    "chat/tests",
    "autoplace/tests",
    "openai/tests",
    "hub/tests",
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
                let is_ours = file.extension().is_some_and(|it| it == "rs") && !file.ends_with("bindings.rs");
                if !is_ours {
                    continue;
                }
                let text = std::fs::read_to_string(root.join(&file))?;
                lines += text.lines().count();
                let wide = text.lines().position(is_wide);
                over.extend(wide.map(|line| {
                    let file = Path::new(folder).join(&file);
                    format!("{}:{}: a comment over {WIDEST} columns", file.display(), line + 1)
                }));
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
    bail!("take something out first:\n{}", over.join("\n"));
}

/// Whether it is a comment of more columns than a reader should need; rows of tables and code in examples may have
/// them.
fn is_wide(line: &str) -> bool {
    let text = line.trim_start();
    let prose = text.starts_with("//") && !text.contains(['|', '{']);
    prose && line.chars().count() > WIDEST
}
