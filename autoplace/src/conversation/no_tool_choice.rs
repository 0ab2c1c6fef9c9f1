//! The stand-in for `tool_choice.rs` in builds without the feature `constraints`.

use crate::chat::{ReplyFormat, Tool};
use crate::decode::constraint::Constraint;
use crate::decode::error::Error;

/// Without constraints, no tool call can be forced, and the model always chooses.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolChoice {}

impl ToolChoice {
    pub(crate) fn forbids_calls(&self) -> bool {
        false
    }

    pub(crate) fn forced(
        &self,
        _: &[Tool],
        _: Option<&Constraint>,
    ) -> Result<Option<(Constraint, ReplyFormat)>, Error> {
        Ok(None)
    }
}
