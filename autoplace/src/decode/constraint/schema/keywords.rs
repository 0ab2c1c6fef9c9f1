//! The supported and unsupported keywords of a schema.
//!
//! In: a schema whose size was checked. Out: the same schema without keywords that have no effect, and a note for each
//! keyword that no grammar can enforce.

use serde_json::{Map, Value, json};

use super::subschemas::{Followed, is_in, subschemas_mut_named};
use super::{formats, references};
use crate::decode::constraint::unenforced::Unenforced as Note;

/// Keywords that llguidance 1.9 cannot enforce. The keywords after a colon belong to the keyword before the colon.
const UNENFORCED: [&str; 12] = [
    "uniqueItems",
    "not",
    "contains:minContains maxContains",
    "if:then else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];
/// Keywords whose value may be `null`.
const MAY_BE_NULL: &str = "const default example examples";
/// Keywords whose value is a count.
const COUNTS: [&str; 6] = ["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];
/// Keywords that are kept next to `$ref` in old drafts.
const BESIDE_OLD_REFERENCES: &str = "$comment $defs $id $ref $schema definitions description title";

/// Cleans a schema and all of its subschemas.
pub(super) fn clean(root: &mut Value, followed: Followed) -> Result<Vec<Note>, Note> {
    let is_old = root.get("$schema").and_then(Value::as_str).is_some_and(is_old_draft);
    let mut cleaner = Cleaner { followed, is_old, notes: Vec::new() };
    cleaner.schema(root, "")?;
    Ok(cleaner.notes)
}

/// Whether the schema follows one of the drafts 3 to 7, which ignore every other keyword next to `$ref`.
fn is_old_draft(uri: &str) -> bool {
    ["draft-03", "draft-04", "draft-05", "draft-06", "draft-07"].iter().any(|draft| uri.contains(draft))
}

struct Cleaner {
    followed: Followed,
    is_old: bool,
    notes: Vec<Note>,
}

impl Cleaner {
    fn schema(&mut self, schema: &mut Value, place: &str) -> Result<(), Note> {
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(_) => return Ok(()),
            _ => return Err(Note::new(place, "a schema must be an object, `true` or `false`")),
        };
        members.retain(|keyword, value| !value.is_null() || is_in(MAY_BE_NULL, keyword));
        if self.is_old && members.get("$ref").is_some_and(Value::is_string) {
            members.retain(|keyword, _| is_in(BESIDE_OLD_REFERENCES, keyword));
        }
        for keyword in COUNTS {
            // 3.0 is an integer.
            let whole =
                members.get(keyword).and_then(Value::as_f64).filter(|number| number.fract() == 0.0 && *number >= 0.0);
            if let Some(whole) = whole.filter(|number| *number < 9e15) {
                members.insert(keyword.to_owned(), (whole as u64).into());
            }
        }
        without_what_says_nothing(members);
        names_as_properties(members);
        for entry in UNENFORCED {
            let (keyword, others) = entry.split_once(':').unwrap_or((entry, ""));
            if members.contains_key(keyword) {
                self.leave_out(place, keyword)?;
                members.retain(|name, _| name != keyword && !is_in(others, name));
            }
        }
        if let Some(format) = members.get("format").and_then(Value::as_str)
            && let formats::Format::Unenforced = formats::find(format)
        {
            self.leave_out(place, &format!("format: {format}"))?;
            members.shift_remove("format");
        }
        for (at, schema) in subschemas_mut_named(members) {
            self.schema(schema, &references::join(place, &at))?;
        }
        Ok(())
    }

    fn leave_out(&mut self, place: &str, keyword: &str) -> Result<(), Note> {
        let note = Note::new(place, format!("`{keyword}` is not enforced"));
        match self.followed {
            Followed::Whole => Err(note),
            Followed::AsFarAsPossible => {
                self.notes.push(note);
                Ok(())
            }
        }
    }
}

/// Removes keywords without effect.
fn without_what_says_nothing(members: &mut Map<String, Value>) {
    let is_anything = |value: Option<&Value>| value.is_some_and(|value| *value == json!(true) || *value == json!({}));
    let most_items = members.get("maxItems").and_then(Value::as_u64);
    // Zod 4 writes this schema for the names of a record.
    let any_name = members.get("propertyNames") == Some(&json!({"type": "string"}));
    let least = members.get("minContains").and_then(Value::as_f64);
    let contains_nothing = least == Some(0.0) && !members.contains_key("maxContains");
    let has = |keyword: &str| members.contains_key(keyword);
    let (no_if, no_branch, no_contains) = (!has("if"), !has("then") && !has("else"), !has("contains"));
    let is_empty = |keyword: &str| members.get(keyword).and_then(Value::as_object).is_some_and(Map::is_empty);
    let says_nothing = [
        ("uniqueItems", members.get("uniqueItems") == Some(&json!(false)) || most_items.is_some_and(|most| most < 2)),
        ("propertyNames", any_name || is_anything(members.get("propertyNames"))),
        ("unevaluatedItems", is_anything(members.get("unevaluatedItems"))),
        ("unevaluatedProperties", is_anything(members.get("unevaluatedProperties"))),
        ("dependentRequired", is_empty("dependentRequired")),
        ("dependentSchemas", is_empty("dependentSchemas")),
        ("dependencies", is_empty("dependencies")),
        ("if", no_branch),
        ("then", no_if),
        ("else", no_if),
        ("contains", contains_nothing),
        ("minContains", contains_nothing || no_contains),
        ("maxContains", no_contains),
    ];
    for (keyword, _) in says_nothing.iter().filter(|(_, says_nothing)| *says_nothing) {
        members.shift_remove(*keyword);
    }
}

/// Rewrites `propertyNames` as properties if it lists the names or states a pattern. Zod and pydantic write records
/// with such keys in this way.
fn names_as_properties(members: &mut Map<String, Value>) {
    let others = ["properties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "unevaluatedProperties"];
    if others.iter().any(|keyword| members.contains_key(*keyword)) {
        return;
    }
    let Some(Value::Object(names)) = members.get("propertyNames") else { return };
    let says = |keyword: &str| names.keys().all(|key| key == keyword || key == "type") && names.contains_key(keyword);
    let is_text = names.get("type").is_none_or(|kind| kind == "string");
    let value = || members.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let (keyword, map): (_, Map<_, _>) = match (names.get("enum"), names.get("const"), names.get("pattern")) {
        (Some(Value::Array(list)), None, None) if is_text && says("enum") => {
            ("properties", list.iter().filter_map(Value::as_str).map(|name| (name.to_owned(), value())).collect())
        }
        (None, Some(Value::String(name)), None) if is_text && says("const") => {
            ("properties", [(name.clone(), value())].into_iter().collect())
        }
        (None, None, Some(Value::String(pattern))) if is_text && says("pattern") => {
            ("patternProperties", [(pattern.clone(), value())].into_iter().collect())
        }
        _ => return,
    };
    members.shift_remove("propertyNames");
    members.insert(keyword.to_owned(), map.into());
    members.insert("additionalProperties".to_owned(), false.into());
}
