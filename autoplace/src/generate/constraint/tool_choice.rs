//! Whether an answer has to call a tool.

use serde_json::{Value, json};

use super::Constraint;
use super::schema::subschemas_mut;
use crate::chat::{ReplyFormat, Tool};
use crate::generate::error::Error;

/// Whether an answer has to call a tool: OpenAI's `tool_choice`, but for `none`, which is to give no tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model chooses.
    #[default]
    Auto,
    /// One of the tools.
    Required,
    /// The tool of this name.
    Function(String),
}

impl ToolChoice {
    /// What forces an answer to be one call of these tools, and how the answer is read then: as JSON with `name` and
    /// `arguments`, whatever marks the model would write around it. `None` for [`Auto`](Self::Auto).
    ///
    /// # Errors
    ///
    /// [`Error::Constraint`] if there is no such tool, or a text is held to this `other` constraint already. A
    /// tool's schema that cannot be enforced is an error when the generation begins.
    pub fn forced(
        &self,
        tools: &[Tool],
        other: Option<&Constraint>,
    ) -> Result<Option<(Constraint, ReplyFormat)>, Error> {
        let (called, missing): (Vec<&Tool>, _) = match self {
            Self::Auto => return Ok(None),
            Self::Required => (tools.iter().collect(), "there are no tools".to_owned()),
            Self::Function(name) => {
                (tools.iter().filter(|tool| tool.name == *name).collect(), format!("there is no tool {name:?}"))
            }
        };
        let reason = match other {
            Some(other) => Some(format!("the answer is to be a {} too", other.name())),
            None => called.is_empty().then_some(missing),
        };
        if let Some(reason) = reason {
            return Err(Error::Constraint { constraint: "choice of a tool".into(), reason });
        }
        let calls: Vec<Value> = (0..).zip(called).map(|(index, tool)| call(tool, index)).collect();
        Ok(Some((Constraint::json_schema(json!({"anyOf": calls})), ReplyFormat::forced_call())))
    }
}

/// The schema of a call, the one of so many before it.
fn call(tool: &Tool, index: usize) -> Value {
    let mut arguments = match &tool.parameters {
        Value::Object(_) => tool.parameters.clone(),
        _ => json!({}),
    };
    if let Some(schema) = arguments.as_object_mut() {
        // Its references are the whole schema's now.
        schema.remove("$id");
        schema.entry("type").or_insert("object".into());
    }
    move_references(&mut arguments, &format!("#/anyOf/{index}/properties/arguments"));
    json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    })
}

/// References from the root of a schema, after it was put into another.
fn move_references(schema: &mut Value, to: &str) {
    let Value::Object(members) = schema else { return };
    if let Some(Value::String(reference)) = members.get_mut("$ref")
        && let Some(pointer) = reference.strip_prefix('#')
    {
        *reference = format!("{to}{pointer}");
    }
    subschemas_mut(members).for_each(|schema| move_references(schema, to));
}
