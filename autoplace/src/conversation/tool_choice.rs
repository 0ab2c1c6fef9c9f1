//! OpenAI's `tool_choice`: whether an answer may or must call a tool.

use crate::chat::{ReplyFormat, Tool};
use crate::decode::constraint::Constraint;
use crate::decode::error::Error;

/// Whether an answer may or must call a tool: OpenAI's `tool_choice`. The prompt is the same for every choice, so the
/// prompt need not be computed again when the choice changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model chooses.
    #[default]
    Auto,
    /// The model must not call a tool. If it writes a call nevertheless, the call is content, as in llama.cpp's server.
    None,
    /// The model must call one of the tools.
    Required,
    /// The model must call the tool of this name.
    Function(String),
    /// The model must call one of the tools with these names.
    OneOf(Vec<String>),
}

impl ToolChoice {
    /// Whether an answer may call the tool of this name.
    pub fn allows(&self, tool: &str) -> bool {
        match self {
            Self::Auto | Self::Required => true,
            Self::None => false,
            Self::Function(name) => name == tool,
            Self::OneOf(names) => names.iter().any(|name| name == tool),
        }
    }

    pub(crate) fn forbids_calls(&self) -> bool {
        *self == Self::None
    }

    /// The constraint that forces an answer to be one call of these tools, and the reply format that parses it. The
    /// call is JSON with `name` and `arguments`, without the model's own marks. `None` for [`Auto`](Self::Auto) and
    /// [`None`](Self::None).
    ///
    /// The arguments of a call meet the enforceable part of their tool's schema
    /// ([`Constraint::enforceable`](Constraint::enforceable)). Keywords that cannot be enforced are removed and logged.
    ///
    /// # Errors
    ///
    /// [`Error::Constraint`] for an unknown tool, and for a text that already has the constraint `other`.
    pub fn forced(
        &self,
        tools: &[Tool],
        other: Option<&Constraint>,
    ) -> Result<Option<(Constraint, ReplyFormat)>, Error> {
        let missing = match self {
            Self::Auto | Self::None => return Ok(None),
            Self::Required => "there are no tools".to_owned(),
            Self::Function(name) => format!("there is no tool {name:?}"),
            Self::OneOf(names) => format!("none of the tools {names:?} exists"),
        };
        let called: Vec<(usize, &Tool)> =
            tools.iter().enumerate().filter(|(_, tool)| self.allows(&tool.name)).collect();
        let reason = match other {
            Some(other) => Some(format!("the answer already has another constraint, a {}", other.name())),
            None => called.is_empty().then_some(missing),
        };
        if let Some(reason) = reason {
            let place = String::new();
            return Err(Error::Constraint { constraint: "choice of a tool".into(), place, reason });
        }
        Ok(Some((Constraint::call_of(&called), ReplyFormat::forced_call())))
    }
}
