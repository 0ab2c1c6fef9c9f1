//! The line editor, in which a person types messages. They are stored for later chats, in a file that only the user can
//! read.

use std::fs;
use std::path::PathBuf;

use etcetera::BaseStrategy;
use rustyline::{Config, DefaultEditor, Result};

use super::screen::note;

/// Maximum number of messages that are stored.
const REMEMBERED: usize = 1000;

pub(super) struct Editor {
    lines: DefaultEditor,
    /// The file in which messages are stored; `None` if they are not stored.
    history: Option<PathBuf>,
}

impl Editor {
    pub(super) fn new() -> Result<Self> {
        let config = Config::builder().max_history_size(REMEMBERED)?.history_ignore_space(true).build();
        let folders = etcetera::base_strategy::choose_native_strategy().ok();
        let history = folders.map(|folders| folders.data_dir().join("autoplace/history.txt"));
        let mut editor = Self { lines: DefaultEditor::with_config(config)?, history };
        if let Some(file) = editor.history.as_deref().filter(|file| file.exists()) {
            let loaded = editor.lines.load_history(file);
            editor.check(loaded);
        }
        Ok(editor)
    }

    /// Reads the next message. A message is one line; if the line ends with a backslash, the next line belongs to it
    /// too.
    pub(super) fn message(&mut self) -> Result<String> {
        let mut message = self.lines.readline("> ")?;
        while message.ends_with('\\') {
            message.pop();
            message = message + "\n" + &self.lines.readline(". ")?;
        }
        let is_new = self.lines.add_history_entry(&message)?;
        if let Some(file) = self.history.clone().filter(|_| is_new) {
            let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
            let kept = folder.map_err(Into::into).and_then(|()| self.lines.append_history(&file));
            self.check(kept);
        }
        Ok(message)
    }

    /// Reports that messages could not be stored, but only the first time.
    fn check(&mut self, kept: Result<()>) {
        if let (Err(error), Some(file)) = (kept, &self.history) {
            note(format!("the history of messages is no longer saved: {}: {error}", file.display()));
            self.history = None;
        }
    }
}
