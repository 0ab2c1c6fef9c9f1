//! The arguments of calls. Some formats write values as bare text; then the tool's schema decides how a value is
//! parsed.

use serde_json::{Map, Value};

use super::{CallError, literal};
use crate::Tool;

/// The arguments as an object. Some models write the object, some write its JSON in a string, and some write nothing.
pub(super) fn object(value: Value) -> Result<Value, CallError> {
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(Value::Object(Map::new())),
        Value::String(text) if text.trim().is_empty() => Ok(Value::Object(Map::new())),
        Value::String(text) => match text.parse() {
            Ok(value @ Value::Object(_)) => Ok(value),
            _ => Err(CallError::NotAnObject),
        },
        _ => Err(CallError::NotAnObject),
    }
}

/// Checks that the text can be the name of a tool: it may contain only letters, digits, and the punctuation that names
/// have.
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

/// Whether a tool's name may contain this character.
pub(super) fn in_a_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.:/".contains(c)
}

/// The schema of a tool, or a part of it.
#[derive(Clone, Copy)]
pub(super) struct Schema<'a> {
    /// The whole schema of the tool. References are looked up in it.
    whole: &'a Value,
    part: &'a Value,
}

impl<'a> Schema<'a> {
    /// The schema of a tool's arguments; `None` if there is no such tool.
    pub(super) fn find(tools: &'a [Tool], name: &str) -> Option<Self> {
        let whole = &tools.iter().find(|tool| tool.name == name)?.parameters;
        Some(Self::of_parameters(whole))
    }

    /// A schema for the object of all arguments.
    pub(super) fn of_parameters(whole: &'a Value) -> Self {
        Self { whole, part: whole }
    }

    /// The names of the types that the schema permits, including those in `anyOf` and behind references. An enum counts
    /// as `string` for its texts, and as `other` for its other values.
    pub(super) fn types(self) -> Vec<&'a str> {
        const DEPTH: u8 = 8;
        let mut types = Vec::new();
        self.add_types(DEPTH, &mut types);
        types
    }

    pub(super) fn property(self, name: &str) -> Option<Self> {
        self.part.get("properties")?.get(name).map(|part| self.to(part))
    }

    pub(super) fn items(self) -> Option<Self> {
        self.part.get("items").map(|part| self.to(part))
    }

    /// The schema for a part of this schema. If the part is a reference to a definition, as pydantic and schemars write
    /// them, it is resolved.
    fn to(self, mut part: &'a Value) -> Self {
        const MAX_REFERENCES: usize = 8;
        for _ in 0..MAX_REFERENCES {
            let definition = part.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
            match definition.and_then(|pointer| self.whole.pointer(pointer)) {
                Some(definition) => part = definition,
                None => break,
            }
        }
        Self { part, ..self }
    }

    fn add_types(self, depth: u8, types: &mut Vec<&'a str>) {
        let schema = self.part;
        let list = |key: &str| schema[key].as_array().into_iter().flatten();
        types.extend(schema["type"].as_str());
        types.extend(list("type").filter_map(Value::as_str));
        let values = list("enum").chain(schema.get("const"));
        types.extend(values.map(|value| if value.is_string() { "string" } else { "other" }));
        if depth > 0 {
            let schemas = ["anyOf", "oneOf", "allOf"].into_iter().flat_map(list);
            schemas.for_each(|schema| self.to(schema).add_types(depth - 1, types));
        }
    }
}

/// A value that a format writes as bare text. If the schema permits no string and the text is valid JSON, the value is
/// read from that JSON. Otherwise the value is the text itself.
pub(super) fn value(text: &str, schema: Option<Schema<'_>>) -> Value {
    let types = schema.map(Schema::types).unwrap_or_default();
    if types.contains(&"string") {
        let is_null = matches!(text.trim(), "null" | "None");
        if is_null && types.contains(&"null") {
            return Value::Null;
        }
    } else if !types.is_empty() {
        // Some templates write values in Python's notation.
        let value = text.parse().ok();
        if let Some(value) = value.or_else(|| literal::python_value(text)) {
            return value;
        }
    }
    text.into()
}
