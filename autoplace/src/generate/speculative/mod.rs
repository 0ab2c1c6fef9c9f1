//! Speculative decoding: several tokens of a text in one computation, and the text stays the same.
//!
//! In: the tokens of a text. Out: drafts of those that follow. The model computes the text's last token and the draft
//! together. Then the text's own sampler chooses token after token, from the logits after each. A draft token that is
//! its choice is accepted: the logits after it are there already. At the first that differs, the text and the context
//! forget the rest of the draft. So every token is chosen as without a draft, but for rounding.

mod gate;
mod heads;
mod lookup;
mod model;
mod speculator;

pub(super) use speculator::{Drafters, Speculator};

use llama_sys::{Context, Position, SeqId, Token};
use serde::{Deserialize, Serialize};

use super::error::Error;

/// Where draft tokens come from: see [`Generate::speculate`](super::Generate::speculate).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Speculation {
    /// Nowhere: a token at a time.
    #[default]
    Off,
    /// From the text itself: what followed the last tokens the last time that they came, in the prompt or in the
    /// answer. It takes no second model, and pays where an answer repeats: code that is edited, a text that is
    /// summarised or quoted, data in a form.
    PromptLookup {
        /// The most tokens that must have come before: longer matches are tried first. 1 to 16.
        ngram_max: u32,
        /// The fewest. 1 to `ngram_max`.
        ngram_min: u32,
        /// The most tokens that are drafted at once, as far as the context was planned for them
        /// ([`Request::draft_max`](crate::plan::Request::draft_max)).
        draft_max: u32,
    },
    /// From a smaller model of the same vocabulary, which is loaded beside
    /// ([`ModelBuilder::draft`](crate::ModelBuilder::draft)).
    DraftModel {
        /// The most tokens that are drafted at once, as far as the context was planned for them.
        draft_max: u32,
        /// It goes on as long as its likeliest token has this probability at least. 0.0 to 1.0.
        p_min: f32,
    },
    /// From the model's own block that predicts further tokens, where its file has one and it is loaded
    /// ([`ModelBuilder::mtp`](crate::ModelBuilder::mtp)).
    Mtp {
        /// The most tokens that are drafted at once, as far as the context was planned for them.
        draft_max: u32,
        /// It goes on as long as its likeliest token has this probability at least. 0.0 to 1.0.
        p_min: f32,
    },
}

impl Speculation {
    /// [`DraftModel`](Self::DraftModel) that drafts up to eight tokens, as long as it gives the next one a probability
    /// of 0.5 at least.
    pub const fn draft_model() -> Self {
        Self::DraftModel { draft_max: 8, p_min: 0.5 }
    }

    /// [`Mtp`](Self::Mtp) of three tokens, however sure: as llama.cpp's own programs do it.
    pub const fn mtp() -> Self {
        Self::Mtp { draft_max: 3, p_min: 0.0 }
    }

    /// [`PromptLookup`](Self::PromptLookup) of two to four tokens, which drafts ten.
    pub const fn prompt_lookup() -> Self {
        Self::PromptLookup { ngram_max: 4, ngram_min: 2, draft_max: 10 }
    }

    fn draft_max(&self) -> u32 {
        match *self {
            Self::Off => 0,
            Self::PromptLookup { draft_max, .. } | Self::DraftModel { draft_max, .. } | Self::Mtp { draft_max, .. } => {
                draft_max
            }
        }
    }

    /// The same with every number within its range.
    pub(super) fn in_range(mut self) -> Self {
        if let Self::DraftModel { p_min, .. } | Self::Mtp { p_min, .. } = &mut self {
            // What is no number is no bound.
            *p_min = if *p_min > 0.0 { p_min.min(1.0) } else { 0.0 };
        }
        self
    }
}

/// Whether what drafts, and holds this of each sequence, has computed a batch of one. Returns false where there was no
/// room; then it makes room for the next batch.
fn computed<T: Clone + Default>(
    context: &mut Context,
    held: &mut [T],
    seq: SeqId,
    decoded: Result<(), llama_sys::Error>,
) -> Result<bool, Error> {
    match decoded {
        Ok(()) => Ok(true),
        Err(llama_sys::Error::NoKvSlot { .. }) => {
            // Ended sequences still lie in the cells that all share.
            context.kv_clear()?;
            held.fill(T::default());
            Ok(false)
        }
        Err(error) => {
            // How much of it was computed is not known.
            held[seq as usize] = T::default();
            context.kv_seq_remove(seq, 0..Position::MAX)?;
            Err(error.into())
        }
    }
}

/// What is drafted for: the tokens of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeqTokens<'a> {
    pub(super) seq: SeqId,
    pub(super) tokens: &'a [Token],
}
