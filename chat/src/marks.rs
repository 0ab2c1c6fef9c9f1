//! Marks: the characters that stand for pictures and sounds while a template runs.
//!
//! To a template a mark is like a letter. So the picture keeps its place in the text, as in llama.cpp's server. Marks
//! come from a private plane of Unicode, and occur in no message. The prompt must contain each mark exactly once, so
//! that a user's text cannot become a picture.

use std::collections::HashSet;

use serde_json::json;

use super::control::each_text;
use super::error::Error;
use super::message::Message;
use super::rendered::Rendered;

/// The characters that can be marks. They come from Unicode's second to last plane. The stand-ins of `control` come
/// from the last plane.
const MARKS: std::ops::RangeInclusive<u32> = 0xf_0000..=0xf_fffd;

/// A picture or a sound of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    pub(super) mark: char,
    /// The text that stands for the picture or sound if the prompt is shown.
    pub(super) shown: String,
}

/// The marks of a conversation.
#[derive(Debug, Default)]
pub(super) struct Marks {
    free: Vec<char>,
    pub(super) set: Vec<Mark>,
}

impl Marks {
    /// Finds characters that occur in none of these messages.
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

    /// The content of a message, with a mark at the place of each picture and each sound.
    pub(super) fn content(&mut self, message: &Message) -> String {
        let mut content = String::with_capacity(message.content.len() + 4 * message.media.len());
        let mut from = 0;
        for attached in &message.media {
            // If the application has edited the text, the position may lie outside of it.
            let mut at = attached.at.clamp(from, message.content.len());
            while !message.content.is_char_boundary(at) {
                at += 1;
            }
            content.push_str(&message.content[from..at]);
            from = at;
            // There are too few marks only if the messages contain nearly all of the 65,534 characters. In that case
            // the picture is not shown, and this leads to an error later.
            let mark = self.free.pop().unwrap_or(char::REPLACEMENT_CHARACTER);
            content.push(mark);
            self.set.push(Mark { mark, shown: attached.media.shown() });
        }
        content.push_str(&message.content[from..]);
        content
    }
}

/// The prompt, in which each mark is replaced by its picture or sound.
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
