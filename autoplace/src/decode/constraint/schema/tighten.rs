//! Adds the constraints that llguidance would leave out of a schema, and llguidance's options.

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value};

use super::subschemas::{is_own, subschemas_mut};
use super::{formats, names, numbers, patterns, places};

/// llama.cpp's `SPACE_RULE` (common/json-schema-to-grammar.cpp).
const WHITESPACE: &str = r"(?: |\n{1,2}[ \t]{0,20})";
/// Escapes in JSON strings. Without `\u`, each text has one spelling, so no property can appear twice under two
/// spellings.
const ESCAPES: &str = "nrbtf\\\"";

/// The largest number of properties for which `minProperties` is enforced. llguidance copies all properties for each
/// count.
const MAX_COUNTED: usize = 60;

/// Adds exact bounds, exact formats and llguidance's options.
pub(super) fn ready(mut schema: Value) -> Result<Value, String> {
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

/// Checks `minProperties`. A grammar cannot count distinct names, because a property whose name is free may be
/// repeated.
fn count_properties(members: &mut Map<String, Value>) -> Result<(), String> {
    let required = members.get("required").map_or(0, places::length);
    let Some(least) = members.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
    let is_closed = members.get("additionalProperties") == Some(&Value::Bool(false));
    let named = members.get("properties").map_or(0, places::length);
    if is_closed && !members.contains_key("patternProperties") && named <= MAX_COUNTED {
        // Each name appears at most once, so llguidance can count the properties.
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
