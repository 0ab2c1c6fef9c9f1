//! A rendered prompt. Some parts of it must not be read as control tokens.

use std::fmt;

/// A prompt. [`parts`](Self::parts) separates four things: the template's text, texts of users that look like control
/// tokens, pictures, and sounds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// For each part, its end and its kind.
    ends: Vec<(usize, Kind)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Markup,
    Text,
    Media(usize),
}

/// A part of a prompt. The variant says how it is tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPart<'a> {
    /// Control tokens in it are recognised.
    Markup(&'a str),
    /// Plain text: control tokens in it are not recognised.
    Text(&'a str),
    /// A picture or a sound of the conversation. The number counts them from 0, in the order of the messages. The text
    /// stands for the picture or sound if the prompt is shown.
    Media(usize, &'a str),
}

impl Rendered {
    pub(super) fn markup(text: String) -> Self {
        let ends = vec![(text.len(), Kind::Markup)];
        Self { text, ends }
    }

    pub(super) fn push(&mut self, c: char, is_text: bool) {
        self.add(c, if is_text { Kind::Text } else { Kind::Markup });
    }

    fn add(&mut self, c: char, kind: Kind) {
        self.text.push(c);
        self.extend_to_end(kind);
    }

    /// Makes a part of this kind out of the text after the last part.
    fn extend_to_end(&mut self, kind: Kind) {
        let end = self.text.len();
        match self.ends.last_mut() {
            Some(last) if last.1 == kind && !matches!(kind, Kind::Media(_)) => last.0 = end,
            _ => self.ends.push((end, kind)),
        }
    }

    /// The same prompt, in which some characters are replaced by pictures and sounds. For such a character, `place`
    /// returns the number of the picture or sound, and the text that stands for it if the prompt is shown.
    pub(super) fn with_media<'m>(&self, mut place: impl FnMut(char) -> Option<(usize, &'m str)>) -> Self {
        let mut placed = Self::default();
        for part in self.parts() {
            let kind = if matches!(part, PromptPart::Text(_)) { Kind::Text } else { Kind::Markup };
            for c in part.as_str().chars() {
                match place(c) {
                    None => placed.add(c, kind),
                    Some((index, shown)) => {
                        placed.text.push_str(shown);
                        placed.extend_to_end(Kind::Media(index));
                    }
                }
            }
        }
        placed
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

    /// The whole prompt. In place of pictures and sounds, it contains texts with their sizes and hashes.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The whole prompt, with the same text as [`as_str`](Self::as_str).
    pub fn into_string(self) -> String {
        self.text
    }

    /// The parts in order. Together, their texts are the whole prompt.
    pub fn parts(&self) -> impl Iterator<Item = PromptPart<'_>> {
        let mut from = 0;
        self.ends.iter().map(move |(end, kind)| {
            let text = &self.text[from..*end];
            from = *end;
            match *kind {
                Kind::Text => PromptPart::Text(text),
                Kind::Markup => PromptPart::Markup(text),
                Kind::Media(index) => PromptPart::Media(index, text),
            }
        })
    }
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'a> PromptPart<'a> {
    /// The part's text.
    pub fn as_str(&self) -> &'a str {
        match self {
            Self::Markup(text) | Self::Text(text) | Self::Media(_, text) => text,
        }
    }
}
