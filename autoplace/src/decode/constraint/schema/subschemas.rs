//! The keywords of JSON Schema, grouped by the kind of their value, and the schemas within a schema.

use serde_json::{Map, Value};

/// Keywords whose value is one schema, separated by spaces.
pub(super) const ONE: &str = "additionalItems additionalProperties contains contentSchema else if items not propertyNames \
    then unevaluatedItems unevaluatedProperties";
/// Keywords whose value is a list of schemas.
pub(super) const LISTS: &str = "allOf anyOf items oneOf prefixItems";
/// Keywords whose value maps names to schemas.
pub(super) const MAPS: &str = "$defs definitions dependentSchemas patternProperties properties";
/// Keywords whose value maps names to schemas that references point to.
pub(super) const DEFINITIONS: &str = "$defs definitions";
/// Keywords that constrain an object or an array.
pub(super) const STRUCTURE: &str = "additionalItems additionalProperties items maxItems minItems patternProperties \
    prefixItems properties required";
/// Keywords that add other schemas or values for the same value.
pub(super) const APPLICATORS: &str = "$ref allOf anyOf const enum oneOf";
/// Keywords without effect on validity (llguidance, json/schema.rs, `META_AND_ANNOTATIONS`).
pub(super) const ANNOTATIONS: &str = "$anchor $comment $defs $id $schema contentEncoding contentMediaType default \
    definitions description examples id readOnly title writeOnly";

/// How keywords that cannot be enforced are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// Refuse the schema.
    Whole,
    /// Remove the keywords and note them.
    AsFarAsPossible,
}

pub(super) fn subschemas(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    subschemas_named(members).map(|(_, schema)| schema)
}

/// The direct subschemas, each with its place: `items`, `anyOf[1]`, `properties.name`.
pub(super) fn subschemas_named(members: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    members.iter().flat_map(|(keyword, value)| -> Vec<(String, &Value)> {
        match value {
            Value::Array(list) if is_in(LISTS, keyword) => {
                list.iter().enumerate().map(|(at, schema)| (format!("{keyword}[{at}]"), schema)).collect()
            }
            Value::Object(map) if is_in(MAPS, keyword) => {
                map.iter().map(|(name, schema)| (format!("{keyword}.{name}"), schema)).collect()
            }
            value if is_in(ONE, keyword) => vec![(keyword.clone(), value)],
            _ => Vec::new(),
        }
    })
}

pub(in crate::decode::constraint) fn subschemas_mut(
    members: &mut Map<String, Value>,
) -> impl Iterator<Item = &mut Value> {
    subschemas_mut_named(members).map(|(_, schema)| schema)
}

pub(super) fn subschemas_mut_named(members: &mut Map<String, Value>) -> impl Iterator<Item = (String, &mut Value)> {
    members.iter_mut().flat_map(|(keyword, value)| -> Vec<(String, &mut Value)> {
        match value {
            value if is_in(ONE, keyword) && !value.is_array() => vec![(keyword.clone(), value)],
            Value::Array(list) if is_in(LISTS, keyword) => {
                list.iter_mut().enumerate().map(|(at, schema)| (format!("{keyword}[{at}]"), schema)).collect()
            }
            Value::Object(map) if is_in(MAPS, keyword) => {
                map.iter_mut().map(|(name, schema)| (format!("{keyword}.{name}"), schema)).collect()
            }
            _ => Vec::new(),
        }
    })
}

/// Whether the list contains the keyword.
pub(super) fn is_in(keywords: &str, keyword: &str) -> bool {
    keywords.split(' ').any(|other| other == keyword)
}

/// Whether a keyword constrains the value itself.
pub(super) fn is_own(keyword: &str) -> bool {
    !is_in(ANNOTATIONS, keyword) && !is_in(APPLICATORS, keyword)
}
