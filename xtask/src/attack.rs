//! `attack`: prints a table of the memory that hostile clients can take (`cli/tests/program/attack`).

use anyhow::{Result, bail};

use crate::selected::run_tests;
use crate::setup;
use crate::workspace::Workspace;

/// The variables that name the program and the word.
const PROGRAM: &str = "AUTOPLACE_ATTACK_PROGRAM";
const WORD: &str = "AUTOPLACE_ATTACK_WORD";

/// Attacks our program, or another program with the same arguments. A word selects the attacks with that word in their
/// names.
pub(crate) fn attack(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("the memory of a process is read from /proc, so this works on Linux only");
    }
    setup::native()?;
    // Without `--package`, cargo resolves features as in `cargo test --workspace`, so both commands share their builds.
    let mut command = workspace.cargo(&["test", "--workspace", "--test=program"]);
    command.args(["--", "--ignored", "--nocapture", "attack::"]);
    match arguments {
        [program, word] => _ = command.env(PROGRAM, std::path::absolute(program)?).env(WORD, word),
        [program] => _ = command.env(PROGRAM, std::path::absolute(program)?),
        [] => {}
        _ => bail!("usage: cargo xtask attack [PROGRAM [WORD]]"),
    }
    run_tests(&mut command)
}
