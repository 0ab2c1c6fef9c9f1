//! A command line, word by word, with what it cannot say as comments before it.

use autoplace::plan::Plan;

use super::{EmitError, Tool, comment};

/// A command line in the making.
pub(super) struct Command {
    tool: Tool,
    words: Vec<String>,
    notes: Vec<String>,
}

impl Command {
    pub(super) fn new(tool: Tool, program: &str) -> Self {
        Self { tool, words: vec![program.to_owned()], notes: Vec::new() }
    }

    /// A flag without a value.
    pub(super) fn switch(&mut self, flag: &str) {
        self.words.push(flag.to_owned());
    }

    /// A flag with a value.
    pub(super) fn flag(&mut self, flag: &str, value: impl ToString) {
        self.words.extend([flag.to_owned(), value.to_string()]);
    }

    /// What is said as a comment.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The comments, and the command in one line, quoted for a POSIX shell.
    pub(super) fn finish(self, plan: &Plan) -> Result<String, EmitError> {
        let words = self.words.iter().map(String::as_str);
        let line = shlex::try_join(words)
            .map_err(|_| EmitError::Inexpressible { tool: self.tool, what: "a word with a NUL".to_owned() })?;
        let comments = comment("#", plan, &self.notes);
        Ok(format!("{comments}{line}\n"))
    }
}
