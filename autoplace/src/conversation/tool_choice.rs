//! OpenAI's `tool_choice`: whether an answer must call a tool.

use crate::chat::{ReplyFormat, Tool};
use crate::decode::constraint::Constraint;
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
        Ok(Some((Constraint::call_of(&called), ReplyFormat::forced_call())))
    }
}
