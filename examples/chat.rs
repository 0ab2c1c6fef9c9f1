//! Chats with a model: it answers every line and keeps the history. Ctrl-C stops the answer; a second Ctrl-C, or the
//! end of the input, ends the program. A model without a chat template needs `--template` with a family's name or a
//! file.
//!
//!     cargo run --release --example chat -- -m model.gguf

use std::io::{BufRead, IsTerminal, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use autoplace::plan::Context;
use autoplace::{AbortHandle, Chat, Model, ReplyPart};
use autoplace_examples::{DEMO_MODEL, read_template};
use clap::Parser;

/// Chats with a local model, placed so that it fits.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// GGUF file; for a split model, its first part
    #[arg(short, long, value_name = "FILE", default_value = DEMO_MODEL, hide_default_value = true)]
    model: PathBuf,
    /// System message, which the model reads first
    #[arg(short, long)]
    system: Option<String>,
    /// Family or file of the chat template [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// Maximum number of tokens in an answer
    #[arg(short, default_value_t = 1024)]
    n: usize,
    /// Tokens of context [default: 4096 to 32768, the most that moves no layer to the host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// Seed of the random choice [default: a new seed every time]
    #[arg(long)]
    seed: Option<u32>,
}

/// The running answer, for Ctrl-C to stop.
type Answering = Arc<Mutex<Option<AbortHandle>>>;

fn main() -> ExitCode {
    autoplace_examples::run(|args: Args| run(args).map(|()| ExitCode::SUCCESS))
}

fn run(args: Args) -> anyhow::Result<()> {
    let answering = Answering::default();
    let stopped = Arc::new(AtomicBool::new(false));
    let (to_stop, flag) = (Arc::clone(&answering), Arc::clone(&stopped));
    let on_signal = move || {
        let running = to_stop.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(answer) if !flag.swap(true, Relaxed) => answer.abort(),
            _ => std::process::exit(130),
        }
    };
    ctrlc::set_handler(on_signal).context("cannot listen for Ctrl-C")?;

    let context = args.ctx.map_or(Context::Default, Context::Tokens);
    let model = Model::builder(&args.model).context(context).load()?;
    let mut chat = match &args.template {
        Some(template) => model.chat_with(read_template(template)?),
        None => model.chat()?,
    };
    chat = chat.with(|generate| {
        let generate = generate.max_tokens(args.n);
        match args.seed {
            Some(seed) => generate.seed(seed),
            None => generate,
        }
    });
    if let Some(system) = args.system {
        chat = chat.system(system);
    }
    let is_terminal = stdin().is_terminal();
    let mut line = String::new();
    loop {
        if is_terminal {
            print!("> ");
            stdout().flush()?;
        }
        line.clear();
        if stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        if !line.trim().is_empty() {
            stopped.store(false, Relaxed);
            answer(&mut chat, line.trim(), &answering, &stopped)?;
        }
    }
}

/// Prints an answer as it arrives, with its reasoning in grey.
fn answer(chat: &mut Chat, said: &str, answering: &Answering, stopped: &AtomicBool) -> anyhow::Result<()> {
    let running = |answer| *answering.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    let mut stream = chat.say(said)?;
    running(Some(stream.abort_handle()));
    let mut out = stdout().lock();
    let outcome = stream.try_for_each(|part| -> anyhow::Result<()> {
        match part? {
            ReplyPart::Reasoning(text) => write!(out, "\x1b[90m{text}\x1b[0m")?,
            ReplyPart::Content(text) => write!(out, "{text}")?,
            ReplyPart::ToolCall(call) => write!(out, "[{}({})]", call.name, call.arguments)?,
        }
        Ok(out.flush()?)
    });
    running(None);
    writeln!(out)?;
    // If an answer is stopped, its part so far stays in the history.
    if stopped.load(Relaxed) { Ok(()) } else { outcome }
}
