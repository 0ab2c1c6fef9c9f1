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

/// The schema of a tool's arguments, where the tool is known.
pub(super) fn schema<'a>(tools: &'a [Tool], name: &str) -> Option<&'a Value> {
    let tool = tools.iter().find(|tool| tool.name == name)?;
    Some(&tool.parameters)
}

/// The schema of one argument, where it refers to a definition that one (pydantic's and schemars' way).
pub(super) fn property<'a>(schema: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    const MOST_REFERENCES: usize = 8;
    let mut property = schema?.get("properties")?.get(name)?;
    for _ in 0..MOST_REFERENCES {
        let definition = property.get("$ref").and_then(Value::as_str).and_then(|it| it.strip_prefix('#'));
        match definition.and_then(|pointer| schema?.pointer(pointer)) {
            Some(definition) => property = definition,
            None => break,
        }
    }
    Some(property)
}

/// A value that a format writes as bare text: JSON if the schema wants no string there and it is JSON, else a string.
pub(super) fn value(text: &str, schema: Option<&Value>) -> Value {
    let mut types = Vec::new();
    if let Some(schema) = schema {
        add_types(schema, 8, &mut types);
    }
    if types.contains(&"string") {
        let is_null = matches!(text.trim(), "null" | "None");
        if is_null && types.contains(&"null") {
            return Value::Null;
        }
    } else if !types.is_empty() {
        // Some templates write values as Python prints them.
        let value = serde_json::from_str(text).ok();
        if let Some(value) = value.or_else(|| literal::python_value(text)) {
            return value;
        }
    }
    text.into()
}

/// Adds the names of the types that a schema allows; of a value in a list of values, whether it is a string.
fn add_types<'a>(schema: &'a Value, depth: u8, types: &mut Vec<&'a str>) {
    let list = |key: &str| schema[key].as_array().into_iter().flatten();
    types.extend(schema["type"].as_str());
    types.extend(list("type").filter_map(Value::as_str));
    let values = list("enum").chain(schema.get("const"));
    types.extend(values.map(|value| if value.is_string() { "string" } else { "other" }));
    if depth > 0 {
        let schemas = ["anyOf", "oneOf", "allOf"].into_iter().flat_map(list);
        schemas.for_each(|schema| add_types(schema, depth - 1, types));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{property, value};

    #[test]
    fn an_argument_is_of_the_type_that_its_definition_says() {
        let schema = json!({
            "$defs": {"Point": {"type": "object"}, "Name": {"$ref": "#/$defs/Text"}, "Text": {"type": "string"}},
            "properties": {
                "point": {"$ref": "#/$defs/Point"}, "name": {"$ref": "#/$defs/Name"}, "one": {"const": 1},
                "itself": {"$ref": "#/properties/itself"}, "gone": {"$ref": "#/$defs/gone"},
            },
        });
        let read = |name: &str, text: &str| value(text, property(Some(&schema), name));
        assert_eq!(read("point", r#"{"x": 1}"#), json!({"x": 1}));
        assert_eq!(read("one", "1"), json!(1));
        for name in ["name", "itself", "gone", "unknown"] {
            assert_eq!(read(name, "1"), Value::from("1"), "{name}");
        }
    }
}
