//! OpenAI's `tool_choice`: whether an answer must call a tool.

use serde_json::{Value, json};

use super::schema::subschemas_mut;
use super::{Constraint, Kind};
use crate::chat::{ReplyFormat, Tool};
use crate::decode::error::Error;

/// Whether an answer must call a tool: OpenAI's `tool_choice` without `none`, which means to pass no tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model chooses.
    #[default]
    Auto,
    /// The model must call one of the tools.
    Required,
    /// The model must call the tool of this name.
    Function(String),
}

impl ToolChoice {
    /// The constraint that forces an answer to be one call of these tools, and the reply format that parses it. The
    /// call is JSON with `name` and `arguments`, without the model's own marks. `None` for [`Auto`](Self::Auto).
    ///
    /// Arguments are held to the enforceable part of their tool's schema
    /// ([`Constraint::enforceable`](Constraint::enforceable)). Removed keywords are logged.
    ///
    /// # Errors
    ///
    /// [`Error::Constraint`] for an unknown tool, and for a text that already has the constraint `other`.
    pub fn forced(
        &self,
        tools: &[Tool],
        other: Option<&Constraint>,
    ) -> Result<Option<(Constraint, ReplyFormat)>, Error> {
        let (called, missing): (Vec<(usize, &Tool)>, _) = match self {
            Self::Auto => return Ok(None),
            Self::Required => (tools.iter().enumerate().collect(), "there are no tools".to_owned()),
            Self::Function(name) => {
                let called = tools.iter().enumerate().filter(|(_, tool)| tool.name == *name);
                (called.collect(), format!("there is no tool {name:?}"))
            }
        };
        let reason = match other {
            Some(other) => Some(format!("the answer already has to meet a {}", other.name())),
            None => called.is_empty().then_some(missing),
        };
        if let Some(reason) = reason {
            let place = String::new();
            return Err(Error::Constraint { constraint: "choice of a tool".into(), place, reason });
        }
        Ok(Some((calls(&called), ReplyFormat::forced_call())))
    }
}

impl Constraint {
    /// One or more calls of these tools, each between `<tool_call>` and `</tool_call>`
    /// ([`ToolCallFormat::Hermes`](crate::chat::ToolCallFormat::Hermes)), or a text that meets this constraint.
    ///
    /// A text that begins with `<` consists of calls, because no JSON begins with that character.
    #[must_use]
    pub fn or_calls(self, tools: &[Tool]) -> Self {
        let calls = calls(&tools.iter().enumerate().collect::<Vec<_>>());
        Self(Kind::CallsOr { calls: Box::new(calls), form: Box::new(self) })
    }
}

/// A call of one of these tools. Each has its index among all tools.
fn calls(called: &[(usize, &Tool)]) -> Constraint {
    let (mut options, mut places) = (Vec::new(), Vec::new());
    for (number, tool) in called {
        let within = format!("anyOf[{}].properties.arguments", options.len());
        places.push((within, format!("tools[{number}].function.parameters")));
        options.push(call(tool, options.len()));
    }
    Constraint::json_schema(json!({"anyOf": options})).at_places(places)
}

/// The schema of a call. `index` is its position among the alternatives.
fn call(tool: &Tool, index: usize) -> Value {
    let mut arguments = match &tool.parameters {
        Value::Object(_) => {
            let (arguments, unenforced) = Constraint::enforceable(&tool.parameters);
            for it in unenforced {
                tracing::warn!(
                    target: "autoplace::generate",
                    tool = tool.name, "the arguments of a call are not held to the whole schema: {it}"
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

/// The schema of a call with these keys. It leaves the arguments open.
pub(super) fn call_schema(tool: &str, name: &str, arguments: &str) -> Value {
    json!({
        "type": "object",
        "properties": {name: {"const": tool}, arguments: {}},
        "required": [name, arguments],
        "additionalProperties": false,
    })
}

/// Rewrites the references of a schema that was moved to `to` inside another one.
pub(super) fn move_references(schema: &mut Value, to: &str) {
    let Value::Object(members) = schema else { return };
    if let Some(Value::String(reference)) = members.get_mut("$ref")
        && let Some(pointer) = reference.strip_prefix('#')
    {
        *reference = format!("{to}{pointer}");
    }
    subschemas_mut(members).for_each(|schema| move_references(schema, to));
}
