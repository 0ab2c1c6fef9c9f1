//! Calls of tools as JSON schemas: a call that is forced, and calls as an alternative to a text in another form.

use serde_json::{Value, json};

use super::kind::{Constraint, Kind};
use super::schema::subschemas_mut;
use crate::chat::Tool;

impl Constraint {
    /// One or more calls of these tools, each between `<tool_call>` and `</tool_call>`
    /// ([`ToolCallFormat::Hermes`](crate::chat::ToolCallFormat::Hermes)), or a text that meets this constraint.
    ///
    /// A text that begins with `<` consists of calls, because no JSON begins with that character.
    #[must_use]
    pub fn or_calls(self, tools: &[Tool]) -> Self {
        let calls = Self::call_of(&tools.iter().enumerate().collect::<Vec<_>>());
        Self(Kind::CallsOr { calls: Box::new(calls), form: Box::new(self) })
    }

    /// A call of one of these tools. Each tool comes with its index among all tools.
    pub(crate) fn call_of(called: &[(usize, &Tool)]) -> Self {
        let (mut options, mut places) = (Vec::new(), Vec::new());
        for (number, tool) in called {
            let within = format!("anyOf[{}].properties.arguments", options.len());
            places.push((within, format!("tools[{number}].function.parameters")));
            options.push(call(tool, options.len()));
        }
        Self::json_schema(json!({"anyOf": options})).at_places(places)
    }
}

/// The schema of a call. `index` is the position of the call among the alternatives.
fn call(tool: &Tool, index: usize) -> Value {
    let mut arguments = match &tool.parameters {
        Value::Object(_) => {
            let (arguments, unenforced) = Constraint::enforceable(&tool.parameters);
            for part in unenforced {
                tracing::warn!(
                    target: "autoplace::generate",
                    tool = tool.name, "the grammar of a call's arguments does not cover the whole schema: {part}"
                );
            }
            arguments
        }
        _ => json!({"properties": {}}),
    };
    if let Some(schema) = arguments.as_object_mut() {
        // References inside the schema now start at the root of the whole schema.
        schema.remove("$id");
        schema.entry("type").or_insert("object".into());
    }
    move_references(&mut arguments, &format!("#/anyOf/{index}/properties/arguments"));
    let mut call = call_schema(&tool.name, "name", "arguments");
    call["properties"]["arguments"] = arguments;
    call
}

/// The schema of a call with these keys. Any arguments are allowed.
pub(super) fn call_schema(tool: &str, name: &str, arguments: &str) -> Value {
    json!({
        "type": "object",
        "properties": {name: {"const": tool}, arguments: {}},
        "required": [name, arguments],
        "additionalProperties": false,
    })
}

/// Rewrites the references of a schema after the schema was moved to the place `to` inside another schema.
pub(super) fn move_references(schema: &mut Value, to: &str) {
    let Value::Object(members) = schema else { return };
    if let Some(Value::String(reference)) = members.get_mut("$ref")
        && let Some(pointer) = reference.strip_prefix('#')
    {
        *reference = format!("{to}{pointer}");
    }
    subschemas_mut(members).for_each(|schema| move_references(schema, to));
}
