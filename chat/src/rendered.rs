//! A rendered prompt and its parts that must not be read as control tokens.

use std::fmt;

/// A prompt. [`parts`](Self::parts) separates the template's text from users' text that looks like control tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// The end of each part, and whether the part is [`Part::Text`].
    ends: Vec<(usize, bool)>,
}

/// A part of a prompt, with its way of tokenizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// Control tokens are recognised.
    Markup(&'a str),
    /// Text only: control tokens are not recognised.
    Text(&'a str),
}

impl Rendered {
    pub(super) fn markup(text: String) -> Self {
        let ends = vec![(text.len(), false)];
        Self { text, ends }
    }

    pub(super) fn push(&mut self, c: char, is_text: bool) {
        self.text.push(c);
        let end = self.text.len();
        match self.ends.last_mut() {
            Some(last) if last.1 == is_text => last.0 = end,
            _ => self.ends.push((end, is_text)),
        }
    }

    /// Keeps only the first `bytes` bytes.
    pub(super) fn truncate(&mut self, bytes: usize) {
        self.text.truncate(bytes);
        let mut from = 0;
        self.ends.retain_mut(|(end, _)| {
            let begins_before = from < bytes;
            from = *end;
            *end = bytes.min(*end);
            begins_before
        });
    }

    /// The whole prompt.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The whole prompt.
    pub fn into_string(self) -> String {
        self.text
    }

    /// The parts in order. Joined, they are the whole prompt.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let mut from = 0;
        self.ends.iter().map(move |(end, is_text)| {
            let text = &self.text[from..*end];
            from = *end;
            match is_text {
                true => Part::Text(text),
                false => Part::Markup(text),
            }
        })
    }
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'a> Part<'a> {
    /// The part's text.
    pub fn as_str(&self) -> &'a str {
        match self {
            Self::Markup(text) | Self::Text(text) => text,
        }
    }
}
