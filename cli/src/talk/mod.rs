//! The verbs `run`, `chat` and [`serve`](serve()). In: a model and messages. Out: its answers, as they arrive.
//!
//! [`source`] finds the model and [`load`] loads it. [`serve`](mod@serve) serves it, and [`pool`] serves several
//! models. The settings for generating are in [`texts`], [`sampling`] and [`drafts`]. [`session`] is the chat at a
//! terminal and [`editor`] its line editor. [`piped`](mod@piped) reads stdin, [`files`] reads the files that a message
//! names, [`media`] reads images and sounds, [`screen`] prints, and [`warnings`] shows the library's warnings.

mod drafts;
mod editor;
mod files;
mod load;
mod media;
mod page;
mod piped;
mod pool;
mod pool_page;
mod sampling;
mod screen;
mod serve;
mod session;
mod source;
mod store;
mod texts;
mod warnings;

use std::error::Error;
use std::io::{IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use autoplace::chat::{self, ChatTemplate, FAMILIES, Media, Part, ReplyPart};
use autoplace::generate::{GenerateRequest, Prompt};
use autoplace::gguf::Header;
use autoplace::{Model, ModelBuilder};
use clap::value_parser;

use crate::ask::CacheRam;
use crate::files::without_byte_order_mark;
use crate::stop::Stop;
use crate::template;
use drafts::DraftArgs;
use load::LoadArgs;
use media::MediaArgs;
use piped::piped;
use sampling::SamplingArgs;
use screen::{more_context, note, note_full, write};
pub(crate) use serve::{ServeArgs, serve, without_effect};
use session::{Session, check_length};
use source::Files;
pub(crate) use source::here;
use texts::TextArgs;

/// A model for a conversation.
#[derive(Debug, clap::Args)]
pub(crate) struct TalkArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// System message, which the model reads first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Family of the chat template, or a file with one [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// Maximum number of tokens in an answer; -1 and -2 mean no limit but the context [default: -1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(i64).range(-2..))]
    max_tokens: Option<i64>,
    #[command(flatten)]
    texts: TextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    drafts: DraftArgs,
    #[command(flatten)]
    media: MediaArgs,
}

/// The arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    talk: TalkArgs,
    /// The prompt to answer; text from a pipe is appended. `-` is stdin's text alone
    #[arg(conflicts_with_all = ["said", "file"])]
    prompt: Option<String>,
}

/// Answers one prompt. If there is none, begins a chat.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    let said = args.talk.texts.prompt()?;
    let is_stdin = args.prompt.as_deref() == Some("-");
    let said = args.prompt.as_deref().filter(|_| !is_stdin).or(said.as_deref());
    talk(&args.talk, prompt(said, is_stdin)?, None)
}

/// Chats. If a first message is given, answers it first.
pub(crate) fn chat(args: &TalkArgs) -> Result<ExitCode, Box<dyn Error>> {
    talk(args, None, args.texts.prompt()?)
}

/// The prompt, followed by the text from a pipe; `None` if there is neither, and a person can type messages. If
/// `is_stdin` is true, a terminal is read like a pipe.
fn prompt(said: Option<&str>, is_stdin: bool) -> Result<Option<String>, Box<dyn Error>> {
    let mut prompt = said.unwrap_or_default().to_owned();
    if stdin().is_terminal() && !is_stdin {
        return Ok((!prompt.is_empty()).then_some(prompt));
    }
    let piped = piped(if prompt.is_empty() { "is the prompt" } else { "is added to the prompt" })?;
    if !prompt.is_empty() && !piped.is_empty() {
        prompt += "\n\n";
    }
    prompt += &piped;
    if prompt.trim().is_empty() {
        return Err("there is no prompt, neither as an argument nor on stdin".into());
    }
    Ok(Some(prompt))
}

/// Answers the prompt. If there is no prompt, it answers the first message, if there is one. Then it chats with a
/// person, or answers every line of a pipe.
fn talk(args: &TalkArgs, prompt: Option<String>, first: Option<String>) -> Result<ExitCode, Box<dyn Error>> {
    args.drafts.check()?;
    args.drafts.without_effect().iter().for_each(note);
    // The session reports the sentinel's events.
    warnings::show(false);
    let stop = Stop::listen()?;
    let request = args.load.request();
    // A prompt without images needs no projector. But in a chat, a person may send an image at any time.
    let sees = prompt.is_none() || !args.media.is_empty();
    // A wrong file is an error before anything is fetched or loaded.
    let media = args.media.read()?;
    let files = args.load.source.files(&args.load.projector.wanted(sees), &request, &stop)?;
    let Some(Files { model: path, projector }) = files else { return Ok(ExitCode::from(130)) };
    let system = args.system()?;
    let template = if args.texts.raw { None } else { template(args, &path)? };
    if args.texts.raw && (prompt.is_none() || system.is_some()) {
        return Err("--raw continues a prompt: it takes neither a system message nor a conversation".into());
    }
    if template.is_none() && (prompt.is_none() || system.is_some()) {
        let families = FAMILIES.join(", ");
        let problem = "the model has no chat template: --template names its family, one of";
        return Err(format!("{problem} {families}, or a file").into());
    }
    let store = args.load.store(CacheRam::Off, &[])?;
    let more = |builder: ModelBuilder| {
        let builder = args.load.projector.set(args.drafts.load(builder), projector.as_deref());
        store.iter().cloned().fold(builder, ModelBuilder::prompt_store)
    };
    let is_stopped = match args.load.load(&path, request, &stop, more)? {
        None => true,
        Some(model) => match template {
            Some(template) => converse(args, (model, template), system, (media, prompt, first), stop)?,
            None => go_on(args, &model, (media, &prompt.unwrap_or_default()), &stop)?,
        },
    };
    // A shell reports 130 for a program that Ctrl-C has ended.
    Ok(if is_stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// The template that was asked for, or else the model's own; `None` if the model has none.
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

/// Answers the prompt, the messages of a person, or the lines of a pipe. Returns whether Ctrl-C ended the answer.
fn converse(
    args: &TalkArgs,
    (model, template): (Model, ChatTemplate),
    system: Option<String>,
    (media, prompt, first): (Vec<(PathBuf, Media)>, Option<String>, Option<String>),
    stop: Stop,
) -> Result<bool, Box<dyn Error>> {
    let mut chat = model.chat_with(template).with(|generate| args.generated(generate, &model));
    if let Some(system) = system {
        chat = chat.system(system);
    }
    chat = args.texts.answered(chat);
    let mut seen: Vec<Part> = shown(media, &model).map(Part::Media).collect();
    let mut session = Session::new(model, chat, stop);
    if let Some(prompt) = prompt {
        return session.say_text(seen, &prompt);
    }
    if let Some(first) = first {
        let is_stopped = session.say_text(std::mem::take(&mut seen), &first)?;
        if is_stopped || args.texts.single_turn {
            return Ok(is_stopped);
        }
    }
    if stdin().is_terminal() && stdout().is_terminal() {
        return session.talk(seen, args.texts.single_turn).map(|()| false);
    }
    for (number, line) in stdin().lines().enumerate() {
        let line = line.map_err(|error| format!("cannot read stdin: {error}"))?;
        let line = if number == 0 { without_byte_order_mark(&line) } else { &line };
        if line.trim().is_empty() {
            continue;
        }
        if session.say_text(std::mem::take(&mut seen), line)? {
            return Ok(true);
        }
        if args.texts.single_turn {
            break;
        }
    }
    Ok(false)
}

/// Continues the prompt as plain text, because the model has no chat template. Returns whether Ctrl-C ended the text.
fn go_on(
    args: &TalkArgs,
    model: &Model,
    (media, prompt): (Vec<(PathBuf, Media)>, &str),
    stop: &Stop,
) -> Result<bool, Box<dyn Error>> {
    check_length(prompt, model)?;
    let why = if args.texts.raw { "with --raw" } else { "because the model has no chat template" };
    note(format!("{why}, the prompt is continued as plain text"));
    let whole = shown(media, model).fold(Prompt::text(""), Prompt::then_media);
    let whole = if args.media.is_empty() { Prompt::text(prompt) } else { whole.then_text(prompt) };
    let mut text = args.generated(model.generate(whole), model).stream().map_err(more_context)?;
    stop.begin(text.abort_handle());
    let outcome = write(text.by_ref().map(|piece| piece.map(ReplyPart::Content)), stop);
    note_full(text.finish_reason());
    outcome
}

/// The images and sounds, each after a line with its size.
fn shown(media: Vec<(PathBuf, Media)>, model: &Model) -> impl Iterator<Item = Media> {
    media.into_iter().map(|(path, media)| {
        note(media::line(&path, &media, model));
        media
    })
}

impl TalkArgs {
    /// The system message, from the argument or a file.
    fn system(&self) -> Result<Option<String>, Box<dyn Error>> {
        match (&self.system, self.texts.system()?) {
            (Some(_), Some(_)) => Err("both --system and --system-file give a system message: use one of them".into()),
            (said, of_file) => Ok(said.clone().or(of_file)),
        }
    }

    fn generated(&self, generate: GenerateRequest, model: &Model) -> GenerateRequest {
        let generate =
            self.drafts.generate(generate.sampling(self.sampling.over(model.sampling(), !self.texts.no_escape)));
        let limit = self.max_tokens.and_then(|most| usize::try_from(most).ok());
        self.texts.generated(generate.max_tokens(limit.unwrap_or(usize::MAX)))
    }
}
