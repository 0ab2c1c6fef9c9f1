//! Translates requests of other APIs to chat completions: writes the chat request, and remembers where each part was in
//! the original request.
//!
//! In: messages, tools and parameters from the other API's parser. Out: the body of a chat request, which is parsed and
//! checked as if a client had sent it, and [`Places`], with which errors name the place in the original request.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::parameters;
use super::reading::{self, Entries};

/// Maximum number of template variables in a request.
const MAX_VARIABLES: usize = 256;

/// A chat request that is being written.
#[derive(Default)]
pub(super) struct ChatWriter<'a> {
    messages: Vec<ChatMessage<'a>>,
    tools: Vec<ChatTool<'a>>,
    /// For each parameter in chat completions, its JSON value.
    parameters: Map<String, Value>,
    given: Vec<(String, &'a RawValue)>,
    /// The original names of the parameters. The keys are the names in chat completions, without aliases.
    names: BTreeMap<String, String>,
    /// The error if the original request contains a parameter under two names.
    given_twice: Option<ApiError>,
    variables: Vec<(String, Cow<'a, RawValue>)>,
    places: Places,
    left_out: Vec<String>,
    /// About how many bytes the chat request has.
    bytes: usize,
}

/// A translated request.
pub(super) struct Translation {
    /// The body for chat completions.
    pub(super) body: Vec<u8>,
    pub(super) places: Places,
    /// Optional parts of the request that were left out, each with its place and kind.
    pub(super) left_out: Vec<String>,
}

/// A message in the form of chat completions.
#[derive(Debug, Default)]
pub(super) struct ChatMessage<'a> {
    pub(super) role: &'static str,
    pub(super) content: Cow<'a, str>,
    /// Pictures and sounds. The number before each is the length in bytes of the content that comes before it.
    pub(super) media: Vec<(usize, ChatMedia<'a>)>,
    pub(super) reasoning_content: Option<Cow<'a, str>>,
    pub(super) tool_calls: Vec<ChatCall<'a>>,
    pub(super) tool_call_id: Option<Cow<'a, str>>,
}

/// A picture or a sound.
#[derive(Debug)]
pub(super) struct ChatMedia<'a> {
    source: Source<'a>,
    /// Where it was in the original request.
    place: String,
}

#[derive(Debug)]
enum Source<'a> {
    /// A URL.
    Image(Cow<'a, str>),
    /// A text in base64.
    Audio(Cow<'a, str>),
}

impl<'a> ChatMedia<'a> {
    /// A picture with this URL.
    pub(super) fn image(url: impl Into<Cow<'a, str>>, place: String) -> Self {
        Self { source: Source::Image(url.into()), place }
    }

    /// A sound in base64.
    pub(super) fn audio(data: Cow<'a, str>, place: String) -> Self {
        Self { source: Source::Audio(data), place }
    }
}

impl Serialize for ChatMedia<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut part = serializer.serialize_map(Some(2))?;
        match &self.source {
            Source::Image(url) => {
                part.serialize_entry("type", "image_url")?;
                part.serialize_entry("image_url", &BTreeMap::from([("url", url)]))?;
            }
            Source::Audio(data) => {
                part.serialize_entry("type", "input_audio")?;
                part.serialize_entry("input_audio", &BTreeMap::from([("data", data)]))?;
            }
        }
        part.end()
    }
}

impl Serialize for ChatMessage<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut message = serializer.serialize_map(None)?;
        message.serialize_entry("role", self.role)?;
        match self.media.is_empty() {
            true => message.serialize_entry("content", &self.content)?,
            false => message.serialize_entry("content", &Parts(self))?,
        }
        if let Some(thought) = &self.reasoning_content {
            message.serialize_entry("reasoning_content", thought)?;
        }
        if !self.tool_calls.is_empty() {
            message.serialize_entry("tool_calls", &self.tool_calls)?;
        }
        if let Some(id) = &self.tool_call_id {
            message.serialize_entry("tool_call_id", id)?;
        }
        message.end()
    }
}

/// The content of a message that has pictures or sounds, as a list of parts.
struct Parts<'m, 'a>(&'m ChatMessage<'a>);

impl Serialize for Parts<'_, '_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(ChatMessage { content, media, .. }) = self;
        let text = |text| BTreeMap::from([("type", "text"), ("text", text)]);
        let mut parts = serializer.serialize_seq(None)?;
        let mut from = 0;
        for (at, media) in media {
            if *at > from {
                parts.serialize_element(&text(&content[from..*at]))?;
            }
            parts.serialize_element(media)?;
            from = *at;
        }
        if from < content.len() {
            parts.serialize_element(&text(&content[from..]))?;
        }
        parts.end()
    }
}

/// A tool call.
#[derive(Debug, Serialize)]
pub(super) struct ChatCall<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: CalledFunction<'a>,
}

#[derive(Debug, Serialize)]
struct CalledFunction<'a> {
    name: Cow<'a, str>,
    arguments: &'a RawValue,
}

/// A function that can be called.
#[derive(Debug, Serialize)]
struct ChatTool<'a> {
    r#type: &'static str,
    function: ChatFunction<'a>,
}

/// The fields of a tool that is a function.
#[derive(Debug, Serialize)]
pub(super) struct ChatFunction<'a> {
    pub(super) name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parameters: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strict: Option<bool>,
}

impl<'a> ChatCall<'a> {
    /// `arguments` is an object, or a text that contains JSON.
    pub(super) fn new(id: Cow<'a, str>, name: Cow<'a, str>, arguments: &'a RawValue) -> Self {
        Self { id, r#type: "function", function: CalledFunction { name, arguments } }
    }
}

impl<'a> ChatMessage<'a> {
    pub(super) fn new(role: &'static str, content: impl Into<Cow<'a, str>>) -> Self {
        Self { role, content: content.into(), ..Self::default() }
    }

    /// Appends a text as a separate paragraph. If a picture comes before it, no line break is added.
    pub(super) fn append(&mut self, text: &str) {
        let is_after_media = self.media.last().is_some_and(|(at, _)| *at == self.content.len());
        if !self.content.is_empty() && !text.is_empty() && !is_after_media {
            self.content.to_mut().push('\n');
        }
        self.content.to_mut().push_str(text);
    }

    /// Appends a picture or a sound.
    pub(super) fn show(&mut self, media: ChatMedia<'a>) {
        self.media.push((self.content.len(), media));
    }

    /// Whether the message has no text and no pictures or sounds.
    pub(super) fn is_silent(&self) -> bool {
        self.content.is_empty() && self.media.is_empty()
    }

    /// Appends the content of a later message to this one.
    fn append_content(&mut self, content: &str, media: Vec<(usize, ChatMedia<'a>)>) {
        let begins_with_text = media.first().is_none_or(|(at, _)| *at > 0);
        match begins_with_text {
            true => self.append(content),
            false => self.content.to_mut().push_str(content),
        }
        let begin = self.content.len() - content.len();
        self.media.extend(media.into_iter().map(|(at, media)| (begin + at, media)));
    }

    /// Appends a thought on a line of its own.
    pub(super) fn think(&mut self, thought: Cow<'a, str>) {
        match &mut self.reasoning_content {
            Some(before) => {
                let before = before.to_mut();
                before.push('\n');
                before.push_str(&thought);
            }
            None => self.reasoning_content = Some(thought),
        }
    }
}

/// Joins texts with line breaks. If there is only one text, it stays borrowed.
pub(super) fn joined(texts: Vec<Cow<'_, str>>) -> Cow<'_, str> {
    match <[_; 1]>::try_from(texts) {
        Ok([text]) => text,
        Err(texts) => texts.join("\n").into(),
    }
}

/// A thought, in the form that a client stores for its next request. It is not encrypted, because the client may read
/// it.
pub(super) fn encoded_thought(thought: &str) -> String {
    BASE64_STANDARD.encode(thought)
}

/// The thought that [`encoded_thought`] encoded; `None` for other texts.
pub(super) fn decoded_thought(encoded: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

impl<'a> ChatWriter<'a> {
    /// A writer for a request of this many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Sets the parameter that is named in errors about the whole conversation.
    pub(super) fn conversation_is(&mut self, name: &'static str) {
        self.places.conversation = Some(name);
    }

    /// Adds a message from `place` of the original request. If the user, or the assistant, has several messages in
    /// succession, they are merged, because many templates require that roles alternate. Both translations need this.
    pub(super) fn message(&mut self, message: ChatMessage<'a>, place: impl FnOnce() -> String) {
        if let Some(last) = self.messages.last_mut()
            && last.role == message.role
            && matches!(message.role, "user" | "assistant")
        {
            last.append_content(&message.content, message.media);
            last.tool_calls.extend(message.tool_calls);
            if let Some(thought) = message.reasoning_content {
                last.think(thought);
            }
            return;
        }
        self.messages.push(message);
        self.places.messages.push(place());
    }

    pub(super) fn last(&self) -> Option<&ChatMessage<'a>> {
        self.messages.last()
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut ChatMessage<'a>> {
        self.messages.last_mut()
    }

    /// Adds a tool from `place` of the original request. `schema` is the name that its schema has there.
    pub(super) fn tool(&mut self, mut function: ChatFunction<'a>, place: String, schema: &'static str) {
        // `strict: false` is the default. It is left out, because otherwise the prompt would show it.
        function.strict = function.strict.filter(|is_strict| *is_strict);
        self.tools.push(ChatTool { r#type: "function", function });
        self.places.tools.push((place, schema));
    }

    pub(super) fn has_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.function.name == name)
    }

    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Records that an optional part of the request is left out.
    pub(super) fn leave_out(&mut self, what: String) {
        self.left_out.push(what);
    }

    /// Sets a parameter of chat completions. `own` is the parameter in the original request from which the value comes.
    pub(super) fn set(&mut self, name: &str, own: &'static str, value: impl Into<Value>) {
        self.rename(name, own);
        self.parameters.insert(name.to_owned(), value.into());
    }

    /// Sets a parameter of chat completions to a value of the original request. `own` is the name that it has there.
    pub(super) fn give(&mut self, name: &str, own: &'static str, value: &'a RawValue) {
        self.rename(name, own);
        self.given.push((name.to_owned(), value));
    }

    /// Passes on all parameters, under the same names, but not those that the translation itself handles.
    pub(super) fn pass_others(
        &mut self,
        body: &reading::Body<'a>,
        is_own: impl Fn(&str) -> bool,
    ) -> Result<(), ApiError> {
        for (name, value) in body.entries() {
            match name {
                "chat_template_kwargs" => self.variables(value)?,
                _ if is_own(name) => {}
                _ => {
                    self.name(name, name);
                    self.given.push((name.to_owned(), value));
                }
            }
        }
        Ok(())
    }

    /// Sets how much the model thinks. `own` is the original request's parameter. Templates know three levels and
    /// `none`.
    pub(super) fn effort(&mut self, own: &'static str, effort: &str) {
        let level = match effort {
            "minimal" => "low",
            "xhigh" | "max" => "high",
            level => level,
        };
        self.set("reasoning_effort", own, level);
    }

    /// Constrains the answer to the schema at `own` of the original request. In chat completions, a `grammar` takes
    /// precedence over a schema, so a request with both is an error.
    pub(super) fn schema(&mut self, own: &'static str, schema: &'a RawValue) -> Result<(), ApiError> {
        if self.given.iter().any(|(name, value)| name == "grammar" && value.get() != "\"\"") {
            let message = format!("`{own}` is given in addition to `grammar`: use one of them");
            return Err(ApiError::invalid(own, message));
        }
        self.give("json_schema", own, schema);
        Ok(())
    }

    /// Records the original name of a parameter, for errors.
    fn rename(&mut self, chat: &str, own: &'static str) {
        self.name(chat, own);
        if chat != own {
            self.places.renamed.push((chat.to_owned(), own));
        }
    }

    fn name(&mut self, chat: &str, own: &str) {
        if let Some(first) = self.names.insert(parameters::without_alias(chat).to_owned(), own.to_owned()) {
            self.given_twice.get_or_insert_with(|| ApiError::given_twice(own, &first));
        }
    }

    /// Reads the request's template variables. A later call of [`variable`](Self::variable) does not replace them.
    fn variables(&mut self, given: &'a RawValue) -> Result<(), ApiError> {
        let Entries::<&'a RawValue, MAX_VARIABLES>(given) = reading::value(given, "chat_template_kwargs")?;
        self.variables.extend(given.into_iter().map(|(name, value)| (name, Cow::Borrowed(value))));
        Ok(())
    }

    /// Sets a variable of the template, unless the request already sets it.
    pub(super) fn variable(&mut self, name: &str, value: bool) {
        if self.variables.iter().all(|(known, _)| known != name)
            && let Ok(value) = serde_json::value::to_raw_value(&value)
        {
            self.variables.push((name.to_owned(), Cow::Owned(value)));
        }
    }

    /// Writes the request.
    ///
    /// # Errors
    ///
    /// Status 400 if the original request contains a parameter under two names.
    pub(super) fn finish(self) -> Result<Translation, ApiError> {
        let Self { messages, tools, parameters, given, variables, mut places, left_out, bytes, given_twice, .. } = self;
        for (index, message) in messages.iter().enumerate() {
            let (mut from, mut part) = (0, 0);
            for (at, media) in &message.media {
                part += usize::from(*at > from);
                places.media.push((format!("messages[{index}].content[{part}]"), media.place.clone()));
                (from, part) = (*at, part + 1);
            }
        }
        if let Some(error) = given_twice {
            return Err(error);
        }
        let body = Body { messages, tools, parameters, given, variables };
        // The chat request is about as long as the original request.
        let mut written = Vec::with_capacity(bytes + bytes / 8);
        serde_json::to_writer(&mut written, &body)
            .map_err(|error| ApiError::new(500, format!("the translation: {error}")))?;
        Ok(Translation { body: written, places, left_out })
    }
}

/// The whole body of the chat request. The order of its fields does not matter, but no name may occur twice.
#[derive(Serialize)]
struct Body<'a> {
    messages: Vec<ChatMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ChatTool<'a>>,
    #[serde(flatten)]
    parameters: Map<String, Value>,
    #[serde(flatten, serialize_with = "as_map")]
    given: Vec<(String, &'a RawValue)>,
    #[serde(rename = "chat_template_kwargs", skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    variables: Vec<(String, Cow<'a, RawValue>)>,
}

fn as_map<V: Serialize, S: serde::Serializer>(entries: &[(String, V)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, value)| (name, value)))
}

/// Where the parts of a translated request were in the original request.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// For each message, its place in the original request.
    messages: Vec<String>,
    /// The places of pictures and sounds in the chat request, with their original places.
    media: Vec<(String, String)>,
    /// For each tool, its place in the original request and the name that its schema has there.
    tools: Vec<(String, &'static str)>,
    /// The other parameters: each with its name in chat completions and its original name.
    renamed: Vec<(String, &'static str)>,
    /// The original request's name for the list `messages` as a whole.
    conversation: Option<&'static str>,
}

impl Places {
    /// Replaces the place in an error by the place in the original request.
    pub(super) fn restore(&self, mut error: ApiError) -> ApiError {
        if let Some(param) = error.param.take() {
            let original = self.original(&param).unwrap_or_else(|| param.clone());
            error.message = error.message.replacen(&param, &original, 1);
            // If an error is about two parameters, its message contains the name of the second.
            for (chat, own) in &self.renamed {
                error.message =
                    error.message.replace(&format!("in addition to `{chat}`"), &format!("in addition to `{own}`"));
            }
            error.param = Some(original);
        }
        error
    }

    /// Replaces the place with which a text begins, such as an entry of
    /// [`Completion::unenforced`](super::Completion::unenforced).
    pub(super) fn restore_beginning(&self, text: &str) -> String {
        let (place, rest) = text.split_once(": ").unwrap_or((text, ""));
        self.original(place).map_or_else(|| text.to_owned(), |place| format!("{place}: {rest}"))
    }

    /// The place in the original request; `None` if it is the same there.
    fn original(&self, place: &str) -> Option<String> {
        let is_of = |part: &str| place.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if let Some((_, own)) = self.media.iter().find(|(part, _)| is_of(part)) {
            return Some(own.clone());
        }
        if let Some((index, rest)) = indexed(place, "messages") {
            // In the other APIs, a call is a separate item or block. So the place of the message is already that of the
            // call.
            let rest = if rest.starts_with(".tool_calls") { "" } else { rest };
            let rest = rest.strip_prefix(".content").unwrap_or(rest);
            return self.messages.get(index).map(|own| format!("{own}{rest}"));
        }
        if place == "messages" {
            return self.conversation.map(str::to_owned);
        }
        if let Some((index, rest)) = indexed(place, "tools") {
            let (own, schema) = self.tools.get(index)?;
            let rest = rest.strip_prefix(".function").unwrap_or(rest);
            return Some(match rest.strip_prefix(".parameters") {
                Some(within) => format!("{own}.{schema}{within}"),
                None => format!("{own}{rest}"),
            });
        }
        self.renamed.iter().find_map(|(chat, own)| {
            let within = place.strip_prefix(chat.as_str())?;
            (within.is_empty() || within.starts_with(['.', '['])).then(|| format!("{own}{within}"))
        })
    }
}

/// Splits a place of the form `list[index]rest` into the index and the rest.
fn indexed<'a>(place: &'a str, list: &str) -> Option<(usize, &'a str)> {
    let (index, rest) = place.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_place_in_the_original_request() {
        let mut writer = ChatWriter::default();
        writer.message(ChatMessage::new("system", "a"), || "instructions".to_owned());
        writer.message(ChatMessage::new("user", "b"), || "input[3]".to_owned());
        let function = ChatFunction { name: "f".into(), description: None, parameters: None, strict: None };
        writer.tool(function, "tools[2]".to_owned(), "input_schema");
        writer.rename("response_format.json_schema.schema", "text.format.schema");
        let places = writer.finish().unwrap().places;
        let original = |place| {
            let error = places.restore(ApiError::invalid(place, format!("{place}: wrong")));
            assert!(error.message.starts_with(error.param.as_deref().unwrap()), "{error}");
            error.param.unwrap()
        };
        for (place, expected) in [
            ("messages[1].content", "input[3]"),
            ("messages[1].tool_calls[0].function.arguments", "input[3]"),
            ("tools[0].function.parameters.properties.p", "tools[2].input_schema.properties.p"),
            ("tools[0].function.name", "tools[2].name"),
            ("response_format.json_schema.schema.properties.p", "text.format.schema.properties.p"),
            ("temperature", "temperature"),
        ] {
            assert_eq!(original(place), expected);
        }
        let beside = ApiError::invalid("tools", "`x` is given in addition to `response_format.json_schema.schema`");
        let said = places.restore(beside).message;
        assert_eq!(said, "`x` is given in addition to `text.format.schema`");
        let said = places.restore_beginning("tools[0].function.parameters: left");
        assert_eq!(said, "tools[2].input_schema: left");
    }
}
