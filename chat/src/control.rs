//! If a text in a user's message looks like a control token, it must not become one. This module finds such texts
//! before a template runs, and again in the template's output.
//!
//! The first character of such a text is replaced by a stand-in, which is a character from Unicode's private planes
//! that occurs nowhere else. For each first character there is a different stand-in. A template treats a stand-in as it
//! would treat the `<`. So cutting, padding, counting and indenting give the usual results. In the prompt, each
//! stand-in is replaced by the original character. The same is done with a text that ends inside a control token,
//! because the next text may complete the token.

use std::collections::HashSet;

use serde_json::Value;

use super::rendered::Rendered;

/// The texts of a vocabulary's control tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct ControlTokens {
    texts: HashSet<Box<str>>,
    /// The lengths that occur among the texts, each once.
    lengths: Vec<usize>,
    /// The characters with which the texts begin, each once.
    firsts: Vec<char>,
}

/// The first of the stand-ins, which come from Unicode's last private plane.
const FIRST_STAND_IN: u32 = 0x10_0000;
const LAST_STAND_IN: u32 = 0x10_fffd;

impl FromIterator<String> for ControlTokens {
    fn from_iter<T: IntoIterator<Item = String>>(texts: T) -> Self {
        let mut tokens = Self::default();
        for text in texts {
            let Some(first) = text.chars().next() else { continue };
            if !tokens.firsts.contains(&first) {
                tokens.firsts.push(first);
            }
            if !tokens.lengths.contains(&text.len()) {
                tokens.lengths.push(text.len());
            }
            tokens.texts.insert(text.into_boxed_str());
        }
        tokens
    }
}

impl ControlTokens {
    /// If a text begins with control tokens, the length in bytes of the longest of them.
    fn at(&self, text: &str) -> Option<usize> {
        let is_token = |length: &usize| text.get(..*length).is_some_and(|start| self.texts.contains(start));
        self.lengths.iter().copied().filter(is_token).max()
    }

    /// Whether a text is the beginning of a control token, but not a whole one.
    fn is_cut_off(&self, text: &str) -> bool {
        let is_short = self.lengths.iter().any(|length| text.len() < *length);
        is_short && !text.is_empty() && self.texts.iter().any(|token| token.starts_with(text))
    }

    /// The byte positions of control tokens in a text. Tokens may overlap, and a token that is cut off by the end of
    /// the text counts too.
    fn places<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let begins = |(at, c): &(usize, char)| {
            let rest = &text[*at..];
            self.firsts.contains(c) && (self.at(rest).is_some() || self.is_cut_off(rest))
        };
        text.char_indices().filter(begins).map(|(at, _)| at)
    }

    /// The stand-ins that are needed to render these values; `None` if no control token occurs in them.
    pub(super) fn stand_ins<'a>(&self, values: impl Iterator<Item = &'a Value>, source: &str) -> Option<StandIns> {
        let mut occur = false;
        let mut used = HashSet::new();
        let private = |c: &char| u32::from(*c) >= FIRST_STAND_IN;
        used.extend(source.chars().filter(private));
        let mut see = |text: &str| {
            occur = occur || self.places(text).next().is_some();
            used.extend(text.chars().filter(private));
        };
        values.for_each(|value| each_text(value, &mut see));
        if !occur {
            return None;
        }
        let free = (FIRST_STAND_IN..=LAST_STAND_IN).filter_map(char::from_u32);
        let free = free.filter(|c| !used.contains(c));
        // There are too few stand-ins only if a text contains nearly all of the 65,534 private characters.
        Some(StandIns(self.firsts.iter().copied().zip(free).collect()))
    }

    /// The value, in which the first character of each control token is replaced by its stand-in.
    pub(super) fn protect(&self, value: &Value, stand_ins: &StandIns) -> Value {
        match value {
            Value::String(text) => self.protect_text(text, stand_ins).into(),
            Value::Array(items) => items.iter().map(|item| self.protect(item, stand_ins)).collect(),
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| {
                    let key = self.protect_text(key, stand_ins);
                    (key, self.protect(value, stand_ins))
                })
                .collect(),
            value => value.clone(),
        }
    }

    fn protect_text(&self, text: &str, stand_ins: &StandIns) -> String {
        let mut places = self.places(text).peekable();
        let chars = text.char_indices();
        let protected = chars.map(|(at, c)| match places.next_if_eq(&at) {
            Some(_) => stand_ins.stand_in(c),
            None => c,
        });
        protected.collect()
    }

    /// Restores the original characters. At the places of the stand-ins, the result must be read as plain text.
    pub(super) fn restore(&self, text: &str, stand_ins: &StandIns) -> Rendered {
        let mut rendered = Rendered::default();
        // The end of the current control token. Other tokens may begin before this end.
        let mut end = 0;
        let original = |c| stand_ins.original(c).unwrap_or(c);
        let prompt: String = text.chars().map(original).collect();
        for (c, (at, original)) in text.chars().zip(prompt.char_indices()) {
            if c != original {
                // The length is 0 if no other text has completed the token, or if the template has cut the token.
                let length = self.at(&prompt[at..]).unwrap_or(0);
                end = end.max(at + length);
            }
            rendered.push(original, at < end);
        }
        rendered
    }
}

pub(super) fn each_text(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, see)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            see(key);
            each_text(value, see);
        }),
        _ => {}
    }
}

/// For one rendering, the stand-in of each first character.
pub(super) struct StandIns(Vec<(char, char)>);

impl StandIns {
    fn stand_in(&self, original: char) -> char {
        let found = self.0.iter().find(|(first, _)| *first == original);
        found.map_or(original, |(_, stand_in)| *stand_in)
    }

    fn original(&self, stand_in: char) -> Option<char> {
        if u32::from(stand_in) < FIRST_STAND_IN {
            return None;
        }
        let found = self.0.iter().find(|(_, other)| *other == stand_in);
        found.map(|(original, _)| *original)
    }
}
