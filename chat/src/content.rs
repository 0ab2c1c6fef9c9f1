//! The content of a message: a text that may have pictures and sounds at some places.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::media::Media;

/// A part of a message.
///
/// ```
/// use autoplace_chat::{Message, Part};
///
/// let message = Message::user([Part::text("What is this?"), Part::text("Be brief.")]);
/// assert_eq!(message.content, "What is this?\nBe brief.");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// A text.
    Text(String),
    /// A picture or a sound.
    Media(Media),
}

impl Part {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A picture.
    #[cfg(feature = "media")]
    pub fn image(image: autoplace_media::Image) -> Self {
        Self::Media(image.into())
    }

    /// A sound.
    #[cfg(feature = "media")]
    pub fn audio(sound: autoplace_media::Sound) -> Self {
        Self::Media(sound.into())
    }
}

/// A picture or a sound, with its place in the text of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attached {
    /// How many bytes of the text come before it.
    pub at: usize,
    /// The picture or the sound.
    pub media: Media,
}

/// The content of a message: a text, or a list of [`Part`]s. Every type that converts to a `String` also converts to a
/// content.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Content {
    pub(crate) text: String,
    pub(crate) media: Vec<Attached>,
}

impl FromIterator<Part> for Content {
    /// If texts follow each other, they are joined with a line break, as in llama.cpp (common/chat.cpp,
    /// `common_chat_msg::to_json_oaicompat`).
    fn from_iter<T: IntoIterator<Item = Part>>(parts: T) -> Self {
        let mut content = Self::default();
        let mut is_after_text = false;
        for part in parts {
            match part {
                Part::Text(text) => {
                    if is_after_text {
                        content.text.push('\n');
                    }
                    content.text.push_str(&text);
                    is_after_text = !content.text.is_empty();
                }
                Part::Media(media) => {
                    content.media.push(Attached { at: content.text.len(), media });
                    is_after_text = false;
                }
            }
        }
        content
    }
}

impl<const N: usize> From<[Part; N]> for Content {
    fn from(parts: [Part; N]) -> Self {
        parts.into_iter().collect()
    }
}

impl From<Vec<Part>> for Content {
    fn from(parts: Vec<Part>) -> Self {
        parts.into_iter().collect()
    }
}

impl From<Part> for Content {
    fn from(part: Part) -> Self {
        [part].into()
    }
}

macro_rules! from_text {
    ($($text:ty),+) => {$(
        impl From<$text> for Content {
            fn from(text: $text) -> Self {
                Self { text: text.into(), media: Vec::new() }
            }
        }
    )+};
}

from_text!(String, &String, &str, &mut str, Box<str>, Cow<'_, str>, char);

#[cfg(test)]
mod tests {
    use super::{Content, Part};

    #[test]
    fn consecutive_texts_are_joined_by_line_breaks_and_every_string_is_a_content() {
        let joined = |parts: &[&str]| parts.iter().map(|text| Part::text(*text)).collect::<Content>().text;
        assert_eq!((joined(&["a", "b"]), joined(&["", "b"]), joined(&[])), ("a\nb".into(), "b".into(), "".into()));
        let owned = "a".to_owned();
        for content in [Content::from(&owned), Content::from("a"), 'a'.into(), owned.clone().into_boxed_str().into()] {
            assert_eq!(content, Content::from(owned.clone()));
        }
    }
}
