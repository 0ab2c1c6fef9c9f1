//! The schema of a type.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Constraint;
use crate::generate::error::Error;

impl Constraint {
    /// A JSON value that is one of `T`, by the schema that schemars derives: with no properties but the type's, and
    /// integers as large as its fields.
    pub fn of_type<T: JsonSchema>() -> Self {
        let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
        RecursiveTransform(bound_integer).transform(&mut schema);
        if !is_mixed(schema.as_value()) {
            RecursiveTransform(close).transform(&mut schema);
        }
        Self::json_schema(schema.to_value())
    }

    /// The value of a text that was held to [its type](Self::of_type).
    pub(in crate::generate) fn value<T: DeserializeOwned>(text: String) -> Result<T, Error> {
        serde_json::from_str(&text).map_err(|error| Error::NotOfType { reason: error.to_string(), text })
    }
}

/// Says how large an integer may be: schemars says it of those below 32 bits only, and of others in `format`.
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

/// Allows an object no properties but its own.
fn close(schema: &mut Schema) {
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Whether properties of one object come from several schemas, as `#[serde(flatten)]` has them: none of those
/// is all there is.
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
