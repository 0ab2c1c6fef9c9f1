//! Resolves the references of a schema. Schemas that only an infinite value would meet are replaced by `false`. If the
//! whole schema is of this kind, it is refused.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::subschemas::{Followed, LISTS, MAPS, ONE, is_in, subschemas, subschemas_mut, subschemas_mut_named};
use crate::decode::constraint::unenforced::Unenforced as Note;

/// Maximum number of distinct `$ref` targets, because llguidance follows a chain of them by recursion.
const MAX_REFERENCES: usize = 2000;
/// Maximum number of rounds to find out which schemas have a finite value.
const MAX_ROUNDS: usize = 200;

/// Joins two places.
pub(super) fn join(place: &str, at: &str) -> String {
    match place.is_empty() || at.starts_with('[') {
        true => format!("{place}{at}"),
        false => format!("{place}.{at}"),
    }
}

/// Refuses or removes references that llguidance cannot follow, and references whose target is not a schema. References
/// with escapes are rewritten without escapes.
pub(super) fn resolve(root: &mut Value, followed: Followed, notes: &mut Vec<Note>) -> Result<(), Note> {
    let (mut references, mut has_base) = (HashSet::new(), false);
    let mut rest = vec![&*root];
    while let Some(schema) = rest.pop() {
        let Value::Object(members) = schema else { continue };
        references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
        rest.extend(subschemas(members));
        let is_root = std::ptr::eq(schema, root);
        has_base |= !is_root && ["$id", "id"].iter().any(|keyword| members.get(*keyword).is_some_and(Value::is_string));
    }
    if references.len() > MAX_REFERENCES {
        let message =
            format!("`$ref`: it refers to {} schemas; at most {MAX_REFERENCES} are possible", references.len());
        return Err(Note::new("", message));
    }
    let mut references: Vec<String> = references.into_iter().collect();
    references.sort();
    let mut plain = HashMap::new();
    for reference in references {
        let target = if has_base { None } else { target(root, &reference) };
        let Some(target) = target else {
            let reason = match has_base {
                true => format!("`$ref`: {reference:?} beside a schema that has an `$id` of its own"),
                false => {
                    format!(
                        "`$ref`: {reference:?} is not a reference from the root to a schema, such as \"#/$defs/name\""
                    )
                }
            };
            let mut places = Vec::new();
            leave_out(root, &reference, "", followed, &mut places);
            let mut left_out = places.into_iter().map(|place| Note::new(place, reason.clone()));
            if followed == Followed::Whole {
                return Err(left_out.next().unwrap_or_else(|| reason.clone().into()));
            }
            notes.extend(left_out);
            continue;
        };
        if reference.contains(['%', '~']) || reference == "#/" {
            let name = format!("autoplace-{}", plain.len());
            plain.insert(reference, (format!("#/$defs/{name}"), name, target.clone()));
        }
    }
    if plain.is_empty() {
        return Ok(());
    }
    if let Value::Object(members) = root {
        let definitions = members.entry("$defs").or_insert_with(|| Map::new().into());
        for (_, name, target) in plain.values() {
            definitions[name] = target.clone();
        }
    }
    rewrite(root, &|reference| plain.get(reference).map(|(plain, ..)| plain.clone()));
    Ok(())
}

/// Finds the places of a reference. Unless the whole schema must be enforced, removes the reference there.
fn leave_out(schema: &mut Value, reference: &str, place: &str, followed: Followed, places: &mut Vec<String>) {
    let Value::Object(members) = schema else { return };
    if members.get("$ref").and_then(Value::as_str) == Some(reference) {
        places.push(place.to_owned());
        if followed == Followed::AsFarAsPossible {
            members.shift_remove("$ref");
        }
    }
    for (at, schema) in subschemas_mut_named(members) {
        leave_out(schema, reference, &join(place, &at), followed, places);
    }
}

/// Rewrites the references.
pub(super) fn rewrite(schema: &mut Value, to: &impl Fn(&str) -> Option<String>) {
    let Value::Object(members) = schema else { return };
    if let Some(Value::String(reference)) = members.get_mut("$ref")
        && let Some(new) = to(reference)
    {
        *reference = new;
    }
    subschemas_mut(members).for_each(|schema| rewrite(schema, to));
}

/// The schema to which a reference points. In its JSON pointer, a name follows each keyword of [`MAPS`], and an index
/// follows each keyword of [`LISTS`] whose value is a list.
pub(super) fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    let mut segments = match pointer {
        "" => return Some(root),
        pointer => pointer.strip_prefix('/')?.split('/').map(unescaped),
    };
    let mut schema = root;
    while let Some(keyword) = segments.next() {
        let keyword = keyword?;
        schema = match schema.get(&keyword)? {
            Value::Array(list) if is_in(LISTS, &keyword) => list.get(segments.next()??.parse::<usize>().ok()?)?,
            Value::Object(map) if is_in(MAPS, &keyword) => map.get(&segments.next()??)?,
            schema if is_in(ONE, &keyword) => schema,
            _ => return None,
        };
    }
    Some(schema)
}

/// Decodes a segment of a JSON pointer in a URI fragment (RFC 6901, section 6).
fn unescaped(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(String::from_utf8(bytes).ok()?.replace("~1", "/").replace("~0", "~"))
}

/// Replaces a schema by `false` if its values would contain themselves without end. No token of such a value could lead
/// to its end.
pub(super) fn end_all(root: &mut Value) -> Result<(), Note> {
    let endless = Endless::new(root);
    if endless.references.is_empty() {
        return Ok(());
    }
    if !endless.has_end(root) {
        return Err(Note::new("", "no value meets it: every value would contain itself without end"));
    }
    endless.cut(root);
    Ok(())
}

/// The references whose values would be infinite.
struct Endless {
    references: HashSet<String>,
}

impl Endless {
    fn new(root: &Value) -> Self {
        let mut references = HashSet::new();
        let mut rest = vec![root];
        while let Some(schema) = rest.pop() {
            let Value::Object(members) = schema else { continue };
            references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            rest.extend(subschemas(members));
        }
        let mut endless = Self { references };
        for _ in 0..MAX_ROUNDS {
            let ending: Vec<String> = endless
                .references
                .iter()
                .filter(|reference| target(root, reference).is_none_or(|target| endless.has_end(target)))
                .cloned()
                .collect();
            if ending.is_empty() {
                return endless;
            }
            endless.references.retain(|reference| !ending.contains(reference));
        }
        Self { references: HashSet::new() }
    }

    /// Whether it is known by now that the schema has a finite value.
    fn has_end(&self, schema: &Value) -> bool {
        let Value::Object(members) = schema else { return schema != &Value::Bool(false) };
        let list = |keyword: &str| members.get(keyword).and_then(Value::as_array);
        let of_ref =
            members.get("$ref").and_then(Value::as_str).is_none_or(|reference| !self.references.contains(reference));
        let of_all = list("allOf").is_none_or(|all| all.iter().all(|schema| self.has_end(schema)));
        let of_any = ["anyOf", "oneOf"]
            .iter()
            .all(|keyword| list(keyword).is_none_or(|all| all.iter().any(|schema| self.has_end(schema))));
        of_ref && of_all && of_any && self.own_has_end(members)
    }

    fn own_has_end(&self, members: &Map<String, Value>) -> bool {
        let is_only = |name: &str| match members.get("type") {
            Some(Value::String(only)) => only == name,
            Some(Value::Array(names)) => !names.is_empty() && names.iter().all(|required| required == name),
            _ => false,
        };
        if is_only("object") {
            let required = members.get("required").and_then(Value::as_array);
            let properties = members.get("properties");
            let property = |name: &Value| {
                properties.and_then(|schemas| schemas.get(name.as_str()?)).is_none_or(|schema| self.has_end(schema))
            };
            return required.is_none_or(|names| names.iter().all(property));
        }
        if is_only("array") && members.get("minItems").and_then(Value::as_u64).is_some_and(|least| least > 0) {
            let first = ["prefixItems", "items"].iter().find_map(|keyword| match members.get(*keyword)? {
                Value::Array(items) => items.first(),
                item => Some(item),
            });
            return first.is_none_or(|item| self.has_end(item));
        }
        true
    }

    fn cut(&self, schema: &mut Value) {
        if !self.has_end(schema) {
            *schema = Value::Bool(false);
        } else if let Value::Object(members) = schema {
            subschemas_mut(members).for_each(|schema| self.cut(schema));
        }
    }
}
