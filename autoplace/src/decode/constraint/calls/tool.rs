//! A tool, with the data for the grammar of its calls.

use serde_json::{Value, json};

use crate::decode::constraint::kind::{CalledTool, Constraint};

/// A tool, with the data that the grammar needs.
pub(super) struct CallableTool {
    pub(super) name: String,
    /// The tool's schema. If the tool is not strict, only the enforceable part of the schema.
    pub(super) parameters: Value,
    pub(super) place: String,
    pub(super) is_strict: bool,
}

impl CallableTool {
    pub(super) fn new(tool: &CalledTool, number: usize) -> Self {
        let parameters: Value = serde_json::from_str(&tool.parameters).unwrap_or_default();
        let mut parameters = match (parameters.is_object(), tool.is_strict) {
            // A strict schema is refused if a part cannot be enforced.
            (true, true) => parameters,
            (true, false) => Constraint::enforceable(&parameters).0,
            (false, _) => json!({"properties": {}}),
        };
        if let Some(schema) = parameters.as_object_mut() {
            schema.remove("$id");
            schema.entry("type").or_insert("object".into());
        }
        let place = format!("tools[{number}].function.parameters");
        Self { name: tool.name.clone(), parameters, place, is_strict: tool.is_strict }
    }

    pub(super) fn json(&self) -> Constraint {
        Constraint::json_schema(self.parameters.clone()).at(&self.place)
    }
}
