//! Prepares a JSON schema for llguidance. Keywords that llguidance would not enforce are refused, removed with a note,
//! or rewritten into a form that llguidance enforces.
//!
//! In: a schema from the application, which may be hostile. Out: a schema of bounded size. Apart from the noted
//! keywords, this schema allows no text that the original forbids. A number whose parsed value would differ from its
//! text is not allowed either.

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
mod subschemas;
mod tighten;

pub(super) use formats::text as text_format;
pub(super) use patterns::with_spaces;
pub(super) use subschemas::subschemas_mut;

use serde_json::{Value, json};

use self::subschemas::Followed;
use self::tighten::ready;
use super::unenforced::Unenforced as Note;

/// Parses a schema. serde_json refuses nesting deeper than 127.
pub(super) fn read(text: &str) -> Result<Value, Note> {
    let refused =
        |error| Note::from(format!("it is nested more than {} deep, or not valid JSON: {error}", size::MAX_DEPTH));
    serde_json::from_str(text).map_err(refused)
}

/// The schema to compile, with llguidance's options in it, or the reason why the schema is refused. If `is_open` is
/// true, properties that the schema does not name are allowed by default, as in JSON Schema.
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

/// The enforceable part of a schema, and notes about the parts that were removed.
pub(super) fn enforceable(schema: &Value) -> (Value, Vec<Note>) {
    let followed = cleaned(schema, Followed::AsFarAsPossible).and_then(|(mut schema, mut notes)| {
        follow::follow(&mut schema, Followed::AsFarAsPossible, &mut notes)?;
        Ok((schema, notes))
    });
    let (schema, mut notes) = match followed {
        Ok(followed) => followed,
        Err(note) => return (json!({"type": "object"}), vec![note]),
    };
    match prepared(&schema, false).and_then(|ready| Ok(follow::compile(&ready)?)) {
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

/// The schema with supported keywords only. Fails if the schema is too large.
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

#[cfg(test)]
mod tests;
