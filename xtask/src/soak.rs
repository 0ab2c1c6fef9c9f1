//! `soak`: generates tokens for hours, and prints the resources of the process at intervals. `docs/soak.md` has a
//! table.

use anyhow::{Context, Result, bail};

use crate::selected::run_tests;
use crate::setup;
use crate::workspace::Workspace;

/// Generates this many tokens (default: a million) on the demo model. Fails if memory, open files or threads grow.
pub(crate) fn soak(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let tokens = match arguments {
        [] => 1_000_000,
        [tokens] => {
            let digits = tokens.replace('_', "");
            let parsed: Result<u64, _> = digits.parse();
            parsed.with_context(|| format!("{tokens} is not a number of tokens"))?
        }
        _ => bail!("usage: cargo xtask soak [TOKENS]"),
    };
    if !cfg!(target_os = "linux") {
        bail!("the memory of a process is read from /proc, so this works on Linux only");
    }
    setup::native()?;
    // Without `--package`, cargo resolves features as in `cargo test --workspace`, so both commands share their builds.
    // The native code is optimised in every profile.
    let mut command = workspace.cargo(&["test", "--workspace", "--test=generate"]);
    command.args(["--", "--ignored", "--nocapture", "soak::"]).env("AUTOPLACE_SOAK_TOKENS", tokens.to_string());
    run_tests(&mut command)
}
