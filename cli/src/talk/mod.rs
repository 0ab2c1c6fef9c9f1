//! The verbs `run`, `chat` and [`serve`](serve()): a model and what is said to it flow in, its answers flow out as they
//! come.
//!
//! [`source`] is where the model comes from, [`session`] the chat at a terminal, [`editor`] where its messages are
//! written, [`files`] what they name, [`screen`] what is shown.

mod editor;
mod files;
mod screen;
mod serve;
mod session;
mod source;

use std::error::Error;
use std::io::{self, IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use autoplace::chat::{self, ChatTemplate, FAMILIES, ReplyPart};
use autoplace::generate::{self, FinishReason, Generate};
use autoplace::gguf::Header;
use autoplace::machine::Bytes;
use autoplace::plan::SavedPlan;
use autoplace::{Model, ModelBuilder, Plan};
use clap::value_parser;

use crate::args::AskArgs;
use crate::rates::bar;
use crate::stop::Stop;
use crate::template;
use screen::{note, write};
pub(crate) use serve::{ServeArgs, serve};
use session::Session;
use source::SourceArgs;
pub(crate) use source::here;

/// A model, and where it is to go.
#[derive(Debug, clap::Args)]
struct LoadArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    ask: AskArgs,
    /// Follows a plan that `plan --save` wrote, instead of making one
    #[arg(long, value_name = "FILE", conflicts_with = "AskArgs")]
    plan: Option<PathBuf>,
}

/// A model to talk with.
#[derive(Debug, clap::Args)]
pub(crate) struct TalkArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// System message: what the model reads before all else
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Family of the chat template, or a file with one [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// Divides what decides about a token; 0 always takes the likeliest [default: the model's own, or 0.8]
    #[arg(long, value_name = "T")]
    temp: Option<f32>,
    /// Tokens of an answer at most; -1 is no limit [default: -1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(i64).range(-1..))]
    max_tokens: Option<i64>,
}

/// The arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// What is to be answered; what comes through a pipe follows it
    prompt: Option<String>,
}

/// Answers one prompt, or chats where there is none.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    talk(&args.talk, prompt(args.prompt.as_deref())?)
}

/// What is said, and what a pipe brings; `None` where a person can say it still.
fn prompt(said: Option<&str>) -> Result<Option<String>, Box<dyn Error>> {
    let mut prompt = said.unwrap_or_default().to_owned();
    if stdin().is_terminal() {
        return Ok((!prompt.is_empty()).then_some(prompt));
    }
    let piped = io::read_to_string(stdin()).map_err(|error| format!("cannot read stdin: {error}"))?;
    if !prompt.is_empty() && !piped.is_empty() {
        prompt += "\n\n";
    }
    prompt += piped.trim_end_matches(['\r', '\n']);
    if prompt.trim().is_empty() {
        return Err("there is no prompt, neither as an argument nor on stdin".into());
    }
    Ok(Some(prompt))
}

/// Answers the prompt; without one, chats with a person, or answers every line of a pipe.
pub(crate) fn talk(args: &TalkArgs, prompt: Option<String>) -> Result<ExitCode, Box<dyn Error>> {
    let stop = Stop::listen()?;
    let request = args.load.ask.request();
    let Some(path) = args.load.source.path(&request, &stop)? else { return Ok(ExitCode::from(130)) };
    let template = template(args, &path)?;
    if template.is_none() && (prompt.is_none() || args.system.is_some()) {
        let families = FAMILIES.join(", ");
        let problem = "the model has no chat template: --template names its family, one of";
        return Err(format!("{problem} {families}, or a file").into());
    }
    let is_stopped = match args.load.load(Model::builder(&path).request(request), &stop)? {
        None => true,
        Some(model) => match template {
            Some(template) => converse(args, model, template, prompt, stop)?,
            None => go_on(args, &model, &prompt.unwrap_or_default(), &stop)?,
        },
    };
    // 130 is what shells have of a program that Ctrl-C has ended.
    Ok(if is_stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// The template that is asked for, or the model's own; `None` where it ships none.
fn template(args: &TalkArgs, path: &Path) -> Result<Option<ChatTemplate>, Box<dyn Error>> {
    let header = Header::open(path)?;
    match &args.template {
        Some(name) => template::named(name, &header).map(Some),
        None => match ChatTemplate::from_header(&header) {
            Err(chat::Error::NoTemplate { .. }) => Ok(None),
            template => Ok(Some(template?)),
        },
    }
}

impl LoadArgs {
    /// Loads the model, and says where it went; `None` where Ctrl-C came before.
    fn load(&self, builder: ModelBuilder, stop: &Stop) -> Result<Option<Model>, Box<dyn Error>> {
        let cancelled = stop.flag();
        let bar = bar(100, "loading {wide_bar} {percent} %");
        let shown = bar.clone();
        let mut builder = builder.progress(move |done| {
            shown.set_position((done * 100.0) as u64);
            !cancelled.load(Relaxed)
        });
        if let Some(file) = &self.plan {
            builder = builder.follow(SavedPlan::read(file)?);
        }
        let loaded = builder.load();
        bar.finish_and_clear();
        if stop.end() {
            return Ok(None);
        }
        let model = loaded?;
        let plan = model.placement();
        note(summary(&plan));
        // The first one is why it is this placement, which `/placement` says.
        plan.notes.iter().skip(1).for_each(note);
        Ok(Some(model))
    }
}

/// Where the model is, in a line.
fn summary(plan: &Plan) -> String {
    let gpus: Vec<&str> = plan.gpus().map(|gpu| gpu.name.as_str()).collect();
    let layers = match gpus.is_empty() {
        true => format!("all {} layers on the host", plan.layers()),
        false => format!("{} of {} layers on {}", plan.n_gpu_layers, plan.layers(), gpus.join(" and ")),
    };
    let bytes = plan.placements.iter().map(|it| it.footprint.total()).sum();
    let speed = plan.speed.as_ref().map(|it| format!(", about {:.1} tok/s", it.tokens_per_second));
    format!("{}: {layers}, {}{}", plan.model.name, Bytes(bytes), speed.unwrap_or_default())
}

/// Answers the prompt, or a person's messages, or the lines of a pipe. Whether Ctrl-C ended it.
fn converse(
    args: &TalkArgs,
    model: Model,
    template: ChatTemplate,
    prompt: Option<String>,
    stop: Stop,
) -> Result<bool, Box<dyn Error>> {
    let mut chat = model.chat_with(template).with(|generate| args.sampled(generate));
    if let Some(system) = &args.system {
        chat = chat.system(system);
    }
    let mut session = Session::new(model, chat, stop);
    if let Some(prompt) = prompt {
        return session.say(&prompt);
    }
    if stdin().is_terminal() && stdout().is_terminal() {
        return session.talk().map(|()| false);
    }
    for line in stdin().lines() {
        let line = line.map_err(|error| format!("cannot read stdin: {error}"))?;
        if !line.trim().is_empty() && session.say(&line)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes what follows the prompt, for a model that was trained on texts and no conversations. Whether Ctrl-C ended it.
fn go_on(args: &TalkArgs, model: &Model, prompt: &str, stop: &Stop) -> Result<bool, Box<dyn Error>> {
    note("the model has no chat template: it goes on with the prompt");
    let mut text = args.sampled(model.generate(prompt)).stream().map_err(more_context)?;
    stop.begin(text.abort_handle());
    let outcome = write(text.by_ref().map(|piece| piece.map(ReplyPart::Content)), stop);
    note_full(text.finish_reason());
    outcome
}

/// Says that an answer has no end.
fn note_full(reason: Option<FinishReason>) {
    if reason == Some(FinishReason::ContextFull) {
        note(format!("the context is full, and the answer ends here: {MORE}"));
    }
}

/// An error, and what keeps a prompt from it.
fn more_context(error: generate::Error) -> Box<dyn Error> {
    match error {
        generate::Error::PromptTooLong { .. } => format!("{error}: {MORE}").into(),
        error => error.into(),
    }
}

const MORE: &str = "--ctx N or --ctx auto gives more";

impl TalkArgs {
    fn sampled(&self, mut generate: Generate) -> Generate {
        if let Some(temp) = self.temp {
            generate = generate.temp(temp);
        }
        let limit = self.max_tokens.and_then(|most| usize::try_from(most).ok());
        generate.max_tokens(limit.unwrap_or(usize::MAX))
    }
}
