//! Translates a request for a response to a chat request.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::items::{Item, MAX_ITEMS};
use super::{Store, not_stored, tools};
use crate::error::ApiError;
use crate::parameters;
use crate::reading::{self, Body, List};
use crate::translation::{ChatMessage, ChatWriter, Translation};

/// Parameters that the translation itself reads.
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
/// Parameters that are ignored because they do not change the answer. The reasons are in docs/responses.md.
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
/// Parameters that are refused: those for OpenAI's own services, and parameters of chat completions that have another
/// name here or do not exist. Beside each are the values that have no effect; `false` has no effect either.
const REFUSED: [(&str, &str); 14] = [
    ("background", ""),
    ("conversation", "{}"),
    ("prompt", "{}"),
    ("image", "{}"),
    ("moderation", "{}"),
    ("messages", "[]"),
    ("n", "1"),
    ("n_cmpl", "1"),
    ("logprobs", ""),
    ("response_format", "{}"),
    ("reasoning_effort", ""),
    ("max_completion_tokens", ""),
    ("continue_final_message", ""),
    ("add_generation_prompt", "true"),
];
/// Maximum bytes of the earlier responses and items to which a request refers by id. An HTTP request has the same
/// maximum.
const MAX_EARLIER_BYTES: usize = 16 << 20;

/// The request's fields that the response repeats, and how its events are written.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The request's fields that the response repeats.
    pub(super) fields: Map<String, Value>,
    /// Whether thoughts are also sent as a text that the client can store.
    pub(super) keeps_thoughts: bool,
    pub(super) has_logprobs: bool,
    /// The `input` of the request, if the response will be stored.
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
    parameters::refuse(&body, &REFUSED, " by /v1/responses")?;
    // The writer borrows the earlier items. So they are read before the writer is made.
    let previous: Option<String> = body.read("previous_response_id")?;
    let before = match &previous {
        Some(id) => store.conversation(id).ok_or_else(|| gone(id))?,
        None => Vec::new(),
    };
    let mut earlier = Earlier::default();
    for part in &before {
        earlier.add(part, "previous_response_id")?;
    }
    let referenced = referenced(&body, store, &mut earlier)?;

    let mut writer = ChatWriter::new(bytes + earlier.bytes);
    writer.conversation_is("input");
    let is_refused = |name: &str| REFUSED.iter().any(|(refused, _)| *refused == name);
    writer.pass_others(&body, |name| READ.contains(&name) || IGNORED.contains(&name) || is_refused(name))?;
    if let Some(limit) = body.get("max_output_tokens") {
        writer.give("max_tokens", "max_output_tokens", limit);
    }
    if let Some(instructions) = body.get("instructions") {
        let text = reading::text(instructions, "instructions")?;
        writer.message(ChatMessage::new("system", text), || "instructions".to_owned());
    }
    for part in &before {
        input(reading::json(part)?, &[], &mut writer, "previous_response_id")?;
    }
    let given = body.get("input").ok_or_else(|| ApiError::invalid("input", "`input` is missing"))?;
    input(given, &referenced, &mut writer, "input")?;
    tools::write(&body, &mut writer)?;
    form(&body, &mut writer)?;
    let reasoning: Reasoning = body.read("reasoning")?.unwrap_or_default();
    if let Some(effort) = &reasoning.effort {
        writer.effort("reasoning.effort", effort);
    }
    let List::<String, 64>(include) = body.read("include")?.unwrap_or_default();
    let top_logprobs: Option<usize> = body.read("top_logprobs")?;
    let has_logprobs = top_logprobs.is_some_and(|most| most > 0) || includes(&include, "message.output_text.logprobs");
    if has_logprobs {
        writer.set("logprobs", "top_logprobs", true);
        writer.set("top_logprobs", "top_logprobs", top_logprobs.unwrap_or_default());
    }
    let is_kept = body.read("store")?.unwrap_or(true);
    let asked = Asked {
        fields: fields(&body, is_kept)?,
        keeps_thoughts: includes(&include, "reasoning.encrypted_content"),
        has_logprobs,
        input: is_kept.then(|| Arc::from(with_references(given, &referenced))),
        previous,
    };
    Ok((writer.finish()?, asked))
}

fn includes(include: &[String], what: &str) -> bool {
    include.iter().any(|included| included == what)
}

/// Counts the bytes of the stored responses and items to which a request refers by id.
#[derive(Debug, Default)]
struct Earlier {
    bytes: usize,
}

impl Earlier {
    /// Counts the bytes of a part. The part's id is at `place` of the request.
    fn add(&mut self, part: &str, place: &str) -> Result<(), ApiError> {
        self.bytes += part.len();
        if self.bytes <= MAX_EARLIER_BYTES {
            return Ok(());
        }
        let message = format!(
            "{place}: earlier responses and items have more than {MAX_EARLIER_BYTES} bytes together, the limit for \
             one request"
        );
        Err(ApiError::invalid(place, message).with_code("context_length_exceeded"))
    }
}

fn gone(id: &str) -> ApiError {
    let missing = not_stored(id);
    let message = format!("previous_response_id: {missing}; send the whole conversation as `input`");
    ApiError {
        status: 404,
        ..ApiError::invalid("previous_response_id", message).with_code("previous_response_not_found")
    }
}

/// The items to which the input refers. Each comes with the index of the reference, in ascending order.
fn referenced(body: &Body<'_>, store: &Store, earlier: &mut Earlier) -> Result<Vec<(usize, Arc<str>)>, ApiError> {
    let Some(given) = body.get("input").filter(|given| given.get().starts_with('[')) else { return Ok(Vec::new()) };
    let List::<Item<'_>, MAX_ITEMS>(items) = reading::value(given, "input")?;
    let references = items.iter().enumerate().filter_map(|(index, item)| Some((index, item.reference()?)));
    references
        .map(|(index, id)| {
            let unknown = || {
                let message = format!("input[{index}]: there is no item `{id}`: send the item itself");
                ApiError { status: 404, ..ApiError::invalid(format!("input[{index}]"), message) }
            };
            let item = store.item(id).ok_or_else(unknown)?;
            earlier.add(&item, &format!("input[{index}]"))?;
            Ok((index, item))
        })
        .collect()
}

/// The item to which the reference at this index refers.
fn found(referenced: &[(usize, Arc<str>)], index: usize) -> Option<&Arc<str>> {
    let at = referenced.binary_search_by_key(&index, |(at, _)| *at).ok()?;
    referenced.get(at).map(|(_, item)| item)
}

/// The input, in which each reference is replaced by its item.
fn with_references(given: &RawValue, referenced: &[(usize, Arc<str>)]) -> String {
    if referenced.is_empty() {
        return given.get().to_owned();
    }
    let items: Vec<&RawValue> = serde_json::from_str(given.get()).unwrap_or_default();
    let item = |(index, item): (usize, &RawValue)| {
        found(referenced, index).map_or_else(|| item.get().to_owned(), ToString::to_string)
    };
    format!("[{}]", items.into_iter().enumerate().map(item).collect::<Vec<_>>().join(","))
}

/// Adds an input to the chat. The input is a text, a list of items, or one item.
fn input<'a>(
    given: &'a RawValue,
    referenced: &'a [(usize, Arc<str>)],
    writer: &mut ChatWriter<'a>,
    place: &str,
) -> Result<(), ApiError> {
    if reading::is_text(given) {
        writer.message(ChatMessage::new("user", reading::text(given, place)?), || place.to_owned());
        return Ok(());
    }
    if given.get().starts_with('{') && place != "input" {
        return reading::value::<Item<'a>>(given, place)?.write(writer, place);
    }
    let List::<Item<'a>, MAX_ITEMS>(items) = reading::value(given, place)?;
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match found(referenced, index) {
            Some(json) => reading::value::<Item<'a>>(reading::json(json)?, &place)?.write(writer, &place)?,
            None => item.write(writer, &place)?,
        }
    }
    Ok(())
}

fn form<'a>(body: &Body<'a>, writer: &mut ChatWriter<'a>) -> Result<(), ApiError> {
    let Some(format) = body.read::<TextConfig<'a>>("text")?.and_then(|text| text.format) else { return Ok(()) };
    let Format { r#type: kind, schema } = reading::value(format, "text.format")?;
    match (&*kind, schema) {
        ("text", _) => {}
        ("json_object", _) => {
            writer.set("response_format", "text.format", json!({"type": "json_object"}));
        }
        ("json_schema", Some(schema)) => writer.schema("text.format.schema", schema)?,
        _ => {
            let can_be = "use `text`, `json_object`, or `json_schema` with its `schema`";
            return Err(ApiError::invalid("text.format", format!("text.format is of type `{kind}`: {can_be}")));
        }
    }
    Ok(())
}

/// Parameters that have a meaning only for the client. They are repeated in the response without being read.
const LABELS: [&str; 4] = ["metadata", "user", "safety_identifier", "prompt_cache_key"];
/// Maximum bytes of all labels. Several events of a response repeat them.
const MAX_LABEL_BYTES: usize = 64 << 10;

/// The request's fields that the response repeats.
fn fields(body: &Body<'_>, is_kept: bool) -> Result<Map<String, Value>, ApiError> {
    let mut bytes = 0;
    for (name, label) in LABELS.into_iter().filter_map(|name| Some((name, body.get(name)?))) {
        bytes += label.get().len();
        if bytes > MAX_LABEL_BYTES {
            let others = if name == LABELS[0] { "" } else { " with the fields before it" };
            let message = format!(
                "{name}: it has {bytes} bytes{others}, but {} may have only {MAX_LABEL_BYTES} together",
                LABELS.join(", ")
            );
            return Err(ApiError::invalid(name, message));
        }
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

#[cfg(test)]
mod tests {
    use super::super::store::Stored;
    use super::*;

    fn translated(body: &Value, store: &Store) -> Result<Translation, ApiError> {
        translate(body.to_string().as_bytes(), store).map(|(translation, _)| translation)
    }

    /// A store with the response `r` and its message `m`. The input of the response and the text of the message have
    /// `bytes` bytes each.
    fn store(bytes: usize) -> Store {
        let store = Store::default();
        let item = json!({"type": "message", "role": "assistant", "content": "m".repeat(bytes)});
        assert!(store.keep(Stored {
            id: "r".to_owned(),
            previous: None,
            input: json!("i".repeat(bytes)).to_string().into(),
            items: vec![("m".to_owned(), item.to_string().into())],
            response: "{}".into(),
        }));
        store
    }

    #[test]
    fn items_that_a_request_names_by_ids_are_limited() {
        let reference = json!({"type": "item_reference", "id": "m"});
        let asked = |count: usize| json!({"input": vec![reference.clone(); count]});
        let item = 64 << 10;
        // Each item takes somewhat more bytes than its text.
        let most = MAX_EARLIER_BYTES / item - 1;
        let kept = store(item);
        let fits = translated(&asked(most), &kept).unwrap();
        assert!(fits.body.len() > most * item);
        let error = translated(&asked(8192), &kept).map(|_| ()).unwrap_err();
        let expected = (400, Some("context_length_exceeded"), Some(format!("input[{most}]")));
        assert_eq!((error.status, error.code, error.param.clone()), expected, "{error}");

        let follows = json!({"input": "a", "previous_response_id": "r"});
        assert!(translated(&follows, &store(MAX_EARLIER_BYTES / 2 - 128)).is_ok());
        let error = translated(&follows, &store(MAX_EARLIER_BYTES / 2)).map(|_| ()).unwrap_err();
        let expected = (400, Some("context_length_exceeded"), Some("previous_response_id"));
        assert_eq!((error.status, error.code, error.param.as_deref()), expected, "{error}");
        // The bytes of the item and of the response are counted together.
        let both = json!({"input": [reference], "previous_response_id": "r"});
        let error = translated(&both, &store(MAX_EARLIER_BYTES / 2 - 128)).map(|_| ()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input[0]"), "{error}");
    }

    #[test]
    fn a_value_that_would_have_an_effect_is_refused_and_others_are_not() {
        let refused = |name: &str, value: Value| {
            let error = translated(&json!({"input": "a", name: value}), &Store::default()).map(|_| ()).err()?;
            error.param
        };
        for (name, value) in [
            ("max_completion_tokens", json!(1)),
            ("logprobs", json!(1)),
            ("logprobs", json!(0)),
            ("n", json!(0)),
            ("add_generation_prompt", json!(false)),
            ("reasoning_effort", json!("low")),
        ] {
            assert_eq!(refused(name, value.clone()).as_deref(), Some(name), "{value}");
        }
        for (name, value) in [
            ("n", json!(1)),
            ("logprobs", json!(false)),
            ("add_generation_prompt", json!(true)),
            ("background", json!(false)),
            ("messages", json!([])),
            ("conversation", Value::Null),
        ] {
            assert_eq!(refused(name, value.clone()), None, "{name}: {value}");
        }
    }

    #[test]
    fn a_parameter_under_two_names_is_refused_by_both() {
        let form = json!({"format": {"type": "json_schema", "name": "f", "schema": {}}});
        for (more, names) in [
            (json!({"max_output_tokens": 3, "max_tokens": 3}), ["max_output_tokens", "max_tokens"]),
            (json!({"max_output_tokens": 3, "n_predict": 4}), ["max_output_tokens", "n_predict"]),
            (json!({"text": form, "json_schema": {}}), ["text.format.schema", "json_schema"]),
            (json!({"text": form, "grammar": "root ::= \"a\""}), ["text.format.schema", "grammar"]),
        ] {
            let mut body = more.clone();
            body["input"] = "a".into();
            let error = translated(&body, &Store::default()).map(|_| ()).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(names[0])), "{more}: {error}");
            assert!(names.iter().all(|name| error.message.contains(&format!("`{name}`"))), "{error}");
        }
        let empty = json!({"input": "a", "text": form, "grammar": ""});
        assert!(translated(&empty, &Store::default()).is_ok());
    }

    #[test]
    fn the_labels_of_a_client_are_limited_together() {
        let label = |bytes: usize| json!("l".repeat(bytes));
        let fits = json!({"input": "a", "metadata": label(30 << 10), "user": label(30 << 10)});
        assert!(translated(&fits, &Store::default()).is_ok());
        for (more, name) in [
            (json!({"metadata": label(64 << 10)}), "metadata"),
            (json!({"user": label(64 << 10)}), "user"),
            (json!({"safety_identifier": label(40 << 10), "prompt_cache_key": label(40 << 10)}), "prompt_cache_key"),
        ] {
            let mut body = more;
            body["input"] = "a".into();
            let error = translated(&body, &Store::default()).map(|_| ()).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(name)), "{error}");
        }
    }

    #[test]
    fn a_part_without_its_text_names_the_field_that_it_needs() {
        for (kind, field) in [("refusal", "refusal"), ("output_text", "text")] {
            let body = json!({"input": [{"role": "assistant", "content": [{"type": kind}]}]});
            let error = translated(&body, &Store::default()).map(|_| ()).unwrap_err();
            assert_eq!(error.message, format!("input[0].content[0]: the field `{field}` is missing"));
        }
    }
}
