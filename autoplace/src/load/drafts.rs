//! What drafts for a loaded model: a smaller one, and blocks of its own.

use llama_sys::{Context, ContextParams};

use super::Error;
use super::draft::Draft;
use super::heads::Heads;

/// What is loaded to draft, lent together with the model's context.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    pub(crate) model: Option<Draft>,
    pub(crate) heads: Option<Heads>,
}

impl Drafts {
    /// With contexts that work: one that has failed is made anew.
    pub(super) fn usable(self) -> Result<Self, Error> {
        Ok(Self {
            model: self.model.map(Draft::usable).transpose()?,
            heads: self.heads.map(Heads::usable).transpose()?,
        })
    }

    /// How many of those that hold the main model are among them.
    pub(crate) fn holders(&self) -> usize {
        usize::from(self.heads.is_some())
    }
}

/// Another context in place of one that has failed, of the same model.
pub(super) fn renewed(failed: Context, params: &ContextParams) -> Result<Context, Error> {
    let model = failed.model().clone();
    // Its memory first: there may be no room for two.
    drop(failed);
    Ok(Context::new(&model, params.clone())?)
}
