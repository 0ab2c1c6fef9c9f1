//! The arguments of a tool one by one, for formats that write each argument separately.

use serde_json::{Map, Value, json};

use super::tool::CallableTool;
use crate::chat::ToolCallFormat;
use crate::decode::constraint::call_schema::move_references;
use crate::decode::constraint::kind::Constraint;
use crate::decode::constraint::unenforced::Unenforced;

/// Keywords of an object that do not constrain single arguments.
const SAYS_NOTHING: &str = "$anchor $comment $defs $id $schema additionalProperties definitions description default \
    examples properties readOnly required title type writeOnly";

/// The arguments of a tool.
pub(super) struct Arguments {
    pub(super) all: Vec<Argument>,
}

/// An argument.
pub(super) struct Argument {
    pub(super) name: String,
    pub(super) is_required: bool,
    /// The schema of the argument, and the whole schema into which its references point.
    pub(super) schema: Value,
    pub(super) root: Value,
    pub(super) place: String,
}

/// The arguments of a tool in the order of its schema. Arguments that the schema does not name are never written.
pub(super) fn properties(tool: &CallableTool) -> Result<Arguments, Unenforced> {
    let refused = |reason: String| Unenforced { place: tool.place.clone(), reason };
    let none = Map::new();
    let mut members = tool.parameters.as_object().unwrap_or(&none);
    // A schema that consists of a single reference.
    if let Some(target) = members.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'))
    {
        members = tool.parameters.pointer(target).and_then(Value::as_object).unwrap_or(members);
    }
    let least = members.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let most = members.get("maxProperties").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let empty = Map::new();
    let named = members.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> =
        members.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let says_more = members.keys().find(|keyword| {
        let is_counted = (*keyword == "minProperties" && least <= required.len() as u64)
            || (*keyword == "maxProperties" && most >= named.len().max(required.len()) as u64);
        !is_counted && *keyword != "$ref" && !SAYS_NOTHING.split(' ').any(|known| known == *keyword)
            // Names that only a pattern allows are never written.
            && *keyword != "patternProperties"
    });
    if let (Some(keyword), true) = (says_more, tool.is_strict) {
        return Err(refused(format!(
            "`{keyword}` beside `properties` is not enforced, because the model's format writes each argument separately: \
             with `tool_choice` `required`, the calls have another format"
        )));
    }
    let unnamed =
        members.get("additionalProperties").filter(|schema| schema.is_object()).cloned().unwrap_or_else(|| json!({}));
    let others = required.iter().filter(|name| !named.contains_key(**name));
    let all = named.iter().map(|(name, schema)| (name.as_str(), schema.clone()));
    let all = all.chain(others.map(|name| (*name, unnamed.clone())));
    let argument = |(name, schema): (&str, Value)| Argument {
        name: name.to_owned(),
        is_required: required.contains(&name),
        schema: if schema == Value::Bool(true) { json!({}) } else { schema },
        root: tool.parameters.clone(),
        place: format!("{}.properties.{name}", tool.place),
    };
    // `false` allows no value.
    let all = all.filter(|(name, schema)| *schema != Value::Bool(false) || required.contains(name));
    Ok(Arguments { all: all.map(argument).collect() })
}

impl Argument {
    /// Whether a format without quotes always parses the value as text.
    pub(super) fn reads_as_text(&self) -> bool {
        ToolCallFormat::reads_text(&self.around(), &self.name).0
    }

    /// Whether the schema allows only strings.
    pub(super) fn is_only_text(&self) -> bool {
        let types = |value: &Value| value == "string";
        match self.schema.get("type") {
            Some(kind) => types(kind),
            None => self.reads_as_text(),
        }
    }

    /// The schema of all arguments (`root`), in which the property with this argument's name has this argument's
    /// schema.
    fn around(&self) -> Value {
        let mut root = self.root.clone();
        root["properties"][self.name.as_str()] = self.schema.clone();
        root
    }

    /// The value as JSON.
    pub(super) fn json(&self) -> Constraint {
        let mut schema = self.schema.clone();
        let text = schema.to_string();
        if text.contains("\"$ref\"") {
            let mut root = self.root.clone();
            move_references(&mut root, "#/$defs/arguments");
            move_references(&mut schema, "#/$defs/arguments");
            if let Some(members) = schema.as_object_mut() {
                members.insert("$defs".to_owned(), json!({"arguments": root}));
            }
        }
        Constraint::json_schema(schema).at(&self.place)
    }
}
