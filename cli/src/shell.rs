//! What shells are told of the program, made of its own arguments.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;

/// The script that makes a shell complete the program's arguments, without the last line break, as all answers are.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "autoplace", &mut script);
    String::from_utf8_lossy(&script).trim_end().to_owned()
}
