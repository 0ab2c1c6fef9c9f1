//! Speculative decoding computes several tokens of a text at once without changing the text.
//!
//! A drafter reads the tokens of a text and proposes the tokens that follow. The model computes the text's last token
//! and the draft in one batch. The text's own sampler then chooses token after token from their logits. A draft token
//! that the sampler also chooses is accepted, and the logits after this token are already computed. At the first
//! difference, the text and the context forget the rest of the draft. Every token is thus chosen as without a draft,
//! except for rounding.

mod gate;
mod heads;
mod lookup;
mod model;
mod speculator;
mod stored;

pub(crate) use speculator::{Drafters, Speculator};

use llama_sys::{Context, Position, SeqId, Token};
use serde::{Deserialize, Serialize};

use super::error::Error;

/// The source of draft tokens: see [`GenerateRequest::speculate`](crate::generate::GenerateRequest::speculate).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Speculation {
    /// No drafts.
    #[default]
    Off,
    /// Drafts from the text itself: the tokens that followed the last occurrence of the latest tokens, in the prompt or
    /// the answer. This needs no second model. Such drafts are worthwhile for answers that repeat earlier text: edited
    /// code, summaries, quotations, forms.
    PromptLookup {
        /// Longest match to look for, in tokens, 1 to 16. Longer matches are tried first.
        ngram_max: u32,
        /// Shortest match, in tokens, 1 to `ngram_max`.
        ngram_min: u32,
        /// Maximum number of tokens per draft; the plan of the context may limit it further
        /// ([`Request::draft_max`](crate::plan::Request::draft_max)).
        draft_max: u32,
    },
    /// Drafts with a smaller model of the same vocabulary, loaded with
    /// [`ModelBuilder::draft`](crate::ModelBuilder::draft).
    DraftModel {
        /// Maximum number of tokens per draft; the plan of the context may limit it further.
        draft_max: u32,
        /// Drafting continues while the likeliest token has at least this probability, 0.0 to 1.0.
        p_min: f32,
    },
    /// Drafts with the model's own block for multi-token prediction, if the file has one and
    /// [`ModelBuilder::mtp`](crate::ModelBuilder::mtp) loads it.
    Mtp {
        /// Maximum number of tokens per draft; the plan of the context may limit it further.
        draft_max: u32,
        /// Drafting continues while the likeliest token has at least this probability, 0.0 to 1.0.
        p_min: f32,
    },
}

impl Speculation {
    /// [`DraftModel`](Self::DraftModel) with drafts of up to eight tokens and a `p_min` of 0.5.
    pub const fn draft_model() -> Self {
        Self::DraftModel { draft_max: 8, p_min: 0.5 }
    }

    /// [`Mtp`](Self::Mtp) with drafts of three tokens of any probability, as in llama.cpp's own programs.
    pub const fn mtp() -> Self {
        Self::Mtp { draft_max: 3, p_min: 0.0 }
    }

    /// [`PromptLookup`](Self::PromptLookup) with matches of two to four tokens and drafts of up to ten tokens.
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

    /// Clamps the numbers to their ranges.
    pub(crate) fn in_range(mut self) -> Self {
        if let Self::DraftModel { p_min, .. } | Self::Mtp { p_min, .. } = &mut self {
            // NaN means no minimum.
            *p_min = if *p_min > 0.0 { p_min.min(1.0) } else { 0.0 };
        }
        self
    }
}

/// Whether a drafter's context has computed the batch. False if the context had no room; it is then cleared for the
/// next batch. `held` is what the drafter knows about each sequence.
fn computed<T: Clone + Default>(
    context: &mut Context,
    held: &mut [T],
    seq: SeqId,
    decoded: Result<(), llama_sys::Error>,
) -> Result<bool, Error> {
    match decoded {
        Ok(()) => Ok(true),
        Err(llama_sys::Error::NoKvSlot { .. }) => {
            // Ended sequences still occupy cells of the shared cache.
            context.kv_clear()?;
            held.fill(T::default());
            Ok(false)
        }
        Err(error) => {
            // It is unknown which tokens were computed.
            held[seq as usize] = T::default();
            context.kv_seq_remove(seq, 0..Position::MAX)?;
            Err(error.into())
        }
    }
}

/// The tokens of a sequence, for its drafter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeqTokens<'a> {
    pub(crate) seq: SeqId,
    pub(crate) tokens: &'a [Token],
}
