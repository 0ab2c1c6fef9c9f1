//! What drafts for the texts of a session, as it was loaded.

use llama_sys::{AbortHandle, Context, SeqId, Token};

use super::heads::PredictionHeads;
use super::model::DraftModel;
use crate::generate::error::Error;
use crate::load::Drafts;

/// A smaller model, and the model's own block that predicts, where they are loaded.
#[derive(Debug, Default)]
pub(crate) struct Drafters {
    pub(super) model: Option<DraftModel>,
    pub(super) heads: Option<PredictionHeads>,
}

impl Drafters {
    /// A draft model stops when the main model does; what the block computes is short.
    pub(crate) fn new(drafts: Drafts, abort: AbortHandle) -> Self {
        Self {
            model: drafts.model.map(|it| DraftModel::new(it, abort)),
            heads: drafts.heads.map(PredictionHeads::new),
        }
    }

    pub(crate) fn into_inner(self) -> Drafts {
        Drafts {
            model: self.model.map(DraftModel::into_inner),
            heads: self.heads.map(PredictionHeads::into_inner),
        }
    }

    /// How many of those that hold the main model are among them.
    pub(crate) fn holders(&self) -> usize {
        usize::from(self.heads.is_some())
    }

    /// Has the block that predicts follow a text: see [`PredictionHeads::follow`].
    pub(crate) fn follow(
        &mut self,
        model: &mut Context,
        seq: SeqId,
        tokens: &[Token],
        from: usize,
        rows: impl Iterator<Item = i32>,
    ) -> Result<(), Error> {
        match &mut self.heads {
            Some(heads) => heads.follow(model, seq, tokens, from, rows),
            None => Ok(()),
        }
    }
}
