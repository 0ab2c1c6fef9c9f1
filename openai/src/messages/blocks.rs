//! The content of messages, which is a text or a list of blocks of several types.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::thoughts::signed_thought;
use crate::error::ApiError;
use crate::reading::{self, List};
use crate::translation::{ChatCall, ChatMedia, ChatMessage, ChatWriter, joined};

/// Maximum number of blocks in a message, or in a block of a message.
pub(super) const MAX_BLOCKS: usize = 1024;

/// A block of any type. Each type uses some of the fields.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a block: {\"type\": \"text\", \"text\": ...}")]
pub(super) struct Block<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow)]
    signature: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    is_error: Option<bool>,
    #[serde(borrow)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow)]
    context: Option<Cow<'a, str>>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_name: Option<Cow<'a, str>>,
}

/// Where a document's text, or an image, comes from.
#[derive(Debug, Deserialize)]
struct Source<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    media_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    url: Option<Cow<'a, str>>,
}

/// The texts of a content that may contain nothing but text: the content of `system`, of a tool's result, or of a
/// document.
pub(super) fn texts<'a>(content: &'a RawValue, place: &str) -> Result<Vec<Cow<'a, str>>, ApiError> {
    if reading::is_text(content) {
        return Ok(vec![reading::text(content, place)?]);
    }
    let blocks = list(content, place)?;
    let texts = blocks.into_iter().enumerate();
    texts.map(|(index, block)| block.into_text(&format!("{place}[{index}]"))).collect()
}

/// Adds a message of the request to the chat.
pub(super) fn message<'a>(
    writer: &mut ChatWriter<'a>,
    role: &'static str,
    content: &'a RawValue,
    place: &str,
) -> Result<(), ApiError> {
    let place = format!("{place}.content");
    if reading::is_text(content) {
        writer.message(ChatMessage::new(role, reading::text(content, &place)?), || place);
        return Ok(());
    }
    let blocks = list(content, &place)?;
    let mut said = ChatMessage::new(role, "");
    for (index, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match (&*block.r#type, role) {
            ("tool_result", "user") => {
                // The user's text before a tool's result becomes a separate message.
                let before = std::mem::replace(&mut said, ChatMessage::new(role, ""));
                if !before.is_silent() {
                    writer.message(before, || place.clone());
                }
                writer.message(block.into_result(&place)?, || place);
            }
            ("tool_use", "assistant") => said.tool_calls.push(block.into_call(&place)?),
            ("thinking", "assistant") => said.think(block.into_thought(&place)?),
            // This block is skipped, because only Anthropic can decrypt it.
            ("redacted_thinking", "assistant") => {}
            ("image", "user") => said.show(block.into_image(&place)?),
            _ => said.append(&block.into_text(&place)?),
        }
    }
    let is_empty = said.is_silent() && said.tool_calls.is_empty() && said.reasoning_content.is_none();
    // A message that contains only results adds no empty text.
    if !is_empty || writer.last().is_none_or(|last| last.role != "tool") {
        writer.message(said, || place);
    }
    Ok(())
}

fn list<'a>(content: &'a RawValue, place: &str) -> Result<Vec<Block<'a>>, ApiError> {
    if !content.get().starts_with('[') {
        return Err(ApiError::invalid(place, format!("{place}: expected a text or a list of blocks")));
    }
    reading::value(content, place).map(|List::<Block<'a>, MAX_BLOCKS>(blocks)| blocks)
}

impl<'a> Block<'a> {
    fn into_text(self, place: &str) -> Result<Cow<'a, str>, ApiError> {
        let texts = |content: Option<&'a RawValue>, place: String| {
            content.map_or_else(|| Ok(Vec::new()), |content| texts(content, &place))
        };
        match &*self.r#type {
            "text" => self.text.ok_or_else(|| ApiError::missing(place, "text")),
            "search_result" => {
                let said = texts(self.content, format!("{place}.content"))?;
                Ok(joined(self.title.into_iter().chain(said).collect()))
            }
            // One result of a search for tools. Its name is enough, because the model sees all tools anyway.
            "tool_reference" => self.tool_name.ok_or_else(|| ApiError::missing(place, "tool_name")),
            "document" => {
                let place = format!("{place}.source");
                let source = self.source.ok_or_else(|| ApiError::missing(&place, "source"))?;
                let source: Source<'a> = reading::value(source, &place)?;
                let said = match &*source.r#type {
                    "text" => vec![source.data.ok_or_else(|| ApiError::missing(&place, "data"))?],
                    "content" => texts(source.content, format!("{place}.content"))?,
                    kind => return Err(unsupported(&place, &format!("documents of type `{kind}`"))),
                };
                Ok(joined(self.title.into_iter().chain(self.context).chain(said).collect()))
            }
            kind => Err(unsupported(place, &format!("blocks of type `{kind}`"))),
        }
    }

    fn into_result(self, place: &str) -> Result<ChatMessage<'a>, ApiError> {
        let (mut words, mut images) = (Vec::new(), Vec::new());
        match self.content {
            Some(content) if reading::is_text(content) => words = texts(content, &format!("{place}.content"))?,
            Some(content) if content.get() != "null" => {
                let place = format!("{place}.content");
                for (index, block) in list(content, &place)?.into_iter().enumerate() {
                    let place = format!("{place}[{index}]");
                    match &*block.r#type {
                        "image" => images.push(block.into_image(&place)?),
                        _ => words.push(block.into_text(&place)?),
                    }
                }
            }
            _ => {}
        }
        let mut said = joined(words);
        // In chat completions, no field says that a call failed.
        if self.is_error == Some(true)
            && !said.get(..5).is_some_and(|beginning| beginning.eq_ignore_ascii_case("error"))
        {
            said = format!("Error: {said}").into();
        }
        let id = self.tool_use_id.ok_or_else(|| ApiError::missing(place, "tool_use_id"))?;
        let mut result = ChatMessage { tool_call_id: Some(id), ..ChatMessage::new("tool", said) };
        images.into_iter().for_each(|image| result.show(image));
        Ok(result)
    }

    /// An image in base64, or an image at an address.
    fn into_image(self, place: &str) -> Result<ChatMedia<'a>, ApiError> {
        let place = format!("{place}.source");
        let source = self.source.ok_or_else(|| ApiError::missing(&place, "source"))?;
        let source: Source<'a> = reading::value(source, &place)?;
        match &*source.r#type {
            "base64" => {
                let data = source.data.ok_or_else(|| ApiError::missing(&place, "data"))?;
                let kind = source.media_type.as_deref().unwrap_or("image/png");
                Ok(ChatMedia::image(format!("data:{kind};base64,{data}"), place))
            }
            "url" => {
                let url = source.url.ok_or_else(|| ApiError::missing(&place, "url"))?;
                Ok(ChatMedia::image(url, place))
            }
            kind => Err(unsupported(&place, &format!("images of type `{kind}`"))),
        }
    }

    fn into_call(self, place: &str) -> Result<ChatCall<'a>, ApiError> {
        let input = self.input.ok_or_else(|| ApiError::missing(place, "input"))?;
        if !input.get().starts_with('{') {
            let place = format!("{place}.input");
            return Err(ApiError::invalid(&place, format!("{place}: expected an object")));
        }
        let id = self.id.ok_or_else(|| ApiError::missing(place, "id"))?;
        Ok(ChatCall::new(id, self.name.ok_or_else(|| ApiError::missing(place, "name"))?, input))
    }

    fn into_thought(self, place: &str) -> Result<Cow<'a, str>, ApiError> {
        let thought = self.thinking.ok_or_else(|| ApiError::missing(place, "thinking"))?;
        match self.signature.as_deref().and_then(signed_thought) {
            // If the client received only the signature, the thought is inside the signature.
            Some(signed) if thought.is_empty() => Ok(signed.into()),
            _ => Ok(thought),
        }
    }
}

fn unsupported(place: &str, what: &str) -> ApiError {
    ApiError::unsupported(place, format!("{place}: {what} are not supported"))
}
