//! What shells and `man` are told of the program, made of its own arguments.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;

/// The script that makes a shell complete the program's arguments.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "autoplace", &mut script);
    text(&script)
}

/// The manual in roff: the program's page, then a page for each verb.
pub(crate) fn manual() -> io::Result<String> {
    let mut roff = Vec::new();
    let mut command = Args::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut roff)?;
    // Once built they are called `autoplace-plan`, as git's pages are.
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let page = clap_mangen::Man::new(verb.clone()).source(concat!("autoplace ", env!("CARGO_PKG_VERSION")));
        page.render(&mut roff)?;
    }
    Ok(text(&roff))
}

/// Without the last line break, as all answers are.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}
