//! Stand-ins for builds without the feature `constraints`. The constraint types have no values.

use llama_sys::{Token, Vocab};
use serde::{Deserialize, Serialize};

use super::Error;
use crate::chat::{ReplyFormat, Tool};
use crate::load::Model;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Constraint {}

#[derive(Debug, Clone)]
pub(super) enum Matcher {}

/// Without constraints, no tool call can be forced.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolChoice {}

impl ToolChoice {
    pub(super) fn forced(
        &self,
        _: &[Tool],
        _: Option<&Constraint>,
    ) -> Result<Option<(Constraint, ReplyFormat)>, Error> {
        Ok(None)
    }
}

impl Constraint {
    pub(super) fn begin(&self, _: &Model, _: &Vocab) -> Result<Matcher, Error> {
        match *self {}
    }
}

impl Matcher {
    pub(super) fn mask(&mut self) -> Result<&[u32], Error> {
        match *self {}
    }

    pub(super) fn accept(&mut self, _: Token) -> Result<(), Error> {
        match *self {}
    }

    pub(super) fn is_complete(&self) -> bool {
        match *self {}
    }

    pub(super) fn may_end(&mut self) -> bool {
        match *self {}
    }
}
