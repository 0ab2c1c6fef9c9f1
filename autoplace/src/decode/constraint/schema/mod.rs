//! Prepares a JSON schema for llguidance. Keywords that llguidance would not enforce are refused, removed with a note,
//! or rewritten into a form that it enforces.
//!
//! In: an untrusted schema of the application. Out: a schema of bounded size. It allows no text that the original
//! forbids, apart from the noted keywords, and no number that a program would read differently from its text.

mod closed;
mod follow;
mod formats;
mod keywords;
mod names;
mod numbers;
mod patterns;
mod places;
mod references;
mod size;

use std::fmt;

pub(super) use formats::text as text_format;
pub(super) use patterns::with_spaces;

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};

/// Keywords that hold one schema, separated by spaces.
const ONE: &str = "additionalItems additionalProperties contains contentSchema else if items not propertyNames \
    then unevaluatedItems unevaluatedProperties";
/// Keywords that hold a list of schemas.
const LISTS: &str = "allOf anyOf items oneOf prefixItems";
/// Keywords that hold schemas by name.
const MAPS: &str = "$defs definitions dependentSchemas patternProperties properties";
/// Keywords that hold schemas for references.
const DEFINITIONS: &str = "$defs definitions";
/// Keywords that constrain an object or an array.
const STRUCTURE: &str = "additionalItems additionalProperties items maxItems minItems patternProperties \
    prefixItems properties required";
/// Keywords that add other schemas or values for the same value.
const APPLICATORS: &str = "$ref allOf anyOf const enum oneOf";
/// Keywords without effect on validity (llguidance, json/schema.rs, `META_AND_ANNOTATIONS`).
const ANNOTATIONS: &str = "$anchor $comment $defs $id $schema contentEncoding contentMediaType default \
    definitions description examples id readOnly title writeOnly";
/// llama.cpp's `SPACE_RULE` (common/json-schema-to-grammar.cpp).
const WHITESPACE: &str = r"(?: |\n{1,2}[ \t]{0,20})";
/// Escapes in JSON strings. Without `\u`, each text has one spelling, so no property can appear twice under two
/// spellings.
const ESCAPES: &str = "nrbtf\\\"";

/// Largest number of properties that llguidance counts: it copies all of them for each count.
const MAX_COUNTED: usize = 60;

/// Treatment of keywords that cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// Refuse the schema.
    Whole,
    /// Remove the keywords and note them.
    AsFarAsPossible,
}

/// A part of a schema that is not enforced, and its place. Example: "properties.tags: `uniqueItems` is not enforced".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unenforced {
    /// Path of the subschema, such as `properties.tags.items`; empty for the root.
    pub place: String,
    /// The keyword, with a reason where one is needed.
    pub reason: String,
}

use Unenforced as Note;

impl Note {
    fn new(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.into(), reason: reason.into() }
    }
}

impl From<String> for Note {
    fn from(reason: String) -> Self {
        Self::new("", reason)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.place, self.reason),
        }
    }
}

/// Parses a schema. serde_json refuses nesting deeper than 127.
pub(super) fn read(text: &str) -> Result<Value, Note> {
    let refused =
        |error| Note::from(format!("it is nested more than {} deep, or not valid JSON: {error}", size::MAX_DEPTH));
    serde_json::from_str(text).map_err(refused)
}

/// The schema to compile, with llguidance's options in it, or the reason for refusing it. `is_open` allows unnamed
/// properties by default, as JSON Schema does.
pub(super) fn prepared(schema: &Value, is_open: bool) -> Result<Value, Note> {
    let (mut schema, _) = cleaned(schema, Followed::Whole)?;
    if !is_open {
        closed::close_all(&mut schema)?;
    }
    references::end_all(&mut schema)?;
    if schema == Value::Bool(false) {
        return Err("no value meets it".to_owned().into());
    }
    places::check(&schema)?;
    Ok(ready(schema)?)
}

/// The enforceable part of a schema, with notes about the rest.
pub(super) fn enforceable(schema: &Value) -> (Value, Vec<Note>) {
    let followed = cleaned(schema, Followed::AsFarAsPossible).and_then(|(mut schema, mut notes)| {
        follow::follow(&mut schema, Followed::AsFarAsPossible, &mut notes)?;
        Ok((schema, notes))
    });
    let (schema, mut notes) = match followed {
        Ok(followed) => followed,
        Err(note) => return (json!({"type": "object"}), vec![note]),
    };
    match prepared(&schema, false).and_then(|it| Ok(follow::compile(&it)?)) {
        Ok(()) => (schema, notes),
        Err(note) => {
            notes.push(note);
            (json!({"type": "object"}), notes)
        }
    }
}

/// The place where llguidance fails, and its message.
pub(super) fn failure(schema: &Value, reason: String) -> Note {
    let located = cleaned(schema, Followed::Whole)
        .and_then(|(mut schema, mut notes)| follow::follow(&mut schema, Followed::Whole, &mut notes));
    located.err().unwrap_or_else(|| reason.into())
}

/// A schema of bounded size with supported keywords only.
fn cleaned(schema: &Value, followed: Followed) -> Result<(Value, Vec<Note>), Note> {
    size::check(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        Value::Bool(false) => return Err("`false` allows no text".to_owned().into()),
        _ => return Err("a schema must be an object or `true`".to_owned().into()),
    };
    if let Some(root) = schema.as_object_mut() {
        // The application sets llguidance's options; the author of the schema must not.
        root.remove("x-guidance");
    }
    let mut notes = keywords::clean(&mut schema, followed)?;
    references::resolve(&mut schema, followed, &mut notes)?;
    places::check(&schema)?;
    Ok((schema, notes))
}

/// Adds exact bounds, exact formats and llguidance's options.
fn ready(mut schema: Value) -> Result<Value, String> {
    tighten(&mut schema)?;
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITESPACE.to_owned()),
        json_allowed_escapes: Some(ESCAPES.to_owned()),
        ..JsonCompileOptions::default()
    };
    if schema.is_object() {
        options.apply_to(&mut schema);
    }
    Ok(schema)
}

fn subschemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    subschemas_named(members).map(|(_, schema)| schema)
}

/// The direct subschemas, each with its place: `items`, `anyOf[1]`, `properties.name`.
fn subschemas_named(members: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    members.iter().flat_map(|(keyword, value)| -> Vec<(String, &Value)> {
        match value {
            Value::Array(list) if is_in(LISTS, keyword) => {
                list.iter().enumerate().map(|(at, it)| (format!("{keyword}[{at}]"), it)).collect()
            }
            Value::Object(map) if is_in(MAPS, keyword) => {
                map.iter().map(|(name, it)| (format!("{keyword}.{name}"), it)).collect()
            }
            value if is_in(ONE, keyword) => vec![(keyword.clone(), value)],
            _ => Vec::new(),
        }
    })
}

pub(super) fn subschemas_mut(members: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    subschemas_mut_named(members).map(|(_, schema)| schema)
}

fn subschemas_mut_named(members: &mut Map<String, Value>) -> impl Iterator<Item = (String, &mut Value)> {
    members.iter_mut().flat_map(|(keyword, value)| -> Vec<(String, &mut Value)> {
        match value {
            value if is_in(ONE, keyword) && !value.is_array() => vec![(keyword.clone(), value)],
            Value::Array(list) if is_in(LISTS, keyword) => {
                list.iter_mut().enumerate().map(|(at, it)| (format!("{keyword}[{at}]"), it)).collect()
            }
            Value::Object(map) if is_in(MAPS, keyword) => {
                map.iter_mut().map(|(name, it)| (format!("{keyword}.{name}"), it)).collect()
            }
            _ => Vec::new(),
        }
    })
}

/// Adds constraints that llguidance would leave out.
fn tighten(schema: &mut Value) -> Result<(), String> {
    let Value::Object(members) = schema else { return Ok(()) };
    for keyword in ["enum", "const"] {
        let exact = members.get(keyword).map_or(Ok(()), numbers::exact);
        exact.map_err(|reason| format!("`{keyword}`: {reason}"))?;
    }
    for (keyword, value) in members.iter() {
        let mut names = value.as_object().filter(|_| keyword == "properties").into_iter().flat_map(Map::keys);
        names.try_for_each(|name| numbers::written(name)).map_err(|reason| format!("`properties`: {reason}"))?;
    }
    subschemas_mut(members).try_for_each(tighten)?;
    patterns::as_llguidance(members);
    names::without_exhausted(members);
    formats::as_pattern(members);
    count_properties(members)?;
    if members.keys().any(|keyword| is_own(keyword)) { numbers::bound_all(members) } else { Ok(()) }
}

/// Whether the list contains the keyword.
fn is_in(keywords: &str, keyword: &str) -> bool {
    keywords.split(' ').any(|it| it == keyword)
}

/// Whether a keyword constrains the value itself.
fn is_own(keyword: &str) -> bool {
    !is_in(ANNOTATIONS, keyword) && !is_in(APPLICATORS, keyword)
}

/// Checks `minProperties`. A grammar cannot count distinct names, because freely chosen properties may repeat.
fn count_properties(members: &mut Map<String, Value>) -> Result<(), String> {
    let required = members.get("required").map_or(0, places::length);
    let Some(least) = members.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
    let is_closed = members.get("additionalProperties") == Some(&Value::Bool(false));
    let named = members.get("properties").map_or(0, places::length);
    if is_closed && !members.contains_key("patternProperties") && named <= MAX_COUNTED {
        // Each name appears once, so llguidance can count them.
        return Ok(());
    }
    if least > required as u64 {
        return Err(format!(
            "`minProperties` is {least}, but only {required} properties are required, and further ones cannot be counted"
        ));
    }
    members.remove("minProperties");
    Ok(())
}

#[cfg(test)]
mod tests;
