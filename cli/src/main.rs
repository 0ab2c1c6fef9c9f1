//! The program `autoplace`, which offers the library on the command line. The arguments and the output are described in
//! `docs/cli.md`.
//!
//! ```sh
//! autoplace plan model.gguf --ctx 8192
//! ```
//!
//! In: arguments. [`args`] lists the verbs, and each verb declares its own arguments. Arguments that several verbs
//! share are in [`ask`], [`settings`], [`adapters`], [`drafts`] and [`pooling`]; [`values`], [`sizes`] and [`gpu`]
//! parse values. llama.cpp's own flags are in [`llama_cpp`], and [`flags`] reads them from scripts and running servers.
//! The verbs are [`talk`] (`run`, `chat` and `serve`), [`plan`], [`devices`], [`list`], [`ps`], [`measure`], [`doctor`]
//! (with [`running`] programs), [`extract`], [`template`], [`runtime`] and [`cache`]. Out: text ([`terminal`]), JSON,
//! pictures ([`picture`]), or settings for another tool ([`emit`]).
//!
//! Exit codes: 1 for a failure, with one line on stderr; 2 for invalid arguments; 3 if `doctor` has findings, or if
//! `measure --ready` finds no placement that lasts; 130 after Ctrl-C.

mod adapters;
mod args;
mod ask;
mod cache;
mod devices;
mod doctor;
mod drafts;
mod emit;
mod extract;
mod files;
mod flags;
mod gpu;
mod list;
mod llama_cpp;
mod measure;
mod picture;
mod plan;
mod pooling;
mod ps;
mod rates;
mod running;
mod runtime;
mod settings;
mod sizes;
mod stop;
mod talk;
mod template;
mod terminal;
mod values;

use std::error::Error;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::time::Instant;

use clap::CommandFactory;

use args::{Args, Verb};
use llama_cpp::{Environment, Words};
use terminal::{fail, in_one_line, line_to_stderr, print};

fn main() -> ExitCode {
    let begin = Instant::now();
    // `plan --rpc` starts this program a second time, as a worker.
    autoplace::worker_main();
    let environment = Environment::of_process();
    let words = match Words::read(std::env::args_os().collect(), &environment, &Args::command()) {
        Ok(words) => words,
        Err(refused) => return fail(2, "error: ", &refused),
    };
    if !words.used.is_empty() {
        line_to_stderr(in_one_line(&format!("note: from the environment: {}", words.used.join(", "))));
    }
    let note = |note: &String| line_to_stderr(in_one_line(&format!("note: {note}")));
    words.notes.iter().chain(&words.left_out).for_each(note);
    let (args, without_effect) = match Args::read(words.words) {
        Ok(read) => read,
        Err(refused) => return args::refused(&refused),
    };
    without_effect.iter().for_each(note);
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
        Verb::Ps(args) => Ok(ps::run(args)),
        Verb::List(args) => list::run(args),
        Verb::Runtime { verb } => runtime::run(verb),
        Verb::Cache { verb } => cache::run(verb),
        Verb::Extract(args) => extract::run(args),
        Verb::Template(args) => template::run(args),
        Verb::Completions { shell } => Ok(args::completions(*shell)),
        #[cfg(feature = "man")]
        Verb::Man { folder } => {
            let pages = clap_mangen::generate_to(Args::command(), folder);
            pages
                .map(|()| format!("manual pages in {}", folder.display()))
                .map_err(|error| files::in_file(folder, error).into())
        }
    };
    said(answer.map(|text| print(&text)))
}

/// The exit code of a verb. If the verb failed, prints the error.
fn said(outcome: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    match outcome {
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        outcome => outcome.unwrap_or_else(|error| fail(1, "error: ", &error)),
    }
}

/// Whether the error only means that the reader of our output has closed it. That is not a failure.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let error: Option<&io::Error> = error.downcast_ref();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
