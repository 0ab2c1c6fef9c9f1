//! A chat at a terminal. In: messages. Out: answers, and notes about changes of the model's placement.

use std::error::Error;
use std::sync::Arc;

use autoplace::chat::{Content, Part, Role};
use autoplace::generate::{Chat, Statistics};
use autoplace::machine::Bytes;
use autoplace::watch::{Event, Sentinel};
use autoplace::{Model, Plan};
use rustyline::error::ReadlineError;

use super::editor::Editor;
use super::files::{WithFiles, with_files};
use super::load::summary;
use super::media::line;
use super::screen::{MORE, more_context, note, note_full, write};
use crate::stop::Stop;
use crate::terminal::print;

/// Maximum number of bytes that a token is assumed to have. If a file or a prompt has more bytes than this number times
/// the tokens of the context, the file is not read, and the prompt is not tokenized.
const MAX_PER_TOKEN: u64 = 128;
/// The model is loaded again only if that makes it faster by at least this share.
const MIN_GAIN: f64 = 0.1;

/// A description of the commands in a chat.
const HELP: &str = "\
/stats         shows tokens and speed of the last answer, and the predicted speed
/placement     shows where the model is, and why
/clear         forgets the conversation
/system TEXT   sets the system message, which the model reads first; without TEXT, removes it
/quit          leaves, like Ctrl-D
@FILE          inserts a file's text into a message, or puts an image or a sound before it; @\"MY FILE\" for a name
               with spaces, @@ for an @
\\              at the end of a line continues the message on the next line
Ctrl-C ends an answer; a line that begins with a space is not saved in the history, and its / begins no command";

pub(super) struct Session {
    model: Model,
    chat: Chat,
    stop: Stop,
    sentinel: Option<Sentinel>,
    /// The placement that was reported last.
    placed: Arc<Plan>,
    /// How many messages no longer fitted into the context at the last report.
    forgotten: usize,
    last: Option<Statistics>,
}

impl Session {
    pub(super) fn new(model: Model, chat: Chat, stop: Stop) -> Self {
        let watched = model.clone();
        let sentinel = Sentinel::builder().on_event(move |event| follow(event, &watched)).watch(&model);
        let sentinel = sentinel.inspect_err(|error| note(format!("the model is not watched: {error}"))).ok();
        Self { placed: model.placement(), model, chat, stop, sentinel, forgotten: 0, last: None }
    }

    /// Runs the chat until the person leaves, or only for one answer. `seen` contains images and sounds for the first
    /// message.
    pub(super) fn talk(&mut self, mut seen: Vec<Part>, single_turn: bool) -> Result<(), Box<dyn Error>> {
        let mut editor = Editor::new()?;
        note("/help lists the commands");
        loop {
            let text = match editor.message() {
                Err(ReadlineError::Eof) => return Ok(()),
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => {
                    note("Ctrl-D or /quit leaves");
                    continue;
                }
                text => text?,
            };
            let line = text.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match word {
                "" => {}
                _ if !text.starts_with('/') => {
                    self.answer(std::mem::take(&mut seen), line);
                    if single_turn {
                        return Ok(());
                    }
                }
                "/help" => _ = print(HELP),
                "/stats" => _ = print(&self.stats()),
                "/placement" => _ = print(&self.placement()),
                "/clear" => self.clear(),
                "/system" => self.system(rest),
                "/quit" => return Ok(()),
                _ => note(format!("{word} is not a command, so nothing was sent; /help lists the commands")),
            }
        }
    }

    /// Answers a message. An error does not end the chat.
    fn answer(&mut self, mut seen: Vec<Part>, message: &str) {
        let most = u64::from(self.model.placement().context.n_ctx) * MAX_PER_TOKEN;
        let answered = with_files(message, most).map_err(Into::into).and_then(|WithFiles { text, media }| {
            for (path, media) in media {
                note(line(&path, &media, &self.model));
                seen.push(Part::Media(media));
            }
            seen.push(Part::text(text));
            self.say(seen)
        });
        if let Err(error) = answered {
            note(format!("error: {error}"));
        }
    }

    /// Prints the answer to a text, before which images and sounds may come. Returns what [`say`](Self::say) returns.
    pub(super) fn say_text(&mut self, mut seen: Vec<Part>, text: &str) -> Result<bool, Box<dyn Error>> {
        check_length(text, &self.model)?;
        seen.push(Part::text(text));
        self.say(seen)
    }

    /// Prints the answer to a message. Returns whether Ctrl-C ended the answer; the text so far stays in the
    /// conversation.
    fn say(&mut self, message: impl Into<Content>) -> Result<bool, Box<dyn Error>> {
        let mut parts = self.chat.say(message).map_err(more_context)?;
        self.stop.begin(parts.abort_handle());
        let outcome = write(&mut parts, &self.stop);
        self.last = Some(parts.statistics());
        note_full(parts.finish_reason());
        drop(parts);
        self.report_changes();
        outcome
    }

    /// Reports what has changed since the last report.
    fn report_changes(&mut self) {
        let forgotten = self.chat.forgotten().len();
        if forgotten > self.forgotten {
            note(format!("the context is full: the model is no longer shown the oldest {forgotten} messages"));
        }
        self.forgotten = forgotten;
        if let Some(sentinel) = &self.sentinel {
            // `Moving` is left out, because it was already reported when the move began.
            sentinel.events().try_iter().filter(|event| !matches!(event, Event::Moving { .. })).for_each(note);
        }
        let placed = self.model.placement();
        if !Arc::ptr_eq(&placed, &self.placed) {
            note(format!("re-placed: {}", summary(&placed)));
            self.placed = placed;
        }
    }

    /// Describes the placement. If the depth has caused a move, describes the move too.
    fn placement(&self) -> String {
        let moved = self.model.report().moved.as_ref().map(|moved| format!("\n  {moved}"));
        self.model.placement().to_string() + &moved.unwrap_or_default()
    }

    fn clear(&mut self) {
        self.chat.messages_mut().retain(|message| message.role == Role::SYSTEM);
        self.last = None;
    }

    fn system(&mut self, text: &str) {
        self.chat.messages_mut().retain(|message| message.role != Role::SYSTEM);
        if !text.is_empty() {
            self.chat = self.chat.clone().system(text);
        }
    }

    fn stats(&self) -> String {
        let plan = self.model.placement();
        let answer = self.last.map_or_else(|| "none yet".to_owned(), |last| last.to_string());
        let predicted = plan.speed.as_ref().map(|speed| {
            let (prompt, depth) = (speed.prompt.tokens_per_second, speed.depth);
            format!("prompts {prompt:.1} tok/s; {:.1} tok/s after {depth} tokens", speed.tokens_per_second)
        });
        let predicted = predicted.as_deref().unwrap_or("nothing");
        let used = self.last.map_or(0, |last| last.prompt_tokens + last.generated_tokens);
        format!("answer     {answer}\npredicted  {predicted}\ncontext    {used} of {} tokens", plan.context.n_ctx)
    }
}

/// Refuses a prompt that is far too long for the context. A tokenizer needs up to 120 times as much memory as the text,
/// so the text is not tokenized.
pub(super) fn check_length(prompt: &str, model: &Model) -> Result<(), Box<dyn Error>> {
    let n_ctx = model.placement().context.n_ctx;
    let bytes = prompt.len() as u64;
    match bytes > u64::from(n_ctx) * MAX_PER_TOKEN {
        false => Ok(()),
        true => Err(format!(
            "the prompt has {}, which is more text than a context of {n_ctx} tokens can hold: {MORE}",
            Bytes(bytes)
        )
        .into()),
    }
}

/// Asks for the re-placement that an event recommends. The model is re-placed before the next token is generated, but
/// not while a person types, because a message may come at any moment.
fn follow(event: &Event, model: &Model) {
    // A move is reported at once, because the answer pauses during it.
    if let Event::Moving { done, .. } = event {
        if *done == 0.0 {
            note("");
        }
        note(event);
    }
    if let Some(replacement) = event.advises(MIN_GAIN) {
        model.request_replace(replacement);
    }
}
