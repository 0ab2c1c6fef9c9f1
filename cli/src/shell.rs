//! What shells and `man` are told of the program, made of its own arguments.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;

/// The script that makes a shell complete the program's arguments.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = Args::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The manual in roff: the program's page, then a page for each verb.
pub(crate) fn manual() -> io::Result<Vec<u8>> {
    let mut roff = Vec::new();
    let mut command = Args::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut roff)?;
    // Once built they are called `autoplace-plan`, as git's pages are.
    for verb in command.get_subcommands() {
        if verb.get_name() != "help" {
            clap_mangen::Man::new(verb.clone())
                .source(concat!("autoplace ", env!("CARGO_PKG_VERSION")))
                .render(&mut roff)?;
        }
    }
    Ok(roff)
}
