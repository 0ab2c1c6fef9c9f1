//! The arguments of calls: values from text, by the schema of the tool.

use serde_json::{Map, Value};

use super::{CallError, literal};
use crate::Tool;

/// Arguments as an object. Models write them as one, or as a string of one's JSON, or leave them out.
pub(super) fn object(value: Value) -> Result<Value, CallError> {
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(Value::Object(Map::new())),
        Value::String(text) if text.trim().is_empty() => Ok(Value::Object(Map::new())),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(value @ Value::Object(_)) => Ok(value),
            _ => Err(CallError::NotAnObject),
        },
        _ => Err(CallError::NotAnObject),
    }
}

/// A tool's name, if that is what the text is: letters, digits and the punctuation that names have.
pub(super) fn tool_name(text: &str) -> Result<String, CallError> {
    let name = text.trim();
    if name.is_empty() {
        return Err(CallError::NoName);
    }
    if name.chars().all(in_a_name) {
        Ok(name.to_owned())
    } else {
        Err(CallError::unexpected("the name of a tool", name))
    }
}

/// Whether names of tools have this character.
pub(super) fn in_a_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.:/".contains(c)
}

/// The schema of a tool's argument, where the tool is known.
pub(super) fn schema<'a>(tools: &'a [Tool], tool: &str, argument: &str) -> Option<&'a Value> {
    let tool = tools.iter().find(|known| known.name == tool)?;
    tool.parameters.get("properties")?.get(argument)
}

/// A value that a format writes as bare text: JSON if the schema wants no string there and it is JSON, else a string.
pub(super) fn value(text: &str, schema: Option<&Value>) -> Value {
    let as_string = || Value::String(text.to_owned());
    let Some(types) = schema.map(Types::of) else {
        return as_string();
    };
    if types.string {
        return if types.null && matches!(text.trim(), "null" | "None") {
            Value::Null
        } else {
            as_string()
        };
    }
    if !types.other {
        return as_string();
    }
    // Some templates write values as Python prints them.
    serde_json::from_str(text)
        .ok()
        .or_else(|| literal::python_value(text))
        .unwrap_or_else(as_string)
}

/// Which kinds of values a schema allows, as far as they decide how text is read.
#[derive(Default)]
struct Types {
    string: bool,
    null: bool,
    other: bool,
}

impl Types {
    fn of(schema: &Value) -> Self {
        let mut types = Self::default();
        types.add(schema, 8);
        types
    }

    fn add(&mut self, schema: &Value, depth: u8) {
        match schema.get("type") {
            Some(Value::String(name)) => self.name(name),
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .for_each(|name| self.name(name)),
            _ => {}
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            self.string |= values.iter().any(Value::is_string);
            self.other |= values.iter().any(|value| !value.is_string());
        }
        if depth == 0 {
            return;
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(schemas)) = schema.get(key) {
                schemas
                    .iter()
                    .for_each(|schema| self.add(schema, depth - 1));
            }
        }
    }

    fn name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "null" => (self.null, self.other) = (true, true),
            _ => self.other = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{object, value};
    use crate::reply::CallError;

    #[test]
    fn text_is_read_as_the_schema_wants_it() {
        let read = |text, schema: Value| value(text, Some(&schema));
        assert_eq!(read("12", json!({"type": "integer"})), json!(12));
        assert_eq!(read("1.5", json!({"type": "number"})), json!(1.5));
        assert_eq!(read("True", json!({"type": "boolean"})), json!(true));
        assert_eq!(read("[1, 2]", json!({"type": "array"})), json!([1, 2]));
        assert_eq!(
            read("['a', True]", json!({"type": "array"})),
            json!(["a", true])
        );
        assert_eq!(
            read("{\"a\": 1}", json!({"type": "object"})),
            json!({"a": 1})
        );
        assert_eq!(read("12", json!({"type": "string"})), json!("12"));
        assert_eq!(read("12", json!({"type": ["string", "null"]})), json!("12"));
        assert_eq!(
            read("null", json!({"type": ["string", "null"]})),
            json!(null)
        );
        assert_eq!(
            read(
                "null",
                json!({"anyOf": [{"type": "integer"}, {"type": "null"}]})
            ),
            json!(null)
        );
        assert_eq!(read("12", json!({"enum": ["12", "13"]})), json!("12"));
        assert_eq!(read("12", json!({"description": "anything"})), json!("12"));
        assert_eq!(value("12", None), json!("12"));
    }

    #[test]
    fn text_that_is_not_what_the_schema_wants_stays_as_it_is() {
        assert_eq!(
            value("about 12", Some(&json!({"type": "integer"}))),
            json!("about 12")
        );
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(object(json!({"a": 1})), Ok(json!({"a": 1})));
        assert_eq!(object(json!("{\"a\": 1}")), Ok(json!({"a": 1})));
        assert_eq!(object(json!(null)), Ok(json!({})));
        assert_eq!(object(json!("")), Ok(json!({})));
        assert_eq!(object(json!([1])), Err(CallError::NotAnObject));
        assert_eq!(object(json!("a")), Err(CallError::NotAnObject));
    }
}
