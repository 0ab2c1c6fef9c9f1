//! Items of an input: messages, calls and their outputs, thoughts, and references to earlier items.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::reading::{self, List};
use crate::translation::{ChatCall, ChatMedia, ChatMessage, ChatWriter, decoded_thought, joined};

/// Maximum number of items in an input, and of parts in an item.
pub(super) const MAX_ITEMS: usize = 8192;
const MAX_PARTS: usize = 1024;

/// An item of any type. Each type uses some of the fields.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an item: {\"role\": \"user\", \"content\": ...}")]
pub(super) struct Item<'a> {
    #[serde(borrow)]
    r#type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    encrypted_content: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "{\"type\": \"input_text\", \"text\": ...}")]
struct Part<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    refusal: Option<Cow<'a, str>>,
    #[serde(borrow)]
    image_url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input_audio: Option<Audio<'a>>,
}

#[derive(Debug, Deserialize)]
struct Audio<'a> {
    #[serde(borrow)]
    data: Cow<'a, str>,
}

impl<'a> Item<'a> {
    /// If this item is a reference, the id of the item to which it refers.
    pub(super) fn reference(&self) -> Option<&str> {
        let is_reference = match self.r#type.as_deref() {
            Some(kind) => kind == "item_reference",
            None => self.role.is_none(),
        };
        self.id.as_deref().filter(|_| is_reference)
    }

    /// Adds the item to the chat.
    pub(super) fn write(self, writer: &mut ChatWriter<'a>, place: &str) -> Result<(), ApiError> {
        let message = match self.r#type.as_deref() {
            None | Some("message") => self.into_message(place)?,
            Some("function_call") => {
                let arguments = self.arguments.ok_or_else(|| ApiError::missing(place, "arguments"))?;
                let id = self.call_id.ok_or_else(|| ApiError::missing(place, "call_id"))?;
                let call = ChatCall::new(id, self.name.ok_or_else(|| ApiError::missing(place, "name"))?, arguments);
                ChatMessage { tool_calls: vec![call], ..ChatMessage::new("assistant", "") }
            }
            Some("function_call_output") => {
                let output = self.output.ok_or_else(|| ApiError::missing(place, "output"))?;
                let output = shown(output, "tool", &format!("{place}.output"))?;
                let id = self.call_id.ok_or_else(|| ApiError::missing(place, "call_id"))?;
                ChatMessage { tool_call_id: Some(id), ..output }
            }
            Some("reasoning") => match self.into_thought(place)? {
                Some(thought) => ChatMessage { reasoning_content: Some(thought), ..ChatMessage::new("assistant", "") },
                None => return Ok(()),
            },
            Some(kind) => {
                let message = format!("{place}: items of type `{kind}` are not supported");
                return Err(ApiError::unsupported(place, message));
            }
        };
        writer.message(message, || place.to_owned());
        Ok(())
    }

    fn into_message(self, place: &str) -> Result<ChatMessage<'a>, ApiError> {
        let role = match self.role.as_deref() {
            Some("user") => "user",
            Some("assistant") => "assistant",
            Some("system") => "system",
            Some("developer") => "developer",
            role => {
                let place = format!("{place}.role");
                let role = role.unwrap_or("missing");
                let message = format!("{place} is {role}: use `user`, `assistant`, `system` or `developer`");
                return Err(ApiError::invalid(place, message));
            }
        };
        let given = self.content.ok_or_else(|| ApiError::missing(place, "content"))?;
        shown(given, role, &format!("{place}.content"))
    }

    /// The text of a thought. It is the content if there is one, else the text that the client has stored, else the
    /// summary.
    fn into_thought(self, place: &str) -> Result<Option<Cow<'a, str>>, ApiError> {
        let said = |given: Option<&'a RawValue>, name: &str| match given {
            Some(given) => content(given, &format!("{place}.{name}")),
            None => Ok(Cow::Borrowed("")),
        };
        let (text, summary) = (said(self.content, "content")?, said(self.summary, "summary")?);
        let kept = self.encrypted_content.as_deref().and_then(decoded_thought).map(Cow::Owned);
        Ok([Some(text), kept, Some(summary)].into_iter().flatten().find(|thought| !thought.is_empty()))
    }
}

/// A message whose content is a text, or a list of parts with images and sounds.
fn shown<'a>(given: &'a RawValue, role: &'static str, place: &str) -> Result<ChatMessage<'a>, ApiError> {
    if !given.get().starts_with('[') {
        return content(given, place).map(|text| ChatMessage::new(role, text));
    }
    let List::<Part<'a>, MAX_PARTS>(parts) = reading::value(given, place)?;
    let has_media = |part: &Part<'_>| matches!(&*part.r#type, "input_image" | "input_audio");
    if !parts.iter().any(has_media) {
        return content(given, place).map(|text| ChatMessage::new(role, text));
    }
    let mut message = ChatMessage::new(role, "");
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match &*part.r#type {
            // An image with the id of a file is on OpenAI's servers, so it is refused.
            "input_image" => {
                let url = part.image_url.ok_or_else(|| ApiError::missing(&place, "image_url"))?;
                message.show(ChatMedia::image(url, format!("{place}.image_url")));
            }
            "input_audio" => {
                let audio = part.input_audio.ok_or_else(|| ApiError::missing(&place, "input_audio"))?;
                message.show(ChatMedia::audio(audio.data, format!("{place}.input_audio")));
            }
            _ => message.append(&part.into_text(&place)?),
        }
    }
    Ok(message)
}

impl<'a> Part<'a> {
    fn into_text(self, place: &str) -> Result<Cow<'a, str>, ApiError> {
        let (text, field) = match &*self.r#type {
            "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => (self.text, "text"),
            "refusal" => (self.refusal, "refusal"),
            kind => {
                let message = format!("{place}: parts of type `{kind}` are not supported");
                return Err(ApiError::unsupported(place, message));
            }
        };
        text.ok_or_else(|| ApiError::missing(place, field))
    }
}

/// A text, or a list of text parts.
fn content<'a>(given: &'a RawValue, place: &str) -> Result<Cow<'a, str>, ApiError> {
    if reading::is_text(given) {
        return reading::text(given, place);
    }
    if !given.get().starts_with('[') {
        return Err(ApiError::invalid(place, format!("{place}: expected a text or a list of parts")));
    }
    let List::<Part<'a>, MAX_PARTS>(parts) = reading::value(given, place)?;
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        texts.push(part.into_text(&format!("{place}[{index}]"))?);
    }
    Ok(joined(texts))
}
