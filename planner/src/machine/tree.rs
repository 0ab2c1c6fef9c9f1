//! Linux's own files, under a root that tests can replace; and notes on sources that detection could not read.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file tree with `proc` and `sys`: `/`, or a folder in its place.
#[derive(Debug, Clone, Copy)]
pub(in crate::machine) struct Tree<'a>(pub(in crate::machine) &'a Path);

impl Tree<'_> {
    /// The path on disk of an absolute path in the tree.
    pub(in crate::machine) fn locate(&self, absolute: &str) -> PathBuf {
        self.0.join(absolute.trim_start_matches('/'))
    }

    /// The text of a file, or `None` if it does not exist. A file that exists but cannot be read gives a note.
    pub(in crate::machine) fn read(&self, absolute: &str, notes: &mut Notes) -> Option<String> {
        match fs::read(self.locate(absolute)) {
            // The paths of groups and mounts may be any bytes. One path that is not valid UTF-8 must not hide the rest
            // of the file.
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                    notes.add(absolute, format!("cannot be read: {error}"));
                }
                None
            }
        }
    }
}

/// The value of `key` in lines of `key value` or `key: value kB`: `/proc/meminfo`, `/proc/self/status`, `memory.stat`.
pub(in crate::machine) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        if !rest.starts_with([' ', '\t']) {
            return None;
        }
        let (value, unit) = match rest.trim().strip_suffix("kB") {
            Some(value) => (value, 1024),
            None => (rest, 1),
        };
        Some(value.trim().parse::<u64>().ok()?.saturating_mul(unit))
    })
}

/// A source that detection skipped or replaced, and why.
///
/// Detection never fails as a whole. If a source is missing or wrong, the [`Machine`](super::Machine) has a note, and
/// `tracing` gets the same line at debug level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{about}: {text}")]
#[non_exhaustive]
pub struct Note {
    /// The source or device: `NVML`, `CUDA0`, `/proc/meminfo`.
    pub about: String,
    /// The problem, and the value or source that is used instead.
    pub text: String,
}

impl Note {
    /// A note about a source or a device, without control characters.
    pub fn new(about: impl Into<String>, text: impl Into<String>) -> Self {
        let [about, text] = [about.into(), text.into()].map(|text: String| text.replace(char::is_control, " "));
        Self { about, text }
    }
}

/// Collects notes and sends each to `tracing`.
#[derive(Debug, Default)]
pub(super) struct Notes(pub(super) Vec<Note>);

impl Notes {
    pub(super) fn add(&mut self, about: impl Into<String>, text: impl Into<String>) {
        let note = Note::new(about, text);
        tracing::debug!(about = %note.about, "{}", note.text);
        self.0.push(note);
    }
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn a_field_is_found_by_its_whole_name_and_scaled_by_its_unit() {
        let text = "MemTotal:       16 kB\nactive_file_extra 9\nactive_file 7\nOdd: 3 MB\nBad: x kB\n\
                    Most: 18446744073709551615 kB\nMore: 18446744073709551616 kB\n";
        for (key, value) in [
            ("MemTotal", Some(16 * 1024)),
            ("active_file", Some(7)),
            ("Odd", None),
            ("Bad", None),
            ("Mem", None),
            ("Most", Some(u64::MAX)),
            ("More", None),
        ] {
            assert_eq!(field(text, key), value, "{key}");
        }
    }
}
