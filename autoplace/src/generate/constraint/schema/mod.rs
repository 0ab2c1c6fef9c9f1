//! A JSON schema made ready for llguidance: what llguidance would not enforce is refused, or rewritten so that it does.
//!
//! In: an untrusted schema of the application. Out: one of bounded size that allows no text that the first does not,
//! and no number that a program reads as another than is written.

mod numbers;
mod places;
mod size;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Different targets of `$ref`: llguidance follows a chain of them by recursion.
const MAX_REFERENCES: usize = 2000;

/// Keywords, with spaces between them: those that hold one schema.
const ONE: &str = "additionalItems additionalProperties contains contentSchema else if items not propertyNames \
    then unevaluatedItems unevaluatedProperties";
/// Keywords that hold a list of schemas.
const LISTS: &str = "allOf anyOf items oneOf prefixItems";
/// Keywords that hold schemas by name.
const MAPS: &str = "$defs definitions dependentSchemas patternProperties properties";
/// Keywords that say something of an object or array.
const STRUCTURE: &str = "additionalItems additionalProperties items maxItems minItems patternProperties \
    prefixItems properties required";
/// Keywords that say that other schemas, or these values, hold as well.
const APPLICATORS: &str = "$ref allOf anyOf const enum oneOf";
/// Keywords that allow and forbid nothing (llguidance, json/schema.rs, `META_AND_ANNOTATIONS`).
const ANNOTATIONS: &str = "$anchor $comment $defs $id $schema contentEncoding contentMediaType default \
    definitions description examples id readOnly title writeOnly";

/// A schema by its text, of which serde_json refuses what is nested more than 127 deep.
pub(super) fn read(text: &str) -> Result<Value, String> {
    let refused = |error| format!("it is nested more than {} deep, or no JSON: {error}", size::MAX_DEPTH);
    serde_json::from_str(text).map_err(refused)
}

/// The schema that is compiled, or why it cannot be.
pub(super) fn prepared(schema: &Value) -> Result<Value, String> {
    size::check(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        Value::Bool(false) => return Err("`false` allows no text".to_owned()),
        _ => return Err("a schema is an object or `true`".to_owned()),
    };
    if let Some(root) = schema.as_object_mut() {
        // llguidance's own options: those of the application hold, not those of whoever wrote the schema.
        root.remove("x-guidance");
    }
    check_references(&schema)?;
    places::check(&schema)?;
    tighten(&mut schema)?;
    Ok(schema)
}

/// Refuses references that llguidance would not follow, or to what is no schema.
fn check_references(root: &Value) -> Result<(), String> {
    let (mut references, mut has_base) = (HashSet::new(), false);
    let mut rest = vec![root];
    while let Some(schema) = rest.pop() {
        let Value::Object(members) = schema else { continue };
        references.extend(members.get("$ref").and_then(Value::as_str));
        rest.extend(subschemas(members));
        has_base |= !std::ptr::eq(schema, root)
            && ["$id", "id"].iter().any(|it| members.get(*it).is_some_and(Value::is_string));
    }
    if let (true, Some(reference)) = (has_base, references.iter().next()) {
        return Err(format!("`$ref`: {reference:?} beside a schema that has an `$id` of its own"));
    }
    if references.len() > MAX_REFERENCES {
        return Err(format!("it refers to {} schemas, at most {MAX_REFERENCES}", references.len()));
    }
    match references.into_iter().find(|it| target(root, it).is_none()) {
        Some(reference) => Err(format!(
            "`$ref`: {reference:?} is no reference from the root to a schema, as \"#/$defs/name\" is, or has escapes"
        )),
        None => Ok(()),
    }
}

/// The schema that a reference is to: a name after each keyword that holds schemas by name, a number after lists.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#').filter(|it| !it.contains(['%', '~']))?;
    let mut segments = match pointer {
        "" => return Some(root),
        pointer => pointer.strip_prefix('/')?.split('/'),
    };
    let mut schema = root;
    while let Some(keyword) = segments.next() {
        schema = match schema.get(keyword)? {
            Value::Array(list) if is_in(LISTS, keyword) => list.get(segments.next()?.parse::<usize>().ok()?)?,
            Value::Object(map) if is_in(MAPS, keyword) => map.get(segments.next()?)?,
            schema if is_in(ONE, keyword) => schema,
            _ => return None,
        };
    }
    Some(schema)
}

fn subschemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    members.iter().flat_map(|(keyword, value)| {
        let keyword = keyword.as_str();
        let one = is_in(ONE, keyword).then_some(value);
        let list = value.as_array().filter(|_| is_in(LISTS, keyword));
        let map = value.as_object().filter(|_| is_in(MAPS, keyword)).into_iter().flat_map(Map::values);
        one.into_iter().chain(list.into_iter().flatten()).chain(map)
    })
}

pub(super) fn subschemas_mut(members: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    members.iter_mut().flat_map(|(keyword, value)| match value {
        value if is_in(ONE, keyword) && !value.is_array() => vec![value],
        Value::Array(list) if is_in(LISTS, keyword) => list.iter_mut().collect(),
        Value::Object(map) if is_in(MAPS, keyword) => map.values_mut().collect(),
        _ => Vec::new(),
    })
}

/// Says what llguidance leaves open.
fn tighten(schema: &mut Value) -> Result<(), String> {
    let Value::Object(members) = schema else { return Ok(()) };
    ["enum", "const"].iter().filter_map(|it| members.get(*it)).try_for_each(numbers::exact)?;
    subschemas_mut(members).try_for_each(tighten)?;
    // What says nothing; the names of a record, by Zod 4.
    for (keyword, nothing) in [("uniqueItems", json!(false)), ("propertyNames", json!({"type": "string"}))] {
        if members.get(keyword) == Some(&nothing) {
            members.remove(keyword);
        }
    }
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
    if least > required as u64 {
        return Err(format!("`minProperties` is {least} and {required} are required: others cannot be told apart"));
    }
    members.remove("minProperties");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::prepared;

    fn of(schema: &Value) -> Value {
        prepared(schema).unwrap()
    }

    #[test]
    fn numbers_are_bounded_by_what_can_be_read_back() {
        let most = 9_007_199_254_740_991_f64;
        assert_eq!(
            of(&json!({"type": "number", "exclusiveMaximum": 1, "minimum": -1e300})),
            json!({"type": "number", "minimum": -most, "maximum": 1_f64.next_down()})
        );
        assert_eq!(
            of(&json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true})),
            json!({"type": "integer", "minimum": 3_f64.next_up(), "maximum": most})
        );
        assert_eq!(
            of(&json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5})),
            json!({"type": "number", "minimum": 1e-15, "maximum": 0.5_f64.next_down()})
        );
        assert!(prepared(&json!({"type": "number", "minimum": "1"})).is_err());
    }

    #[test]
    fn integers_around_zero_have_no_minus_zero() {
        let parted = of(&json!({"title": "t", "type": ["integer", "null"], "minimum": -2, "maximum": 2}));
        assert_eq!(
            parted["anyOf"],
            json!([
                {"type": ["integer"], "minimum": 0, "maximum": 2.0},
                {"type": ["integer"], "minimum": -2.0, "maximum": -1},
                {"type": ["null"], "minimum": -2.0, "maximum": 2.0},
            ])
        );
        assert!(parted["type"].is_null() && parted["title"] == "t", "{parted}");
    }

    #[test]
    fn what_is_data_is_not_taken_for_a_schema() {
        let schema = json!({"const": {"type": "integer", "minimum": -5, "items": true}});
        assert_eq!(of(&schema), schema);
        let named = json!({"type": "object", "additionalProperties": false,
                           "properties": {"type": {"type": "null"}, "items": {"type": "boolean"}}});
        assert_eq!(of(&named), named);
    }

    #[test]
    fn references_are_to_schemas_from_the_root() {
        let schema = |reference: &str| {
            let properties = json!({"a": {"type": "null"}, "b": {"$ref": reference}, "c": {"prefixItems": [true]}});
            let defs = json!({"x y": true, "a~b": true});
            json!({"properties": properties, "$defs": defs, "const": {"$ref": "data"}, "other": {}})
        };
        for reference in ["#", "#/properties/a", "#/$defs/x y", "#/properties/c/prefixItems/0"] {
            prepared(&schema(reference)).unwrap();
        }
        for reference in ["#/nowhere", "#anchor", "other.json#/$defs/a", "#/other", "#/$defs/a~0b", "#/$defs", ""] {
            let said = prepared(&schema(reference)).unwrap_err();
            assert!(said.contains("from the root") && said.contains(reference), "{said}");
        }
        let based = json!({"items": {"$id": "x", "not": {"$ref": "#"}}});
        assert!(prepared(&based).unwrap_err().contains("`$id` of its own"));
    }
}
