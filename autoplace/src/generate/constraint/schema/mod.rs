//! A JSON schema made ready for llguidance: what llguidance would not enforce is refused, left out and noted, or
//! rewritten so that it does.
//!
//! In: an untrusted schema of the application. Out: one of bounded size that allows no text that the first does not
//! (but for what is noted), and no number that a program reads as another than is written.

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

/// Keywords, with spaces between them: those that hold one schema.
const ONE: &str = "additionalItems additionalProperties contains contentSchema else if items not propertyNames \
    then unevaluatedItems unevaluatedProperties";
/// Keywords that hold a list of schemas.
const LISTS: &str = "allOf anyOf items oneOf prefixItems";
/// Keywords that hold schemas by name.
const MAPS: &str = "$defs definitions dependentSchemas patternProperties properties";
/// Keywords that hold schemas which say nothing of a value until something refers to them.
const DEFINITIONS: &str = "$defs definitions";
/// Keywords that say something of an object or array.
const STRUCTURE: &str = "additionalItems additionalProperties items maxItems minItems patternProperties \
    prefixItems properties required";
/// Keywords that say that other schemas, or these values, hold as well.
const APPLICATORS: &str = "$ref allOf anyOf const enum oneOf";
/// Keywords that allow and forbid nothing (llguidance, json/schema.rs, `META_AND_ANNOTATIONS`).
const ANNOTATIONS: &str = "$anchor $comment $defs $id $schema contentEncoding contentMediaType default \
    definitions description examples id readOnly title writeOnly";
/// llama.cpp's `SPACE_RULE` (common/json-schema-to-grammar.cpp).
const WHITESPACE: &str = r"(?: |\n{1,2}[ \t]{0,20})";
/// Escapes in JSON strings. Without `u` each text has one spelling, so that no property comes twice under two of them.
const ESCAPES: &str = "nrbtf\\\"";

/// Properties of which llguidance counts how many come: it copies all of them for each.
const MOST_COUNTED: usize = 60;

/// What is done about keywords that cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// The schema is refused.
    Whole,
    /// They are left out, and noted.
    AsFarAsPossible,
}

/// Something of a schema that a text is not held to, and the place of it:
/// "properties.tags: `uniqueItems` is not enforced".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unenforced {
    /// The schema within the schema, as `properties.tags.items`; empty for the whole.
    pub place: String,
    /// The keyword, and why it is not enforced where that needs a word.
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

/// A schema by its text, of which serde_json refuses what is nested more than 127 deep.
pub(super) fn read(text: &str) -> Result<Value, Note> {
    let refused = |error| Note::from(format!("it is nested more than {} deep, or no JSON: {error}", size::MAX_DEPTH));
    serde_json::from_str(text).map_err(refused)
}

/// The schema that is compiled, with llguidance's options in it, or why it cannot be. `is_open`: an object may have
/// properties that nobody names, unless it says otherwise, as JSON Schema has it.
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

/// What of a schema can be enforced, as a schema, and notes of the rest.
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

/// Where llguidance fails with a schema, and what it says then.
pub(super) fn failure(schema: &Value, reason: String) -> Note {
    let located = cleaned(schema, Followed::Whole)
        .and_then(|(mut schema, mut notes)| follow::follow(&mut schema, Followed::Whole, &mut notes));
    located.err().unwrap_or_else(|| reason.into())
}

/// A schema of bounded size, of keywords that are followed.
fn cleaned(schema: &Value, followed: Followed) -> Result<(Value, Vec<Note>), Note> {
    size::check(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        Value::Bool(false) => return Err("`false` allows no text".to_owned().into()),
        _ => return Err("a schema is an object or `true`".to_owned().into()),
    };
    if let Some(root) = schema.as_object_mut() {
        // llguidance's own options: those of the application hold, not those of whoever wrote the schema.
        root.remove("x-guidance");
    }
    let mut notes = keywords::clean(&mut schema, followed)?;
    references::resolve(&mut schema, followed, &mut notes)?;
    places::check(&schema)?;
    Ok((schema, notes))
}

/// What llguidance reads: bounds and formats as it enforces them, and its options.
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

/// Schemas right within a schema, each with its place there: `items`, `anyOf[1]`, `properties.name`.
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

/// Says what llguidance leaves open.
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

/// Whether a keyword is one of these.
fn is_in(keywords: &str, keyword: &str) -> bool {
    keywords.split(' ').any(|it| it == keyword)
}

/// Whether a keyword says something of values itself.
fn is_own(keyword: &str) -> bool {
    !is_in(ANNOTATIONS, keyword) && !is_in(APPLICATORS, keyword)
}

/// A grammar does not count different names: properties of free choice could be the same ones.
fn count_properties(members: &mut Map<String, Value>) -> Result<(), String> {
    let required = members.get("required").map_or(0, places::length);
    let Some(least) = members.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
    let is_closed = members.get("additionalProperties") == Some(&Value::Bool(false));
    let named = members.get("properties").map_or(0, places::length);
    if is_closed && !members.contains_key("patternProperties") && named <= MOST_COUNTED {
        // Each name comes once: llguidance counts them as far as it can.
        return Ok(());
    }
    if least > required as u64 {
        return Err(format!("`minProperties` is {least} and {required} are required: others cannot be told apart"));
    }
    members.remove("minProperties");
    Ok(())
}

#[cfg(test)]
mod tests;
