//! Messages and tools in the form that chat templates expect.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::content::{Attached, Content};

/// Who wrote a message. A template supports the roles that occurred in its model's training.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Role(Cow<'static, str>);

impl Role {
    /// The application's instructions, which the model reads first.
    pub const SYSTEM: Self = Self(Cow::Borrowed("system"));
    /// The same role as [`SYSTEM`](Self::SYSTEM), under another name that some templates use.
    pub const DEVELOPER: Self = Self(Cow::Borrowed("developer"));
    /// The person who talks with the model.
    pub const USER: Self = Self(Cow::Borrowed("user"));
    /// The model.
    pub const ASSISTANT: Self = Self(Cow::Borrowed("assistant"));
    /// A result that a tool returned.
    pub const TOOL: Self = Self(Cow::Borrowed("tool"));

    /// A role with another name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(Cow::Owned(name.into()))
    }

    /// The role's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who wrote the message.
    pub role: Role,
    /// The text. It may be empty if the message contains tool calls.
    #[serde(default)]
    pub content: String,
    /// Pictures and sounds, in the order of their places in `content`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Attached>,
    /// The model's reasoning before the answer, without the marks around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The model's tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// In a tool's result: the id of the call to which it belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// In a tool's result: the name of the tool. In other messages: a name for their author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message of any role.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        let Content { text: content, media } = content.into();
        Self { role, content, media, reasoning_content: None, tool_calls: Vec::new(), tool_call_id: None, name: None }
    }

    /// A message with the application's instructions, which the model reads first.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::SYSTEM, content.into())
    }

    /// A message of the user: a text, or [`Part`](super::Part)s with pictures and sounds.
    pub fn user(content: impl Into<Content>) -> Self {
        Self::new(Role::USER, content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::ASSISTANT, content.into())
    }

    /// The result of `call`.
    pub fn tool(call: &ToolCall, content: impl Into<Content>) -> Self {
        Self { tool_call_id: call.id.clone(), name: Some(call.name.clone()), ..Self::new(Role::TOOL, content) }
    }
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// The name.
    pub name: String,
    /// A description that the model reads.
    #[serde(default)]
    pub description: String,
    /// The JSON schema of the arguments, which are an object. Default: an object without properties.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
}

/// The schema of a tool's arguments if none is given. It is the same as in llama.cpp.
pub(crate) fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}})
}

impl Tool {
    /// A tool. `parameters` is a JSON schema of an object.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self { name: name.into(), description: description.into(), parameters }
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id by which a result refers to the call, if the model's format has ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The arguments, which are an object. If the call was constrained, and a limit cut it short before the object was
    /// complete, this is the text that was written.
    pub arguments: Value,
}

impl ToolCall {
    pub(crate) fn new(name: impl Into<String>, arguments: Value) -> Self {
        Self { id: None, name: name.into(), arguments }
    }
}
