//! Finds the part of a schema that llguidance cannot compile, and removes it.
//!
//! llguidance does not report a place. Each subschema is therefore compiled alone. The innermost subschema that fails
//! is reported as the place, or a keyword is removed from it.

use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Map, Value, json};

use super::places;
use super::subschemas::{DEFINITIONS, Followed, is_in, subschemas_mut_named, subschemas_named};
use super::tighten::ready;
use crate::decode::constraint::messages::said;
use crate::decode::constraint::unenforced::Unenforced as Note;

/// Maximum number of values in all schemas compiled by this search. This bounds the number of compilations: a hostile
/// schema is compiled once or twice.
const MAX_PROBED: usize = 30_000;
/// Keywords to remove one by one until the schema compiles. Keywords that llguidance limits come first.
const LEFT_OUT: [&str; 14] = [
    "pattern",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "oneOf",
    "format",
    "multipleOf",
    "allOf",
    "anyOf",
    "$ref",
    "const",
    "enum",
    "required",
    "properties",
];

/// Makes a schema compile with llguidance: either refuses the schema and reports the failing place, or removes keywords
/// and notes them.
pub(super) fn follow(schema: &mut Value, followed: Followed, notes: &mut Vec<Note>) -> Result<(), Note> {
    let mut left = MAX_PROBED;
    while let Err(reason) = probe(schema) {
        left = left.saturating_sub(places::values(schema));
        let (place, reason) = innermost(schema, reason, &mut left);
        let at = place.join(".");
        let lighter = lighter(schema, &place, &mut left);
        if followed == Followed::Whole {
            let reason = match lighter {
                Some((Some(keyword), _)) => format!("`{keyword}`: {reason}"),
                Some((None, _)) | None => reason,
            };
            return Err(Note::new(at, reason));
        }
        let Some((keyword, lighter)) = lighter else {
            notes.push(Note::new("", reason));
            *schema = json!({"type": "object"});
            return Ok(());
        };
        let keyword = keyword.unwrap_or("properties");
        notes.push(Note::new(at, format!("`{keyword}` is not enforced: {reason}")));
        *schema = lighter;
    }
    Ok(())
}

/// Checks that llguidance compiles a schema.
fn probe(schema: &Value) -> Result<(), String> {
    compile(&ready(schema.clone())?)
}

/// Compiles a prepared schema without a vocabulary.
pub(super) fn compile(ready: &Value) -> Result<(), String> {
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    let compiled = JsonCompileOptions::default().json_to_llg_with_overrides(builder, ready.clone());
    compiled.map(drop).map_err(|error| in_our_words(said(&error.to_string())))
}

/// llguidance's message without the names of its options.
fn in_our_words(message: String) -> String {
    match message.contains("coerce_one_of") {
        true => "its alternatives cannot be told apart, so that two could hold at once".to_owned(),
        false => message,
    }
}

/// The place (a list of keys) of the innermost schema that fails even if it is compiled alone, and the reason.
fn innermost(root: &Value, reason: String, left: &mut usize) -> (Vec<String>, String) {
    let (mut at, mut reason, mut schema) = (Vec::new(), reason, root);
    'deeper: while let Value::Object(members) = schema {
        for (key, child) in subschemas_named(members) {
            if !child.is_object() {
                continue;
            }
            let alone = alone(root, child);
            let Some(rest) = left.checked_sub(places::values(&alone)) else { break };
            *left = rest;
            if let Err(inner) = probe(&alone) {
                at.push(key);
                (reason, schema) = (inner, child);
                continue 'deeper;
            }
        }
        break;
    }
    (at, reason)
}

/// A subschema as a separate document, with the definitions of the root.
fn alone(root: &Value, schema: &Value) -> Value {
    let mut alone = schema.clone();
    if let (Value::Object(alone), Value::Object(root)) = (&mut alone, root) {
        for (keyword, value) in root.iter().filter(|(keyword, _)| is_in(DEFINITIONS, keyword)) {
            alone.insert(keyword.clone(), value.clone());
        }
        alone.extend(root.get("$schema").map(|dialect| ("$schema".to_owned(), dialect.clone())));
    }
    alone
}

/// Removes one keyword of the schema at `place`, so that the schema compiles. Returns the keyword and the new document.
/// If the keyword is `None`, only `type` has remained.
fn lighter(root: &Value, place: &[String], left: &mut usize) -> Option<(Option<&'static str>, Value)> {
    for keyword in LEFT_OUT {
        let mut lighter = root.clone();
        let members = at(&mut lighter, place)?.as_object_mut()?;
        let Some(value) = members.shift_remove(keyword) else { continue };
        if keyword == "oneOf" && !members.contains_key("anyOf") {
            members.insert("anyOf".to_owned(), value);
        }
        let schema: &Value = at(&mut lighter, place)?;
        let alone = alone(root, schema);
        *left = left.checked_sub(places::values(&alone))?;
        if probe(&alone).is_ok() {
            return Some((Some(keyword), lighter));
        }
    }
    let mut lighter = root.clone();
    let schema = at(&mut lighter, place)?;
    let kind = schema.get("type").cloned();
    let only: Map<_, _> = kind.map(|kind| ("type".to_owned(), kind)).into_iter().collect();
    (*schema != Value::Object(only.clone())).then_some(())?;
    *schema = only.into();
    Some((None, lighter))
}

fn at<'a>(root: &'a mut Value, place: &[String]) -> Option<&'a mut Value> {
    place.iter().try_fold(root, |schema, key| {
        subschemas_mut_named(schema.as_object_mut()?).find(|(name, _)| name == key).map(|(_, child)| child)
    })
}
