//! `autoplace`: the library's answers on the command line. `docs/cli.md` describes what it takes and what it prints.
//!
//! Arguments flow in ([`args`], with [`settings`], [`sizes`], [`flags`] and [`gpu`] for what they are made of, and
//! [`llama_cpp`] for llama.cpp's own flags), a verb does its work
//! ([`talk`] with a model, [`plan`], [`devices`], [`list`], [`measure`], [`doctor`] with what is [`running`],
//! [`extract`], [`template`], [`runtime`]), and text, JSON ([`json`]), pictures ([`picture`]) or another tool's words
//! ([`emit`]) flow out. Exit
//! code 1 is an answer that could not be given, in one line on stderr, 2 a question that could not be understood. 3 is
//! the doctor's, where something is wrong, and that of `measure --ready`, where no placement lasts; 130 is a program
//! that Ctrl-C has ended.

mod adapters;
mod args;
mod devices;
mod doctor;
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
    // `plan --rpc` starts this program again.
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

/// The exit code of a verb that has printed its answer, or an error in its place.
fn said(outcome: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    match outcome {
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        outcome => outcome.unwrap_or_else(|error| fail(1, "error: ", &error)),
    }
}

/// Whether a reader has left: it has what it wanted.
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

/// What a file holds, or a line that names it.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| in_file(file, error))
}

/// What is wrong with a file.
pub(crate) fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", file.display())
}

/// What a terminal is shown of an answer: a template or a path may hold what would move its cursor.
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
