//! What a text knows of its guesses: where they come from, what was guessed for this step, how much of
//! it has come true.

use std::time::Duration;

use llama_sys::{AbortHandle, Context, SeqId, Token};

use super::gate::Gate;
use super::heads::PredictionHeads;
use super::model::DraftModel;
use super::{Speculation, lookup};
use crate::generate::error::Error;
use crate::generate::stats::DraftsOff;
use crate::load::Drafts;

#[derive(Debug, Clone)]
pub(crate) struct Speculator {
    speculation: Speculation,
    gate: Gate,
    draft: Vec<Token>,
    /// Tokens at its beginning that were chosen.
    accepted: usize,
}

impl Speculator {
    /// As a generation asks for it; `None` for nothing.
    pub(crate) fn new(speculation: Speculation) -> Option<Self> {
        let is_on = speculation != Speculation::Off;
        is_on.then(|| Self { speculation, gate: Gate::new(), draft: Vec::with_capacity(64), accepted: 0 })
    }

    /// Drafts up to `most` tokens of a vocabulary of `n_vocab` that follow `tokens` in a sequence, if that pays.
    /// Returns them.
    pub(crate) fn guess(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        most: usize,
        n_vocab: u32,
        drafters: &mut Drafters,
    ) -> Result<&[Token], Error> {
        self.forget();
        let draft = &mut self.draft;
        let most = most.min(self.speculation.draft_max() as usize);
        if most > 0 && self.gate.is_open() {
            match self.speculation {
                Speculation::Off => {}
                Speculation::PromptLookup { ngram_max, ngram_min, .. } => {
                    lookup::draft(tokens, ngram_max, ngram_min, most, draft);
                }
                Speculation::DraftModel { p_min, .. } => {
                    if let Some(model) = &mut drafters.model {
                        model.draft(seq, tokens, most, p_min, draft)?;
                    }
                }
                Speculation::Mtp { p_min, .. } => {
                    if let Some(heads) = &mut drafters.heads {
                        heads.draft(seq, tokens, most, p_min, draft)?;
                    }
                }
            }
            // A draft model's vocabulary may have a few more.
            let unknown = draft.iter().position(|token| token.cast_unsigned() >= n_vocab);
            draft.truncate(unknown.unwrap_or(draft.len()));
        }
        Ok(&self.draft)
    }

    /// Has no guess for the step that comes.
    pub(crate) fn forget(&mut self) {
        self.draft.clear();
        self.accepted = 0;
    }

    pub(crate) fn drafted(&self) -> usize {
        self.draft.len()
    }

    /// Whether the token that was chosen is the next of the guess.
    pub(crate) fn accepts(&mut self, token: Token) -> bool {
        let is_next = self.draft.get(self.accepted) == Some(&token);
        self.accepted += usize::from(is_next);
        is_next
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted
    }

    /// Takes note of the time of a step in which only generated tokens were computed, and of how many tokens it gave.
    pub(crate) fn took(&mut self, took: Duration, tokens: usize) {
        if self.draft.is_empty() {
            self.gate.plain(took);
        } else {
            self.gate.guessed(took, tokens);
        }
    }

    /// Whether its guesses are made from what the model computes of the text.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.speculation, Speculation::Mtp { .. })
    }

    /// Why there are no guesses for now, if there are none.
    pub(crate) fn off(&self, drafters: &Drafters) -> Option<DraftsOff> {
        match self.speculation {
            Speculation::DraftModel { .. } if drafters.model.is_none() => Some(DraftsOff::NoModel),
            Speculation::Mtp { .. } if drafters.heads.is_none() => Some(DraftsOff::NoHeads),
            _ => self.gate.is_losing().then_some(DraftsOff::Losing),
        }
    }
}

/// A smaller model, and the model's own block that predicts, where they are loaded.
#[derive(Debug, Default)]
pub(crate) struct Drafters {
    pub(super) model: Option<DraftModel>,
    pub(super) heads: Option<PredictionHeads>,
}

impl Drafters {
    /// A draft model stops when the main model does; what the block computes is short.
    pub(crate) fn new(drafts: Drafts, abort: AbortHandle) -> Self {
        Self { model: drafts.model.map(|it| DraftModel::new(it, abort)), heads: drafts.heads.map(PredictionHeads::new) }
    }

    pub(crate) fn into_inner(self) -> Drafts {
        Drafts { model: self.model.map(DraftModel::into_inner), heads: self.heads.map(PredictionHeads::into_inner) }
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
