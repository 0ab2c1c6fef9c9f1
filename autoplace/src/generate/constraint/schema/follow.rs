//! Which place of a schema llguidance cannot follow, and the schema without it.
//!
//! llguidance names no place. It compiles each schema within the schema alone, so that the innermost one that fails is
//! the one to name, or to leave a keyword out of.

use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Map, Value, json};

use super::super::compile::said;
use super::{DEFINITIONS, Followed, Note, is_in, places, ready, subschemas_mut_named, subschemas_named};

/// Values in the schemas that are compiled to find what is wrong with one: a hostile schema is compiled once or twice.
const MAX_PROBED: usize = 30_000;
/// Keywords that are left out one by one, the first that helps: those that llguidance has limits for come first.
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

/// Makes sure that llguidance compiles a schema: refuses it by the place that it does not, or leaves keywords out and
/// notes them.
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

/// Whether llguidance compiles a schema.
fn probe(schema: &Value) -> Result<(), String> {
    compile(&ready(schema.clone())?)
}

/// Compiles a schema that is ready, without a vocabulary.
pub(super) fn compile(ready: &Value) -> Result<(), String> {
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    let compiled = JsonCompileOptions::default().json_to_llg_with_overrides(builder, ready.clone());
    compiled.map(drop).map_err(|error| in_our_words(said(&error.to_string())))
}

/// llguidance's message without the names of its own options.
fn in_our_words(message: String) -> String {
    match message.contains("coerce_one_of") {
        true => "its alternatives cannot be told apart, so that two could hold at once".to_owned(),
        false => message,
    }
}

/// The place of the innermost schema that fails alone, as the keys that lead to it, and why it fails.
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

/// A schema of a document as a document of its own.
fn alone(root: &Value, schema: &Value) -> Value {
    let mut alone = schema.clone();
    if let (Value::Object(alone), Value::Object(root)) = (&mut alone, root) {
        for (keyword, value) in root.iter().filter(|(keyword, _)| is_in(DEFINITIONS, keyword)) {
            alone.insert(keyword.clone(), value.clone());
        }
        alone.extend(root.get("$schema").map(|it| ("$schema".to_owned(), it.clone())));
    }
    alone
}

/// The document without one keyword of the schema at a place, so that this schema compiles; and which keyword it is.
/// `None`: all of them but `type`.
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
        subschemas_mut_named(schema.as_object_mut()?).find(|(it, _)| it == key).map(|(_, child)| child)
    })
}
