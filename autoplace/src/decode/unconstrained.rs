//! Stand-ins for builds without the feature `constraints`. The constraint types have no values.

use llama_sys::{Token, Vocab};
use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::load::Model;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Constraint {}

#[derive(Debug, Clone)]
pub(crate) enum Matcher {}

impl Constraint {
    pub(crate) fn begin(&self, _: &Model, _: &Vocab) -> Result<Matcher, Error> {
        match *self {}
    }
}

impl Matcher {
    pub(crate) fn mask(&mut self) -> Result<&[u32], Error> {
        match *self {}
    }

    pub(crate) fn ignore_ends(&mut self) {
        match *self {}
    }

    pub(crate) fn accept(&mut self, _: Token) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn is_complete(&self) -> bool {
        match *self {}
    }

    pub(crate) fn may_end(&mut self) -> bool {
        match *self {}
    }
}
