//! What the examples share beside the library: the demo model, how a program says what is wrong, and chat
//! templates by their names.

use std::process::ExitCode;

use anyhow::Context as _;
use autoplace::chat::{ChatTemplate, FAMILIES};
use clap::Parser;

/// The small model that the repository ships.
pub const DEMO_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/autoplace-demo-q8_0.gguf");

/// Reads the arguments and runs `program` with them. What is wrong is one line on stderr, and the exit code 2 for an
/// argument or 1 for anything else.
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

/// The chat template of this family, or in this file.
///
/// # Errors
///
/// Where it is neither, or is no template.
pub fn read_template(name: &str) -> anyhow::Result<ChatTemplate> {
    if FAMILIES.contains(&name) {
        return Ok(ChatTemplate::family(name)?);
    }
    let source = std::fs::read_to_string(name).with_context(|| format!("cannot read the template {name}"))?;
    Ok(ChatTemplate::new(&source, <_>::default())?)
}
