//! The drafts of one text: their source, the draft of the present step, and how many tokens of this draft were
//! accepted.

use std::time::Duration;

use llama_sys::{AbortHandle, Batch, SeqId, Token};

use super::gate::Gate;
use super::stored::StoredDrafter;
use super::{SeqTokens, Speculation, lookup};
use crate::decode::custom::CustomDrafter;
use crate::decode::error::Error;
use crate::decode::stats::DraftingPaused;
use crate::load::{Drafts, Model};

#[derive(Debug, Clone)]
pub(crate) struct Speculator {
    speculation: Speculation,
    /// The application's own drafter. It replaces `speculation`.
    custom: Option<CustomDrafter>,
    gate: Gate,
    pub(crate) draft: Vec<Token>,
    /// Number of accepted tokens at the beginning of the draft.
    pub(crate) accepted: usize,
}

impl Speculator {
    /// `None` for a request without drafts.
    pub(crate) fn new(speculation: Speculation, custom: Option<CustomDrafter>) -> Option<Self> {
        let is_on = speculation != Speculation::Off || custom.is_some();
        // The application's drafter replaces the others.
        let speculation = if custom.is_some() { Speculation::Off } else { speculation };
        is_on.then(|| Self { speculation, custom, gate: Gate::new(), draft: Vec::with_capacity(64), accepted: 0 })
    }

    /// Drafts up to `most` tokens after a text, if drafting is worthwhile. `n_vocab` is the size of the text's
    /// vocabulary.
    pub(crate) fn draft(
        &mut self,
        text: SeqTokens<'_>,
        most: usize,
        n_vocab: u32,
        drafters: &mut Drafters,
    ) -> Result<&[Token], Error> {
        self.forget();
        let draft = &mut self.draft;
        let most = match self.custom {
            Some(_) => most,
            None => most.min(self.speculation.draft_max() as usize),
        };
        let Drafters { drafts, stored, restored, batch, state, .. } = drafters;
        if most > 0 && self.gate.is_open() {
            match self.speculation {
                Speculation::Off => {
                    if let Some(custom) = &mut self.custom {
                        custom.draft(text.tokens, draft);
                        draft.truncate(most);
                    }
                }
                Speculation::PromptLookup { ngram_max, ngram_min, .. } => {
                    lookup::draft(text.tokens, ngram_max, ngram_min, most, draft);
                }
                Speculation::DraftModel { p_min, .. } => {
                    if let Some(model) = &mut drafts.model {
                        *restored += model.draft(batch, stored.as_mut(), text, most, p_min, draft)?;
                    }
                }
                Speculation::Mtp { p_min, .. } => {
                    if let Some(heads) = &mut drafts.heads {
                        heads.draft((batch, state), text, most, p_min, draft)?;
                    }
                }
            }
            // A draft model's vocabulary may be larger, and an application may push any number.
            let unknown = draft.iter().position(|token| token.cast_unsigned() >= n_vocab);
            draft.truncate(unknown.unwrap_or(draft.len()));
        }
        Ok(&self.draft)
    }

    /// Discards the draft.
    pub(crate) fn forget(&mut self) {
        self.draft.clear();
        self.accepted = 0;
    }

    /// Accepts the chosen token if it is the next token of the draft. Returns whether it was accepted.
    pub(crate) fn accepts(&mut self, token: Token) -> bool {
        let is_next = self.draft.get(self.accepted) == Some(&token);
        self.accepted += usize::from(is_next);
        is_next
    }

    /// Records the time and the number of new tokens of a step that computed only generated tokens.
    pub(crate) fn took(&mut self, took: Duration, tokens: usize) {
        if self.draft.is_empty() {
            self.gate.plain(took);
        } else {
            self.gate.drafted(took, tokens);
        }
    }

    /// Whether the drafter needs the model's hidden states of the text.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.speculation, Speculation::Mtp { .. })
    }

    /// The reason why no tokens are drafted at present.
    pub(crate) fn off(&self, drafters: &Drafters) -> Option<DraftingPaused> {
        match self.speculation {
            Speculation::DraftModel { .. } if drafters.drafts.model.is_none() => Some(DraftingPaused::NoModel),
            Speculation::Mtp { .. } if drafters.drafts.heads.is_none() => Some(DraftingPaused::NoHeads),
            _ => self.gate.is_losing().then_some(DraftingPaused::Unprofitable),
        }
    }
}

/// The loaded drafters: a draft model and the model's own block.
#[derive(Debug, Default)]
pub(crate) struct Drafters {
    pub(crate) drafts: Drafts,
    /// The link of the draft model to the prompt store.
    stored: Option<StoredDrafter>,
    pub(crate) stored_heads: Option<StoredDrafter>,
    /// The number of tokens that the draft model's context got from the store since the last count.
    pub(crate) restored: usize,
    pub(crate) batch: Batch,
    /// The hidden state from which the next token is drafted.
    state: Vec<f32>,
}

impl Drafters {
    /// An abort of the main model also stops the draft model. The block needs no abort, because its computations are
    /// short.
    pub(crate) fn new(mut drafts: Drafts, abort: AbortHandle, model: &Model) -> Self {
        let mut stored = None;
        if let Some(draft) = &mut drafts.model {
            draft.context.follow_abort_handle(abort);
            stored = model.draft_store(draft).map(|of| StoredDrafter::of_draft(of, draft.held.len()));
        }
        let heads = drafts.heads.as_ref().and_then(|heads| Some((model.heads_store(heads)?, heads.held.len())));
        let stored_heads = heads.map(|(of, sequences)| StoredDrafter::of_heads(of, sequences));
        Self { drafts, stored, stored_heads, ..Self::default() }
    }

    /// Records that a text has ended.
    pub(crate) fn ended(&mut self, text: SeqTokens<'_>) {
        if let (Some(stored), Some(draft)) = (&mut self.stored, &mut self.drafts.model)
            && let Err(error) = stored.ended(draft, text)
        {
            tracing::debug!(target: "autoplace::store", "the draft model's state of a text is not stored: {error}");
        }
    }

    /// Stores the next pieces of a sequence that no text uses, from the drafters' contexts. Returns whether more pieces
    /// are left.
    pub(crate) fn store_part(&mut self, is_running: impl Fn(SeqId) -> bool) -> bool {
        if let (Some(stored), Some(draft)) = (&mut self.stored, &mut self.drafts.model)
            && stored.store_part(draft, &is_running)
        {
            return true;
        }
        let (Some(stored), Some(heads)) = (&mut self.stored_heads, &mut self.drafts.heads) else { return false };
        let part = stored.store_followed_part((heads, &mut self.batch), is_running);
        part.unwrap_or_else(|error| self.no_longer_stored(&error))
    }

    /// Stores all sequences of the drafters' contexts.
    pub(crate) fn store_all(&mut self) {
        if let (Some(stored), Some(draft)) = (&mut self.stored, &mut self.drafts.model) {
            stored.store_all(draft);
        }
        let (Some(stored), Some(heads)) = (&mut self.stored_heads, &mut self.drafts.heads) else { return };
        if let Err(error) = stored.store_all_followed(heads, &mut self.batch) {
            self.no_longer_stored(&error);
        }
    }

    /// Stops storing the block's context after the block has failed to compute its waiting tokens. The block's next
    /// draft reports the error to the text.
    fn no_longer_stored(&mut self, error: &Error) -> bool {
        tracing::debug!(target: "autoplace::store", "the state of the block that predicts further tokens (MTP) is not stored: {error}");
        self.stored_heads = None;
        false
    }
}
