//! Marks: the characters that represent pictures and sounds while a template runs.
//!
//! A template treats a mark like a letter, so the picture stays at its place in the text, as in llama.cpp's server. The
//! marks come from a private plane of Unicode and occur in no message. The prompt must show each of them exactly once,
//! so that no text of a user becomes a picture.

use std::collections::HashSet;

use serde_json::json;

use super::control::each_text;
use super::error::Error;
use super::message::Message;
use super::rendered::Rendered;

/// The characters for marks, from the second to last plane. `control` takes its stand-ins from the last plane.
const MARKS: std::ops::RangeInclusive<u32> = 0xf_0000..=0xf_fffd;

/// A picture or a sound of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    pub(super) mark: char,
    /// The text that a shown prompt has in its place.
    pub(super) shown: String,
}

/// The marks of a conversation.
#[derive(Debug, Default)]
pub(super) struct Marks {
    free: Vec<char>,
    pub(super) set: Vec<Mark>,
}

impl Marks {
    /// Finds characters for marks that occur in none of these messages.
    pub(super) fn new(messages: &[Message]) -> Self {
        let needed = messages.iter().map(|message| message.media.len()).sum();
        let mut used = HashSet::new();
        if needed > 0 {
            for message in messages {
                let texts = json!(Message { media: Vec::new(), ..message.clone() });
                each_text(&texts, &mut |text: &str| {
                    used.extend(text.chars().filter(|c| MARKS.contains(&u32::from(*c))));
                });
            }
        }
        let free = MARKS.filter_map(char::from_u32).filter(|mark| !used.contains(mark));
        let mut free: Vec<char> = free.take(needed).collect();
        free.reverse();
        Self { free, set: Vec::new() }
    }

    /// The content of a message, with marks at the places of its pictures and sounds.
    pub(super) fn content(&mut self, message: &Message) -> String {
        let mut content = String::with_capacity(message.content.len() + 4 * message.media.len());
        let mut from = 0;
        for attached in &message.media {
            // The position may lie outside the text if the application has edited it.
            let mut at = attached.at.clamp(from, message.content.len());
            while !message.content.is_char_boundary(at) {
                at += 1;
            }
            content.push_str(&message.content[from..at]);
            from = at;
            // Marks run out only if the messages contain nearly all 65,534 characters. Then the picture is not shown,
            // which is an error later.
            let mark = self.free.pop().unwrap_or(char::REPLACEMENT_CHARACTER);
            content.push(mark);
            self.set.push(Mark { mark, shown: attached.media.shown() });
        }
        content.push_str(&message.content[from..]);
        content
    }
}

/// The prompt with its marks replaced by the pictures and sounds.
pub(super) fn placed(rendered: Rendered, marks: &[Mark]) -> Result<Rendered, Error> {
    if marks.is_empty() {
        return Ok(rendered);
    }
    let mut times = vec![0_usize; marks.len()];
    let place = |c: char| {
        if !MARKS.contains(&u32::from(c)) {
            return None;
        }
        let index = marks.iter().position(|known| known.mark == c)?;
        times[index] += 1;
        Some((index, marks[index].shown.as_str()))
    };
    let placed = rendered.with_media(place);
    match times.iter().filter(|times| **times == 1).count() {
        shown if shown == marks.len() => Ok(placed),
        shown => Err(Error::MediaNotShown { media: marks.len(), shown }),
    }
}
