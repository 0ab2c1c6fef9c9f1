//! A request for a response, as one for a chat.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::items::{Item, MOST_ITEMS, Text};
use super::{Store, tools};
use crate::error::ApiError;
use crate::reading::{self, Body, List};
use crate::translation::{ChatMessage, ChatWriter, Translation};

/// Parameters that the translation reads itself.
const READ: [&str; 14] = [
    "input",
    "instructions",
    "include",
    "max_output_tokens",
    "previous_response_id",
    "reasoning",
    "store",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
    "metadata",
    "stream_options",
];
/// Parameters that change no answer here; docs/responses.md has the reasons.
const IGNORED: [&str; 11] = [
    "access_programs",
    "client_metadata",
    "context_management",
    "max_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
    "background_options",
];
/// Parameters that are refused: OpenAI's own services, and those of chat completions that have no place in a response.
const REFUSED: [&str; 14] = [
    "background",
    "conversation",
    "prompt",
    "image",
    "moderation",
    "messages",
    "n",
    "n_cmpl",
    "logprobs",
    "response_format",
    "reasoning_effort",
    "max_completion_tokens",
    "continue_final_message",
    "add_generation_prompt",
];

/// The fields that a response repeats of its request, and how its events are written.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Fields of the response.
    pub(super) fields: Map<String, Value>,
    /// Thoughts come as text that the client can keep, too.
    pub(super) keeps_thoughts: bool,
    pub(super) has_logprobs: bool,
    /// `input` of the request, if the response is to be kept.
    pub(super) input: Option<Arc<str>>,
    pub(super) previous: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TextConfig<'a> {
    #[serde(borrow)]
    format: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Format<'a> {
    r#type: String,
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
}

/// Translates the body of a request for a response.
pub(crate) fn translate(body: &[u8], store: &Store) -> Result<(Translation, Asked), ApiError> {
    let bytes = body.len();
    let body = reading::with_integers(body);
    let body = reading::object_as_given(&body)?;
    if let Some(name) = REFUSED.into_iter().find(|name| body.get(name).is_some_and(|it| !is_nothing(it))) {
        return Err(ApiError::unsupported(name, format!("`{name}` is not supported by /v1/responses")));
    }
    // The writer borrows the earlier items, so they are read before it.
    let previous: Option<String> = read(&body, "previous_response_id")?;
    let before = match &previous {
        Some(id) => store.conversation(id).ok_or_else(|| gone(id))?,
        None => Vec::new(),
    };
    let referenced = referenced(&body, store)?;

    let mut writer = ChatWriter::new(bytes);
    writer.conversation_is("input");
    for (name, value) in body.entries() {
        let is_own = READ.contains(&name) || IGNORED.contains(&name) || REFUSED.contains(&name);
        match name {
            "chat_template_kwargs" => writer.variables(value)?,
            _ if is_own => {}
            _ => writer.pass(name, value),
        }
    }
    if let Some(limit) = body.get("max_output_tokens") {
        writer.give("max_tokens", "max_output_tokens", limit);
    }
    if let Some(instructions) = body.get("instructions") {
        let Text(text) = reading::value(instructions, "instructions")?;
        writer.message(ChatMessage::new("system", text), || "instructions".to_owned());
    }
    for part in &before {
        input(reading::json(part)?, &[], &mut writer, "previous_response_id")?;
    }
    let given = body.get("input").ok_or_else(|| ApiError::invalid("input", "`input` is missing"))?;
    input(given, &referenced, &mut writer, "input")?;
    tools::write(&body, &mut writer)?;
    form(&body, &mut writer)?;
    let reasoning: Reasoning = read(&body, "reasoning")?.unwrap_or_default();
    if let Some(effort) = &reasoning.effort {
        // Templates know three, and none.
        let effort = match &**effort {
            "minimal" => "low",
            "xhigh" | "max" => "high",
            other => other,
        };
        writer.set("reasoning_effort", effort);
    }
    let List::<String, 64>(include) = read(&body, "include")?.unwrap_or_default();
    let top_logprobs: Option<usize> = read(&body, "top_logprobs")?;
    let has_logprobs = top_logprobs.is_some_and(|most| most > 0) || includes(&include, "message.output_text.logprobs");
    if has_logprobs {
        writer.set("logprobs", true);
        writer.set("top_logprobs", top_logprobs.unwrap_or_default());
    }
    let is_kept = read(&body, "store")?.unwrap_or(true);
    let asked = Asked {
        fields: fields(&body, is_kept)?,
        keeps_thoughts: includes(&include, "reasoning.encrypted_content"),
        has_logprobs,
        input: is_kept.then(|| Arc::from(with_references(given, &referenced))),
        previous,
    };
    Ok((writer.finish()?, asked))
}

fn read<'a, T: Deserialize<'a>>(body: &Body<'a>, name: &str) -> Result<Option<T>, ApiError> {
    body.get(name).map(|value| reading::value(value, name)).transpose()
}

fn includes(include: &[String], what: &str) -> bool {
    include.iter().any(|it| it == what)
}

fn is_nothing(value: &RawValue) -> bool {
    matches!(value.get(), "null" | "false" | "[]" | "{}" | "1" | "0")
}

fn gone(id: &str) -> ApiError {
    let message = format!(
        "previous_response_id: there is no response `{id}`: it was not stored, or has made room for newer ones; send \
         the whole conversation as `input`"
    );
    ApiError {
        status: 404,
        ..ApiError::invalid("previous_response_id", message).with_code("previous_response_not_found")
    }
}

/// The items that references of the input stand for, by the number of the item.
fn referenced(body: &Body<'_>, store: &Store) -> Result<Vec<(usize, Arc<str>)>, ApiError> {
    let Some(given) = body.get("input").filter(|given| given.get().starts_with('[')) else { return Ok(Vec::new()) };
    let List::<Item<'_>, MOST_ITEMS>(items) = reading::value(given, "input")?;
    let references = items.iter().enumerate().filter_map(|(index, item)| Some((index, item.reference()?)));
    references
        .map(|(index, id)| {
            let unknown = || {
                let message = format!("input[{index}]: there is no item `{id}`: send the item itself");
                ApiError { status: 404, ..ApiError::invalid(format!("input[{index}]"), message) }
            };
            Ok((index, store.item(id).ok_or_else(unknown)?))
        })
        .collect()
}

/// An input with the items themselves in the places of references.
fn with_references(given: &RawValue, referenced: &[(usize, Arc<str>)]) -> String {
    if referenced.is_empty() {
        return given.get().to_owned();
    }
    let items: Vec<&RawValue> = serde_json::from_str(given.get()).unwrap_or_default();
    let item = |(index, item): (usize, &RawValue)| {
        let found = referenced.iter().find(|(at, _)| *at == index);
        found.map_or_else(|| item.get().to_owned(), |(_, item)| item.to_string())
    };
    format!("[{}]", items.into_iter().enumerate().map(item).collect::<Vec<_>>().join(","))
}

/// Adds an input to the chat: a text, items, or one item.
fn input<'a>(
    given: &'a RawValue,
    referenced: &'a [(usize, Arc<str>)],
    writer: &mut ChatWriter<'a>,
    place: &str,
) -> Result<(), ApiError> {
    if reading::is_text(given) {
        let Text(text) = reading::value(given, place)?;
        writer.message(ChatMessage::new("user", text), || place.to_owned());
        return Ok(());
    }
    if given.get().starts_with('{') && place != "input" {
        return reading::value::<Item<'a>>(given, place)?.write(writer, place);
    }
    let List::<Item<'a>, MOST_ITEMS>(items) = reading::value(given, place)?;
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match referenced.iter().find(|(at, _)| *at == index) {
            Some((_, json)) => reading::value::<Item<'a>>(reading::json(json)?, &place)?.write(writer, &place)?,
            None => item.write(writer, &place)?,
        }
    }
    Ok(())
}

fn form<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<(), ApiError> {
    let Some(format) = read::<TextConfig<'a>>(body, "text")?.and_then(|text| text.format) else { return Ok(()) };
    let Format { r#type: kind, schema } = reading::value(format, "text.format")?;
    match (&*kind, schema) {
        ("text", _) => {}
        ("json_object", _) => {
            writer.set("response_format", json!({"type": "json_object"}));
            writer.rename("response_format", "text.format");
        }
        ("json_schema", Some(schema)) => writer.give("json_schema", "text.format.schema", schema),
        _ => {
            let can_be = "`text`, `json_object`, or `json_schema` with its `schema` can be";
            return Err(ApiError::invalid("text.format", format!("text.format is of type `{kind}`: {can_be}")));
        }
    }
    Ok(())
}

/// Bytes of `metadata` at most: each event of a response that has begun or ended repeats it.
const LARGEST_METADATA: usize = 64 << 10;

/// The fields that the response repeats.
fn fields(body: &Body<'_>, is_kept: bool) -> Result<Map<String, Value>, ApiError> {
    if let Some(metadata) = body.get("metadata").filter(|it| it.get().len() > LARGEST_METADATA) {
        let message = format!("metadata: {} bytes, and {LARGEST_METADATA} are the most", metadata.get().len());
        return Err(ApiError::invalid("metadata", message));
    }
    let mut fields = Map::new();
    for (name, otherwise) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("safety_identifier", Value::Null),
        ("temperature", Value::Null),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_logprobs", Value::Null),
        ("top_p", Value::Null),
        ("user", Value::Null),
    ] {
        fields.insert(name.to_owned(), body.tree(name)?.unwrap_or(otherwise));
    }
    if let Some(text) = fields["text"].as_object_mut() {
        text.entry("format").or_insert_with(|| json!({"type": "text"}));
    }
    let fixed = [
        ("background", json!(false)),
        ("store", json!(is_kept)),
        ("service_tier", json!("default")),
        ("truncation", json!("disabled")),
    ];
    fields.extend(fixed.map(|(name, value)| (name.to_owned(), value)));
    Ok(fields)
}
