//! The output of a chat. Everything else goes to stderr. It is dimmed if the terminal can do that and allows it
//! (`TERM`, `NO_COLOR`).

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use autoplace::chat::ReplyPart;
use autoplace::generate::{self, FinishReason};
use console::Style;

use crate::stop::Stop;
use crate::terminal::{shown, unwritten};

/// Whether the last line of an answer is still without a line break.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Prints a line that is not part of an answer, while an answer may be printed.
pub(super) fn note_apart(text: impl Display) {
    if IS_OPEN.load(Relaxed) && stdout().is_terminal() {
        dimmed("\n");
    }
    note(text);
}

/// Prints a line that is not part of an answer.
pub(super) fn note(text: impl Display) {
    dimmed(&(text.to_string().replace(char::is_control, " ") + "\n"));
}

/// Prints dimmed text. If printing fails, nobody reads stderr, so the error is ignored.
fn dimmed(text: &str) {
    let text = if stderr().is_terminal() { &shown(text) } else { text };
    let _ = write!(stderr(), "{}", Style::new().for_stderr().dim().apply_to(text));
}

/// Prints an answer as it arrives. Returns whether Ctrl-C ended it.
pub(super) fn write(
    mut parts: impl Iterator<Item = Result<ReplyPart, generate::Error>>,
    stop: &Stop,
) -> Result<bool, Box<dyn Error>> {
    let mut answer = Answer { thinks: false, is_open: true };
    let outcome = parts.try_for_each(|part| -> Result<(), Box<dyn Error>> { answer.part(&part?).map_err(unwritten) });
    let is_stopped = stop.end();
    answer.end().map_err(unwritten)?;
    // If Ctrl-C stopped the answer, it may end with an error.
    if is_stopped { Ok(true) } else { outcome.map(|()| false) }
}

/// If the answer is not complete, prints a note.
pub(super) fn note_full(reason: Option<FinishReason>) {
    if reason == Some(FinishReason::ContextFull) {
        note(format!("the context is full, and the answer ends here: {MORE}"));
    }
}

/// If a prompt is too long, adds advice to the error.
pub(super) fn more_context(error: generate::Error) -> Box<dyn Error> {
    match error {
        generate::Error::PromptTooLong { .. } => format!("{error}: {MORE}").into(),
        error => error.into(),
    }
}

/// Advice for a text that does not fit into the context.
pub(super) const MORE: &str = "--ctx N or --ctx auto gives more";

struct Answer {
    /// Whether the text printed last was reasoning.
    thinks: bool,
    /// Whether the last line is still without a line break.
    is_open: bool,
}

impl Answer {
    fn part(&mut self, part: &ReplyPart) -> io::Result<()> {
        match part {
            ReplyPart::Reasoning(text) => {
                self.thinks = true;
                dimmed(text);
                Ok(())
            }
            ReplyPart::Content(text) => self.content(text),
            ReplyPart::ToolCall(call) => self.content(&format!("[{}({})]", call.name, call.arguments)),
        }
    }

    fn content(&mut self, text: &str) -> io::Result<()> {
        if mem::take(&mut self.thinks) {
            dimmed("\n");
        }
        let mut out = stdout().lock();
        let text = if out.is_terminal() { &shown(text) } else { text };
        self.is_open = !text.ends_with('\n');
        IS_OPEN.store(self.is_open, Relaxed);
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn end(&mut self) -> io::Result<()> {
        if self.is_open { self.content("\n") } else { Ok(()) }
    }
}
