//! `autoplace`: the library on the command line. `docs/cli.md` describes its arguments and output.
//!
//! Arguments flow in ([`args`], made of [`settings`], [`sizes`], [`flags`] and [`gpu`], and [`llama_cpp`] for
//! llama.cpp's own flags). A verb does its work ([`talk`] with a model, [`plan`], [`devices`], [`list`], [`measure`],
//! [`doctor`] with [`running`] programs, [`extract`], [`template`], [`runtime`]). Text, JSON ([`json`]), pictures
//! ([`picture`]) or another tool's settings ([`emit`]) flow out.
//!
//! Exit codes: 1 for an answer that could not be given, with one line on stderr; 2 for invalid arguments; 3 for
//! findings of `doctor`, and for `measure --ready` if no placement lasts; 130 after Ctrl-C.

mod adapters;
mod args;
mod devices;
mod doctor;
mod drafts;
mod emit;
mod extract;
mod flags;
mod gpu;
mod json;
mod list;
mod llama_cpp;
#[cfg(test)]
#[path = "../../autoplace/tests/support/llama_source/mod.rs"]
mod llama_source;
mod measure;
mod picture;
mod plan;
mod rates;
mod running;
mod runtime;
mod settings;
mod sizes;
mod stop;
mod talk;
mod template;
#[cfg(test)]
#[path = "../../planner/tests/support/test_plan/mod.rs"]
mod test_plan;

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory, Parser};

use args::{Args, Verb};
use llama_cpp::Words;

fn main() -> ExitCode {
    let begin = Instant::now();
    // `plan --rpc` starts this program again as a worker.
    autoplace::worker_main();
    let words = match Words::read(std::env::args_os().collect(), &Args::command()) {
        Ok(words) => words,
        Err(refused) => return fail(2, "error: ", &refused),
    };
    words.left_out.iter().for_each(|note| eprintln!("note: {note}"));
    let args = Args::parse_from(words.words);
    let simulated = match &args.verb {
        Verb::Plan(args) => &args.gpu[..],
        Verb::Measure(args) => &args.gpu,
        Verb::Doctor(args) => &args.gpu,
        _ => &[],
    };
    if let Err(error) = gpu::check(simulated) {
        return fail(2, "error: ", &error);
    }
    let answer = match &args.verb {
        Verb::Run(args) => return said(talk::run(args)),
        Verb::Chat(args) => return said(talk::chat(args)),
        Verb::Serve(args) => return said(talk::serve(args)),
        Verb::Measure(args) => return said(measure::run(args)),
        Verb::Doctor(args) => return said(doctor::run(args)),
        Verb::Plan(args) => plan::run(args, begin),
        Verb::Devices(args) => devices::run(args),
        Verb::List(args) => list::run(args),
        Verb::Runtime { verb } => runtime::run(verb),
        Verb::Extract(args) => extract::run(args),
        Verb::Template(args) => template::run(args),
        Verb::Completions { shell } => Ok(args::completions(*shell)),
        #[cfg(feature = "man")]
        Verb::Man { folder } => {
            let pages = clap_mangen::generate_to(Args::command(), folder);
            pages
                .map(|()| format!("manual pages in {}", folder.display()))
                .map_err(|error| in_file(folder, error).into())
        }
    };
    said(answer.map(|text| print(&text)))
}

/// The exit code of a verb. Prints its error, if any.
fn said(outcome: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    match outcome {
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        outcome => outcome.unwrap_or_else(|error| fail(1, "error: ", &error)),
    }
}

/// Whether the reader of our output has closed it. It has what it wanted.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let error: Option<&io::Error> = error.downcast_ref();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

pub(crate) fn print(text: &str) -> ExitCode {
    let shown = stdout().is_terminal().then(|| shown(text));
    match writeln!(stdout(), "{}", shown.as_deref().unwrap_or(text)) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => fail(1, "error: cannot write to stdout: ", &error),
        _ => ExitCode::SUCCESS,
    }
}

/// The content of a file. The error names the file.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| in_file(file, error))
}

/// An error message with its file.
pub(crate) fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", file.display())
}

/// Makes a text safe for a terminal: a template or path may contain control characters that move the cursor.
pub(crate) fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), " ")
}

fn fail(code: u8, before: &str, error: &dyn Display) -> ExitCode {
    eprintln!("{before}{}", args::in_one_line(&error.to_string()));
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_terminal_is_shown_nothing_that_it_would_obey() {
        let text = "a\tb\n\u{1b}[2J\u{9b}2J\u{7}\r\u{7f}é";
        assert_eq!(super::shown(text), "a\tb\n [2J 2J   é");
    }
}
