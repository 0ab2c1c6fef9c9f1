//! `demo`: the shortest way from a clone to generated text.

use anyhow::Result;

use crate::setup;
use crate::workspace::{Workspace, run};

/// A prompt that the demo model continues well. With the seed, the text is the same in every run on one machine.
const ARGUMENTS: [&str; 6] = ["-p", "And the king said unto his servants,", "-n", "120", "--seed", "1"];

/// Sets up, builds and runs `examples/generate.rs`.
pub(crate) fn demo(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    setup::native()?;
    if workspace.native_builds().is_empty() {
        println!("demo: llama.cpp is compiled now, once; that takes some minutes");
    }
    // The example does not need the default features. Without them, only a fifth of the Rust code is compiled.
    let example = ["--package=autoplace-examples", "--no-default-features", "--features=native"];
    let mut command = workspace.cargo(&["run", "--example=generate"]);
    command.args(example).arg("--");
    let arguments = arguments.strip_prefix(&["--".to_owned()]).unwrap_or(arguments);
    if arguments.is_empty() {
        command.args(ARGUMENTS);
    } else {
        command.args(arguments);
    }
    run(&mut command)
}
