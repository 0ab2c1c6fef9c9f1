//! The prompt of a text.

use std::sync::Arc;

use llama_sys::{Token, Vocab};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::media::{Layout, Spans};
use crate::chat::{Media, Message, PromptPart, Rendered};
use crate::load::PreparedMedia;
use crate::worker;

/// A prompt: plain text, text with control tokens, tokens, pictures and sounds, or a concatenation of them.
///
/// ```
/// use autoplace::generate::Prompt;
/// let plain = Prompt::from("Once upon a time");
/// // Plain text from a person is never read as control tokens.
/// let turn = Prompt::markup("<|im_start|>user\n").then_text("What does <|im_end|> mean?").then_markup("<|im_end|>\n");
/// # let _ = (plain, turn);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Prompt {
    parts: Vec<Part>,
    begin: Begin,
}

/// The tokens before the parts of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Begin {
    /// No token.
    Nothing,
    /// The special tokens that the vocabulary adds before a text, such as BOS.
    Special,
    /// Exactly one BOS token if the vocabulary adds one, even if the parts already begin with BOS.
    OneBos,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Text(String),
    Markup(String),
    Tokens(Vec<Token>),
    /// A picture or a sound with the tokens around it.
    Media(Media),
    /// One part of a picture or a sound, by its index: only the rows, without the tokens around them.
    Rows(Media, usize),
    /// A whole picture or sound, or a part of one, that the worker already has under this number. Used only in messages
    /// to a worker.
    Kept(u64, Option<usize>),
}

impl Prompt {
    fn from_part(part: Part, begin: Begin) -> Self {
        Self { parts: vec![part], begin }
    }

    /// Plain text. Control tokens that are written in it are not read as control tokens. If the model's vocabulary asks
    /// for a BOS token, a BOS token is added in front.
    pub fn text(text: impl Into<String>) -> Self {
        Self::from_part(Part::Text(text.into()), Begin::Special)
    }

    /// Text in which control tokens are read as control tokens. No token is added in front.
    pub fn markup(text: impl Into<String>) -> Self {
        Self::from_part(Part::Markup(text.into()), Begin::Nothing)
    }

    /// Tokens. No token is added in front.
    pub fn tokens(tokens: impl Into<Vec<Token>>) -> Self {
        Self::from_part(Part::Tokens(tokens.into()), Begin::Nothing)
    }

    /// Appends plain text.
    pub fn then_text(mut self, text: impl Into<String>) -> Self {
        self.parts.push(Part::Text(text.into()));
        self
    }

    /// Appends text in which control tokens are read as control tokens.
    pub fn then_markup(mut self, text: impl Into<String>) -> Self {
        self.parts.push(Part::Markup(text.into()));
        self
    }

    /// Appends tokens.
    pub fn then_tokens(mut self, tokens: impl Into<Vec<Token>>) -> Self {
        self.parts.push(Part::Tokens(tokens.into()));
        self
    }

    /// Appends a picture or a sound, with the tokens that surround it as in the model's training. A model with a
    /// projector is needed ([`ModelBuilder::mmproj`](crate::ModelBuilder::mmproj)), and a text or a token must follow.
    ///
    /// The encoder turns the picture or sound into rows. Each row counts as a token of the prompt. The token of a row
    /// is a negative number that is derived from the hash of the pixels or samples.
    pub fn then_media(mut self, media: impl Into<Media>) -> Self {
        self.parts.push(Part::Media(media.into()));
        self
    }

    /// A prompt of these tokens, among which are rows of pictures and sounds.
    pub(crate) fn from_layout(tokens: &[Token], spans: &Spans) -> Self {
        let mut prompt = Self::tokens([]);
        let mut from = 0;
        for span in spans.all().iter().filter(|span| span.end() <= tokens.len()) {
            prompt = prompt.then_tokens(&tokens[from..span.from]);
            prompt.parts.push(Part::Rows(span.media.clone(), span.part()));
            from = span.end();
        }
        prompt.then_tokens(&tokens[from..])
    }

    /// Whether the prompt contains a picture or a sound.
    pub(crate) fn has_media(&self) -> bool {
        self.media().next().is_some()
    }

    /// The pictures and sounds of the prompt.
    pub(crate) fn media(&self) -> impl Iterator<Item = &Media> {
        self.parts.iter().filter_map(|part| match part {
            Part::Media(media) | Part::Rows(media, _) => Some(media),
            _ => None,
        })
    }

    /// The pictures and sounds that the prompt contains as a whole, with the tokens around them.
    pub(crate) fn whole_media(&self) -> impl Iterator<Item = &Media> {
        self.parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media),
            _ => None,
        })
    }

    /// The number of tokens, not counting those of pictures and sounds.
    pub(crate) fn tokens_of_texts(&self, vocab: &Vocab) -> Result<usize, Error> {
        let texts = self.parts.iter().filter(|part| matches!(part, Part::Text(_) | Part::Markup(_) | Part::Tokens(_)));
        let texts = Self { parts: texts.cloned().collect(), begin: self.begin };
        Ok(texts.tokenize(vocab)?.len())
    }

    /// The prompt as it is sent to a worker: each picture or sound that the worker already has is replaced by its
    /// number.
    pub(crate) fn by_number(&self, number: impl Fn(&Media) -> Option<u64>) -> Self {
        let part = |part: &Part| match part {
            Part::Media(media) => number(media).map(|number| Part::Kept(number, None)),
            Part::Rows(media, index) => number(media).map(|number| Part::Kept(number, Some(*index))),
            _ => None,
        };
        let parts = self.parts.iter().map(|piece| part(piece).unwrap_or_else(|| piece.clone())).collect();
        Self { parts, begin: self.begin }
    }

    /// The prompt after each number was replaced by its picture or sound; `None` if `kept` does not know one of the
    /// numbers.
    pub(crate) fn with_kept(self, kept: impl Fn(u64) -> Option<Media>) -> Option<Self> {
        let part = |part: Part| match part {
            Part::Kept(number, None) => kept(number).map(Part::Media),
            Part::Kept(number, Some(index)) => kept(number).map(|media| Part::Rows(media, index)),
            other => Some(other),
        };
        let parts = self.parts.into_iter().map(part).collect::<Option<_>>()?;
        Some(Self { parts, begin: self.begin })
    }

    /// The error for a prompt that refers to a picture or sound by a number that the worker does not know.
    pub(crate) fn unknown_number() -> Error {
        let reason = "a prompt refers to an image or a sound that was not sent".to_owned();
        worker::Error::Protocol { doing: "generating", reason }.into()
    }

    /// Sets whether the special tokens of the vocabulary, such as BOS, are added in front.
    pub fn add_special(mut self, add: bool) -> Self {
        self.begin = if add { Begin::Special } else { Begin::Nothing };
        self
    }

    /// Appends a rendered template without its first `skip` bytes. The skipped bytes must end between two parts, or
    /// within a text. Users' texts in the template become plain text. `media` are the pictures and sounds of the
    /// conversation.
    pub(crate) fn then_rendered(self, rendered: &Rendered, mut skip: usize, media: &[&Media]) -> Self {
        rendered.parts().fold(self, |prompt, part| {
            let from = skip.min(part.as_str().len());
            skip -= from;
            match part {
                PromptPart::Markup(text) => prompt.then_markup(&text[from..]),
                PromptPart::Text(text) => prompt.then_text(&text[from..]),
                PromptPart::Media(index, shown) => match media.get(index) {
                    Some(media) if from < shown.len() => prompt.then_media((*media).clone()),
                    _ => prompt,
                },
            }
        })
    }

    /// The prompt of a rendered template, with the pictures and sounds of its messages. `From<&Rendered>` does the same
    /// for a conversation without pictures and sounds.
    pub fn rendered(rendered: &Rendered, messages: &[Message]) -> Self {
        let media: Vec<&Media> =
            messages.iter().flat_map(|message| &message.media).map(|attached| &attached.media).collect();
        Self { begin: Begin::OneBos, ..Self::markup("").then_rendered(rendered, 0, &media) }
    }

    /// The tokens of the prompt. There is at least one.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyPrompt`] for a prompt without tokens if the vocabulary adds no BOS token; [`Error::NoProjector`]
    /// for a prompt with a picture or a sound, which [`Model::tokenize`](crate::Model::tokenize) accepts.
    pub fn tokenize(&self, vocab: &Vocab) -> Result<Vec<Token>, Error> {
        let refused = |media: &Media| Err(Error::NoProjector { media: media.to_string(), in_worker: false });
        Ok(self.lay_out(vocab, &refused)?.tokens)
    }

    /// The tokens of the prompt, and the places of its pictures and sounds. `prepare` finds the parts of a picture or a
    /// sound.
    pub(crate) fn lay_out(
        &self,
        vocab: &Vocab,
        prepare: &dyn Fn(&Media) -> Result<Arc<PreparedMedia>, Error>,
    ) -> Result<Layout, Error> {
        let mut layout = Layout::default();
        let mut add_special = self.begin == Begin::Special;
        let (mut is_after_media, mut media_before) = (false, 0);
        for part in &self.parts {
            let tokens = &mut layout.tokens;
            // A text after a picture counts as the beginning of a text, as in llama.cpp (mtmd.cpp, `mtmd_tokenizer`).
            let before = tokens.last().copied().filter(|_| !is_after_media);
            let is_empty = match part {
                Part::Text(text) | Part::Markup(text) => text.is_empty(),
                Part::Tokens(list) => list.is_empty(),
                Part::Media(_) | Part::Rows(..) | Part::Kept(..) => false,
            };
            if !is_empty {
                is_after_media = matches!(part, Part::Media(_) | Part::Rows(..));
            }
            match part {
                Part::Text(text) => tokens.extend(vocab.tokenize_after(before, text, add_special, false)?),
                Part::Markup(text) => tokens.extend(vocab.tokenize_after(before, text, add_special, true)?),
                Part::Tokens(list) => {
                    if add_special {
                        tokens.extend(vocab.tokenize("", true, false)?);
                    }
                    tokens.extend_from_slice(list);
                }
                Part::Media(media) | Part::Rows(media, _) => {
                    if add_special {
                        tokens.extend(vocab.tokenize("", true, false)?);
                    }
                    let prepared = prepare(media).map_err(|error| error.at_media(media_before))?;
                    media_before += 1;
                    match part {
                        Part::Rows(_, part) => layout.push_rows(media, &prepared, *part),
                        _ => layout.push(media, &prepared, vocab)?,
                    }
                }
                Part::Kept(..) => return Err(Self::unknown_number()),
            }
            add_special = false;
        }
        if let (Begin::OneBos, Some(bos)) = (self.begin, vocab.added_tokens().bos) {
            let written = layout.tokens.iter().take_while(|token| **token == bos).count();
            layout.replace_first(written, &[bos]);
        }
        if layout.tokens.is_empty() {
            layout.tokens.push(vocab.bos().ok_or(Error::EmptyPrompt)?);
        }
        Ok(layout)
    }
}

/// The text of these tokens, without control tokens. The space that SentencePiece puts before a whole text is left out;
/// the space at the beginning of a continuation is kept.
pub(crate) fn detokenize(vocab: &Vocab, tokens: &[Token]) -> Result<String, Error> {
    let bytes = pieces(vocab, tokens)?;
    let is_whole_text = vocab.added_tokens().bos.is_none_or(|bos| tokens.first() == Some(&bos));
    let has_added_space =
        is_whole_text && bytes.starts_with(b" ") && pieces(vocab, &vocab.tokenize("a", false, false)?)? == b" a";
    Ok(String::from_utf8_lossy(&bytes[usize::from(has_added_space)..]).into_owned())
}

/// The bytes of these tokens, one after the other.
fn pieces(vocab: &Vocab, tokens: &[Token]) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for token in tokens {
        vocab.append_piece(*token, false, &mut bytes)?;
    }
    Ok(bytes)
}

macro_rules! from {
    ($($from:ty => $kind:ident),+) => {$(
        impl From<$from> for Prompt {
            fn from(given: $from) -> Self {
                Self::$kind(given)
            }
        }
    )+};
}

from!(String => text, &String => text, &str => text, Vec<Token> => tokens, &[Token] => tokens);

/// Text from users in a conversation is never read as control tokens. If the vocabulary adds a BOS token before a text,
/// the prompt begins with exactly one BOS token, whether or not the template writes one (this is llama.cpp's rule).
/// Pictures and sounds of the conversation are left out; [`Prompt::rendered`] includes them.
impl From<&Rendered> for Prompt {
    fn from(rendered: &Rendered) -> Self {
        Self::rendered(rendered, &[])
    }
}

#[cfg(test)]
mod tests {
    use llama_sys::{Model, ModelParams};

    use super::*;
    use crate::chat::{ChatTemplate, Conversation, FAMILIES};

    fn demo() -> Vocab {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
        Model::load(path, ModelParams::default()).unwrap().vocab()
    }

    #[test]
    fn the_template_of_every_family_begins_with_one_bos() {
        let vocab = demo();
        let bos = vocab.added_tokens().bos.expect("the vocabulary puts BOS before texts");
        for family in FAMILIES {
            let template = ChatTemplate::family(family).unwrap();
            let rendered = template.render(&Conversation::new(&[Message::user("the king")])).unwrap();
            let tokens = Prompt::from(&rendered).tokenize(&vocab).unwrap();
            let count = tokens.iter().filter(|token| **token == bos).count();
            assert_eq!((tokens[0], count), (bos, 1), "{family}: {:?}", rendered.as_str());
        }
    }

    #[test]
    fn a_rendered_prompt_begins_with_one_bos_whoever_writes_it() {
        let vocab = demo();
        let bos = vocab.added_tokens().bos.expect("the vocabulary puts BOS before texts");
        let written = String::from_utf8(vocab.piece(bos, true).unwrap()).unwrap();
        let prompt = |source: &str| {
            let template = ChatTemplate::new(source, [("bos_token".to_owned(), written.clone())].into()).unwrap();
            let rendered = template.render(&Conversation::new(&[Message::user("the king")])).unwrap();
            Prompt::from(&rendered).tokenize(&vocab).unwrap()
        };
        let text = vocab.tokenize("the king", true, false).unwrap();
        assert_eq!(text.iter().filter(|token| **token == bos).count(), 1);
        for source in ["", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"] {
            assert_eq!(prompt(&format!("{source}{{{{ messages[0].content }}}}")), text, "{source}");
        }
        // A prompt that the application writes itself gets no BOS token.
        assert_ne!(Prompt::markup("the king").tokenize(&vocab).unwrap()[0], bos);
    }
}
