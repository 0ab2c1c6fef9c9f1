//! The command line: the verbs with their arguments. The arguments of a verb are declared in the verb's file. Arguments
//! that several verbs share are in [`ask`](crate::ask).

use std::ffi::OsString;
#[cfg(feature = "man")]
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use console::Term;

use crate::cache::CacheVerb;
use crate::devices::DevicesArgs;
use crate::doctor::DoctorArgs;
use crate::extract::ExtractArgs;
use crate::list::ListArgs;
use crate::measure::MeasureArgs;
use crate::plan::PlanArgs;
use crate::ps::PsArgs;
use crate::runtime::RuntimeVerb;
use crate::talk::{self, RunArgs, ServeArgs, TalkArgs};
use crate::template::TemplateArgs;
use crate::terminal::wrapped;

/// Places a local model: the fastest safe placement, with every byte accounted for.
#[derive(Debug, Parser)]
#[command(name = "autoplace", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Args {
    /// Reads the arguments. Also returns a note if some of them have no effect beside the others.
    pub(crate) fn read(words: Vec<OsString>) -> Result<(Self, Option<String>), clap::Error> {
        let mut command = Self::command();
        let mut matches = command.try_get_matches_from_mut(words)?;
        let note = talk::without_effect(&command, &matches);
        let args = Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        Ok((args, note))
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Answers a prompt, or begins a chat without one
    Run(Box<RunArgs>),
    /// Begins a chat, or answers every line from a pipe
    Chat(Box<TalkArgs>),
    /// Serves a model through OpenAI's and Anthropic's APIs
    Serve(Box<ServeArgs>),
    /// Shows a model's placement on this machine, or on simulated GPUs, without loading it
    Plan(Box<PlanArgs>),
    /// Lists the devices of this machine and the programs that hold their memory
    Devices(DevicesArgs),
    /// Lists the models that this user's processes have loaded: where, how fast, since when
    Ps(PsArgs),
    /// Lists the models on this machine with their placements
    List(ListArgs),
    /// Measures tokens per second by the layers on the GPU, or compares two placements
    Measure(Box<MeasureArgs>),
    /// Finds reasons why a model is slower than it could be on this machine, and their remedies
    Doctor(Box<DoctorArgs>),
    /// Manages the libraries that programs open if they were built without a compiler for llama.cpp
    Runtime {
        /// The operation
        #[command(subcommand)]
        verb: RuntimeVerb,
    },
    /// Lists or removes the prompts that `--cache-dir` has stored
    Cache {
        /// The operation
        #[command(subcommand)]
        verb: CacheVerb,
    },
    /// Extracts the model from a file that also holds its projector, such as Ollama's files
    Extract(ExtractArgs),
    /// Prints a conversation as a model sees it: the prompt from its chat template
    Template(TemplateArgs),
    /// Prints a shell script that completes these arguments
    Completions {
        /// The shell: bash, elvish, fish, powershell, zsh
        #[arg(value_name = "SHELL", hide_possible_values = true)]
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages, one for each verb
    #[cfg(feature = "man")]
    Man {
        /// An existing folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// The shell's completion script, without the last line break, because `print` adds one.
pub(crate) fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "autoplace", &mut script);
    String::from_utf8_lossy(&script).trim_end().to_owned()
}

/// Prints the help, or what is wrong with the arguments. Returns the exit code.
///
/// The help for a terminal is wrapped to the terminal's width. clap can do this too (its feature `wrap_help`), but it
/// would also wrap the help for a pipe.
pub(crate) fn refused(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    let terminal = if error.use_stderr() { Term::stderr() } else { Term::stdout() };
    let Some((_, columns)) = terminal.size_checked().filter(|_| is_help) else { error.exit() };
    let help = error.render();
    let help = if terminal.features().colors_supported() { help.ansi().to_string() } else { help.to_string() };
    let lines: Vec<String> = help.trim_end().lines().map(|line| wrapped(line, columns.into())).collect();
    // If printing fails, nobody reads it.
    let _ = terminal.write_line(&lines.join("\n"));
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

#[cfg(test)]
mod tests {
    use super::{Args, Verb};
    use autoplace::memory::{FlashAttention, KvType};
    use autoplace::plan::{Context, GpuLayers, KvCache, KvPlace, Request};
    use clap::Parser;

    #[test]
    fn arguments_replace_the_programs_settings_and_other_settings_stay() {
        let over = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).unwrap();
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let program = Request::new().kv_types(KvType::Q8_0, KvType::Q8_0).offload_kqv(false);
            let params = args.ask.over(program.flash_attn(FlashAttention::Off)).params;
            (params.type_k, params.offload_kqv, params.flash_attn)
        };
        assert_eq!(over(&[]), (KvType::Q8_0, false, FlashAttention::Off));
        let values = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).unwrap();
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let request = args.request();
            (request.context, request.gpu_layers, request.params.flash_attn, request.params.n_batch)
        };
        let stated = values(&["--ctx", "0", "--ngl", "all", "--flash-attn", "0", "--batch-size", "64"]);
        assert_eq!(stated, (Context::Model, GpuLayers::All, FlashAttention::Off, 64));
        let open = values(&["--ngl=-1", "--flash-attn", "enabled", "--ubatch", "4096"]);
        assert_eq!(open, (Context::Default, GpuLayers::Auto, FlashAttention::On, 4096));
        let said = over(&["--kv", "f16", "--kv-offload", "on", "--flash-attn", "auto"]);
        assert_eq!(said, (KvType::F16, true, FlashAttention::Auto));
        let settings = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).ok()?;
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let request = args.request();
            let ubatch = (request.min_ubatch, request.params.n_ubatch, request.max_ubatch);
            Some((request.kv_place, request.params.offload_kqv, ubatch))
        };
        let usual = (None, 512, Some(2048));
        assert_eq!(settings(&[]), Some((KvPlace::Given, true, usual)));
        assert_eq!(settings(&["--kv-offload", "auto"]), Some((KvPlace::Auto, true, usual)));
        assert_eq!(settings(&["--kv-offload", "off"]), Some((KvPlace::Given, false, usual)));
        assert_eq!(settings(&["--ubatch", "auto"]), Some((KvPlace::Given, true, (Some(64), 512, Some(2048)))));
        assert_eq!(settings(&["--ubatch", "96"]), Some((KvPlace::Given, true, (None, 96, None))));
        assert_eq!(
            [["--ubatch", "0"], ["--ubatch", "many"], ["--kv-offload", "some"]].map(|said| settings(&said)),
            [None; 3]
        );
        let chosen = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).ok()?;
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let request = args.request();
            Some((request.params.type_v, request.kv_cache))
        };
        assert_eq!(chosen(&["--kv", "auto"]), Some((KvType::F16, KvCache::Auto)));
        assert_eq!(chosen(&["--kv", "auto:q4_0"]), Some((KvType::F16, KvCache::DownTo(KvType::Q4_0))));
        assert_eq!(chosen(&["--kv", "q8_0"]), Some((KvType::Q8_0, KvCache::Given)));
        assert_eq!(chosen(&["--kv", "auto:q9"]), None);
        let stored = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).ok()?;
            let Verb::Plan(args) = args.verb else { unreachable!() };
            Some(args.request().prompt_store)
        };
        let sizes = [&["--cache-ram", "2GiB"][..], &["--cache-ram", "auto"], &["--cache-ram", "off"], &[]];
        assert_eq!(sizes.map(stored), [Some(2 << 30), Some(0), Some(0), Some(0)]);
        assert_eq!(stored(&["--cache-ram", "much"]), None);
    }
}
