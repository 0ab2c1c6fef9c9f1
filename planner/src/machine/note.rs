//! What detection could not see, said aloud.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that detection skipped or took from a second-best source, and why.
///
/// Detection never fails as a whole; where one source is missing or answers nonsense, the [`Machine`](super::Machine)
/// says so here, and the same line goes to `tracing` at debug level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Note {
    /// What the note is about: a source or a device, such as `NVML`, `CUDA0` or `/proc/meminfo`.
    pub about: String,
    /// What was seen there and what was done instead.
    pub text: String,
}

impl Note {
    /// A note about a source or a device.
    pub fn new(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            about: about.into(),
            text: text.into(),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.text)
    }
}

/// Collects notes on the way, each told to `tracing` once.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<Note>);

impl Notes {
    pub(super) fn add(&mut self, about: impl Into<String>, text: impl Into<String>) {
        let note = Note::new(about, text);
        tracing::debug!(about = %note.about, "{}", note.text);
        self.0.push(note);
    }

    pub(super) fn into_vec(self) -> Vec<Note> {
        self.0
    }
}
