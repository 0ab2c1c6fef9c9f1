//! Code shared by the examples: the demo model, error reporting, and chat templates by name.

use std::process::ExitCode;

use anyhow::Context as _;
use autoplace::chat::{ChatTemplate, FAMILIES};
use clap::Parser;

/// The small model that the repository ships.
pub const DEMO_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/autoplace-demo-q8_0.gguf");

/// Parses the arguments and runs `program`. An error is one line on stderr. The exit code is 2 for a wrong argument and
/// 1 for any other error.
pub fn run<Args: Parser>(program: impl FnOnce(Args) -> anyhow::Result<ExitCode>) -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            eprintln!("{}", error.to_string().lines().next().unwrap_or_default());
            return ExitCode::from(2);
        }
    };
    program(args).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The built-in chat template with this name, or the template in this file.
///
/// # Errors
///
/// Fails if `name` is neither a family nor a readable file, or if the file is not a template.
pub fn read_template(name: &str) -> anyhow::Result<ChatTemplate> {
    if FAMILIES.contains(&name) {
        return Ok(ChatTemplate::family(name)?);
    }
    let source = std::fs::read_to_string(name).with_context(|| format!("cannot read the template {name}"))?;
    Ok(ChatTemplate::new(&source, <_>::default())?)
}
