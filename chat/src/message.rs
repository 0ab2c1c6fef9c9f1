//! Messages and tools, in the shapes that chat templates know them by.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Who says something. Templates know the roles that their models were trained with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Role(Cow<'static, str>);

impl Role {
    /// The application's instructions: what the model reads before all else.
    pub const SYSTEM: Self = Self(Cow::Borrowed("system"));
    /// The same, under the name that some templates know it by.
    pub const DEVELOPER: Self = Self(Cow::Borrowed("developer"));
    /// The person.
    pub const USER: Self = Self(Cow::Borrowed("user"));
    /// The model.
    pub const ASSISTANT: Self = Self(Cow::Borrowed("assistant"));
    /// The result of a tool.
    pub const TOOL: Self = Self(Cow::Borrowed("tool"));

    /// A role of another name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(Cow::Owned(name.into()))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said. Of a message of nothing but tool calls, it can be empty.
    #[serde(default)]
    pub content: String,
    /// What the model thought before it, without the marks around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The tools that the model calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Of a tool's result, the tool; else a name for who speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message of any role.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// The application's instructions: what the model reads before all else.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::SYSTEM, content)
    }

    /// What the person says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::USER, content)
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::ASSISTANT, content)
    }

    /// What a tool gave for `call`.
    pub fn tool(call: &ToolCall, content: impl Into<String>) -> Self {
        Self { tool_call_id: call.id.clone(), name: Some(call.name.clone()), ..Self::new(Role::TOOL, content) }
    }
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the model to read.
    #[serde(default)]
    pub description: String,
    /// Its arguments, as a JSON schema of an object. Default: an object without properties.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
}

/// The schema of the arguments of a tool that says nothing of them, as llama.cpp has it.
pub(crate) fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}})
}

impl Tool {
    /// A tool; `parameters` is a JSON schema of an object.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self { name: name.into(), description: description.into(), parameters }
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What its result refers to it by, where the format of the model has such names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments: an object. Of a call that the answer was held to be and that a limit cut, the text so far, if
    /// that is no whole object.
    pub arguments: Value,
}

impl ToolCall {
    pub(crate) fn of(name: impl Into<String>, arguments: Value) -> Self {
        Self { id: None, name: name.into(), arguments }
    }
}
