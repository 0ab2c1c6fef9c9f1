//! Constraints from Rust types.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::kind::Constraint;
use crate::decode::error::Error;

impl Constraint {
    /// A JSON value of type `T`, with the schema that schemars derives from the type. The value has no other properties
    /// than the type, and its integers are within the range of their fields.
    pub fn of_type<T: JsonSchema>() -> Self {
        let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
        RecursiveTransform(bound_integer).transform(&mut schema);
        if !is_mixed(schema.as_value()) {
            RecursiveTransform(close).transform(&mut schema);
        }
        Self::json_schema(schema.to_value())
    }

    /// Parses a text that was generated under the constraint for [its type](Self::of_type).
    pub(crate) fn value<T: DeserializeOwned>(text: String) -> Result<T, Error> {
        serde_json::from_str(&text).map_err(|error| Error::NotOfType { reason: error.to_string(), text })
    }
}

/// Adds the bounds of 32-bit integers, which schemars states only in `format`.
fn bound_integer(schema: &mut Schema) {
    let bounds = match schema.get("format").and_then(Value::as_str) {
        Some("int32") => (f64::from(i32::MIN), f64::from(i32::MAX)),
        Some("uint32") => (0.0, f64::from(u32::MAX)),
        _ => return,
    };
    for (keyword, bound) in [("minimum", bounds.0), ("maximum", bounds.1)] {
        if schema.get(keyword).is_none() {
            schema.insert(keyword.to_owned(), bound.into());
        }
    }
}

/// Forbids properties that the object does not name.
fn close(schema: &mut Schema) {
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Whether the properties of one object come from several schemas, as with `#[serde(flatten)]`. None of those schemas
/// can then forbid other properties.
fn is_mixed(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            let has = |keyword: &str| members.contains_key(keyword);
            let others = ["$ref", "anyOf", "oneOf"];
            has("allOf") || (has("properties") && others.into_iter().any(has)) || members.values().any(is_mixed)
        }
        Value::Array(items) => items.iter().any(is_mixed),
        _ => false,
    }
}
