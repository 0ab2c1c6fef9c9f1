//! A JSON schema made ready for llguidance: what that would not hold a text to is refused or said so that it is held.
//!
//! In: a schema as the application has it, which nobody need trust. Out: one of bounded size that allows no text the
//! first does not, and none whose numbers a program reads as others than are written. What it allows besides is kept,
//! as far as a grammar can say it.

mod numbers;
mod places;
mod references;
mod size;

use serde_json::{Map, Value, json};

/// How deep values may nest where the schema says nothing of them.
const FREE_DEPTH: usize = 8;

/// Keywords that hold one schema.
const ONE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords that hold a list of schemas.
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords that hold schemas by name.
const MAPS: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords that say something of an object or array.
const STRUCTURE: [&str; 9] = [
    "additionalItems",
    "additionalProperties",
    "items",
    "maxItems",
    "minItems",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
];
/// Keywords that say that other schemas, or these values, hold as well.
const APPLICATORS: [&str; 6] = ["$ref", "allOf", "anyOf", "const", "enum", "oneOf"];
/// Keywords that allow and forbid nothing (llguidance, json/schema.rs, `META_AND_ANNOTATIONS`).
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// `29` of February in leap years only, which llguidance's own pattern has in all.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
                    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
/// Without leap seconds, which few minutes have.
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

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
    references::plain(&mut schema)?;
    places::check(&schema)?;
    let free = !mixes(&schema, true);
    tighten(&mut schema, free)?;
    if let (true, Some(root)) = (free, schema.as_object_mut()) {
        let values = (0..=FREE_DEPTH).map(|depth| (free_name(depth), free_value(depth)));
        definitions(root)?.extend(values);
    }
    Ok(schema)
}

fn definitions(root: &mut Map<String, Value>) -> Result<&mut Map<String, Value>, String> {
    let definitions = root.entry("$defs").or_insert_with(|| json!({}));
    let not_one = || "`$defs` is not an object".to_owned();
    definitions.as_object_mut().ok_or_else(not_one)
}

/// Whether schemas are laid over one another, so that one that says nothing is best left as it is.
fn mixes(schema: &Value, is_root: bool) -> bool {
    let Value::Object(members) = schema else {
        return false;
    };
    let has = |keyword: &&str| members.contains_key(*keyword);
    let applied = APPLICATORS.iter().filter(|keyword| has(keyword)).count();
    has(&"allOf")
        || applied > 1
        || (applied > 0 && STRUCTURE.iter().any(has))
        || (has(&"patternProperties") && has(&"properties"))
        || (!is_root && (has(&"$id") || has(&"id")))
        || subschemas(members).any(|inner| mixes(inner, false))
}

fn subschemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    members.iter().flat_map(|(keyword, value)| {
        let keyword = keyword.as_str();
        let one = ONE.contains(&keyword).then_some(value);
        let list = value.as_array().filter(|_| LISTS.contains(&keyword));
        let map = value.as_object().filter(|_| MAPS.contains(&keyword));
        let map = map.into_iter().flat_map(Map::values);
        one.into_iter().chain(list.into_iter().flatten()).chain(map)
    })
}

/// Says what llguidance leaves open. `free`: places without a schema are given one.
fn tighten(schema: &mut Value, free: bool) -> Result<(), String> {
    let Value::Object(members) = schema else {
        if free && *schema == Value::Bool(true) {
            *schema = free_reference(FREE_DEPTH);
        }
        return Ok(());
    };
    for (keyword, value) in members.iter_mut() {
        let keyword = keyword.as_str();
        match value {
            Value::Array(list) if LISTS.contains(&keyword) => {
                list.iter_mut().try_for_each(|inner| tighten(inner, free))?;
            }
            Value::Object(map) if MAPS.contains(&keyword) => {
                map.values_mut().try_for_each(|inner| tighten(inner, free))?;
            }
            Value::Object(_) | Value::Bool(_) if ONE.contains(&keyword) => tighten(value, free)?,
            Value::Array(_) | Value::Object(_) | Value::Number(_) if keyword == "enum" || keyword == "const" => {
                numbers::exact(value)?;
            }
            _ => {}
        }
    }
    if members.get("uniqueItems") == Some(&Value::Bool(false)) {
        members.remove("uniqueItems");
    }
    count_properties(members)?;
    format(members);
    let says_something =
        members.keys().any(|keyword| !is_annotation(keyword) && !APPLICATORS.contains(&keyword.as_str()));
    if says_something {
        numbers::bound_all(members)?;
        if free {
            structure(members);
        }
    } else if free && !APPLICATORS.iter().any(|it| members.contains_key(*it)) {
        let reference = free_reference(FREE_DEPTH);
        members.extend(reference.as_object().into_iter().flatten().map(own));
    }
    Ok(())
}

fn own((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn is_annotation(keyword: &str) -> bool {
    ANNOTATIONS.contains(&keyword)
}

/// A grammar does not count different names, only names: with two or more of free choice they could be the same. Where
/// one of some is required, each makes an object of its own.
fn count_properties(members: &Map<String, Value>) -> Result<(), String> {
    const MAX_EITHER: usize = 60;
    let Some(least) = members.get("minProperties").and_then(Value::as_u64) else {
        return Ok(());
    };
    let length = |keyword: &str| members.get(keyword).map_or(0, places::length);
    let required = length("required");
    if least > required as u64 + 1 {
        return Err(format!(
            "`minProperties` is {least} and {required} are required: more than one of free choice cannot be told apart"
        ));
    }
    let either = length("properties").saturating_sub(required);
    if least > required as u64 && either > MAX_EITHER {
        return Err(format!("`minProperties` wants one of {either} properties, at most of {MAX_EITHER}"));
    }
    Ok(())
}

/// Dates and times as validators take them.
fn format(members: &mut Map<String, Value>) {
    let pattern = match members.get("format").and_then(Value::as_str) {
        Some("date") => format!("^{DATE}$"),
        Some("time") => format!("^{TIME}$"),
        Some("date-time") => format!("^{DATE}T{TIME}$"),
        _ => return,
    };
    if members.contains_key("pattern") {
        // llguidance's own, beside the pattern.
        return;
    }
    members.remove("format");
    members.insert("pattern".to_owned(), pattern.into());
}

/// Gives the members of objects and the items of arrays a schema where there is none.
fn structure(members: &mut Map<String, Value>) {
    let is = |wanted: &str| match members.get("type") {
        Some(Value::String(name)) => name == wanted,
        Some(Value::Array(names)) => names.iter().any(|name| name == wanted),
        _ => true,
    };
    let (array, object) = (is("array"), is("object"));
    let mut default = |keyword: &str| {
        members.entry(keyword).or_insert_with(|| free_reference(FREE_DEPTH));
    };
    if object {
        default("additionalProperties");
    }
    if array {
        default("items");
        if members.get("items").is_some_and(Value::is_array) {
            members.entry("additionalItems").or_insert_with(|| free_reference(FREE_DEPTH));
        }
    }
}

fn free_name(depth: usize) -> String {
    format!("any JSON value {depth} deep")
}

fn free_reference(depth: usize) -> Value {
    json!({"$ref": format!("#/$defs/{}", free_name(depth))})
}

/// A value of which the schema says nothing.
fn free_value(depth: usize) -> Value {
    let mut options = vec![
        json!({"type": ["null", "boolean", "string"]}),
        json!({"type": "number", "minimum": -numbers::MAX_INTEGER, "maximum": numbers::MAX_INTEGER}),
    ];
    if let Some(inner) = depth.checked_sub(1).map(free_reference) {
        options.push(json!({"type": "array", "items": inner}));
        options.push(json!({"type": "object", "additionalProperties": inner}));
    }
    json!({"anyOf": options})
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::prepared;

    fn of(schema: &Value) -> Value {
        let mut prepared = prepared(schema).unwrap();
        // The values of places without a schema.
        prepared.as_object_mut().unwrap().remove("$defs");
        prepared
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
    fn places_without_a_schema_are_given_one_unless_schemas_are_mixed() {
        let free = of(&json!({"type": "array"}));
        assert!(free["items"]["$ref"].is_string(), "{free}");
        let mixed = json!({"allOf": [{"type": "array"}, {"type": "array", "minItems": 1}]});
        assert_eq!(of(&mixed), mixed);
    }

    #[test]
    fn options_of_llguidance_are_not_the_schemas_to_set() {
        let schema = json!({"type": "null", "x-guidance": {"lenient": true}});
        assert_eq!(of(&schema), json!({"type": "null"}));
    }
}
