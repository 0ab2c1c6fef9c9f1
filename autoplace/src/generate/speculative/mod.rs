//! Speculative decoding: several tokens of a text in one computation, without another text coming of it.
//!
//! In: the tokens of a text. Out: a guess of those that follow. The model computes the text's last token and the guess
//! together, which costs little more than one token where memory is what generation waits for. Then the text's own
//! sampler chooses token after token as it always does, from the logits that the model gives after each; as long as its
//! choice is what was guessed, the next logits are there already. At the first that differs the rest of the guess is
//! forgotten, by the text and by the context.
//!
//! So every token is chosen by the same sampler, from the logits after the same tokens, with the same random numbers
//! as without a guess, whatever was guessed. Only rounding may differ, where a backend computes several tokens
//! otherwise than one.

mod custom;
mod drafters;
mod gate;
mod heads;
mod lookup;
mod model;
mod speculator;
mod step;

pub(super) use custom::CustomDrafter;
pub(super) use drafters::Drafters;
pub(super) use speculator::Speculator;
pub(super) use step::draft;

use llama_sys::Token;
use serde::{Deserialize, Serialize};

use super::Generate;

/// Where guesses of the next tokens come from: see [`Generate::speculate`].
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
        /// The most tokens that are guessed at once, as far as the context was planned for them
        /// ([`Request::draft_max`](crate::plan::Request::draft_max)).
        draft_max: u32,
    },
    /// From a smaller model of the same vocabulary, which is loaded beside
    /// ([`ModelBuilder::draft`](crate::ModelBuilder::draft)).
    DraftModel {
        /// The most tokens that are guessed at once, as far as the context was planned for them.
        draft_max: u32,
        /// It guesses on as long as it gives the likeliest token this probability at least. 0.0 to 1.0.
        p_min: f32,
    },
    /// From the model's own block that predicts further tokens, where its file has one and it is loaded
    /// ([`ModelBuilder::mtp`](crate::ModelBuilder::mtp)).
    Mtp {
        /// The most tokens that are guessed at once, as far as the context was planned for them.
        draft_max: u32,
        /// It guesses on as long as it gives the likeliest token this probability at least. 0.0 to 1.0.
        p_min: f32,
    },
}

impl Speculation {
    /// [`DraftModel`](Self::DraftModel) that goes on to eight tokens as long as it gives the next one more
    /// than even chances.
    #[must_use]
    pub const fn draft_model() -> Self {
        Self::DraftModel {
            draft_max: 8,
            p_min: 0.5,
        }
    }

    /// [`Mtp`](Self::Mtp) of three tokens, however sure: as llama.cpp's own programs do it.
    #[must_use]
    pub const fn mtp() -> Self {
        Self::Mtp {
            draft_max: 3,
            p_min: 0.0,
        }
    }

    /// [`PromptLookup`](Self::PromptLookup) of two to four tokens, which guesses ten.
    #[must_use]
    pub const fn prompt_lookup() -> Self {
        Self::PromptLookup {
            ngram_max: 4,
            ngram_min: 2,
            draft_max: 10,
        }
    }

    /// The same with every number within its range.
    fn in_range(mut self) -> Self {
        if let Self::DraftModel { p_min, .. } | Self::Mtp { p_min, .. } = &mut self {
            // What is no number is no bound.
            *p_min = if *p_min > 0.0 { p_min.min(1.0) } else { 0.0 };
        }
        self
    }
}

/// Why no tokens are guessed though that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DraftsOff {
    /// The context was planned for one token of each text at a time: see
    /// [`Request::draft_max`](crate::plan::Request::draft_max).
    NoRoom,
    /// The model's memory cannot go back by single tokens, so that a wrong guess could not be forgotten: it is
    /// recurrent, at least in part, and no earlier states are kept, as they are with
    /// [`ModelBuilder::mtp`](crate::ModelBuilder::mtp).
    Memory,
    /// No draft model is loaded: see [`ModelBuilder::draft`](crate::ModelBuilder::draft).
    NoModel,
    /// No block that predicts further tokens is loaded: see [`ModelBuilder::mtp`](crate::ModelBuilder::mtp).
    NoHeads,
    /// For now: with guesses, tokens took longer than without. They are tried again from time to time.
    Losing,
}

impl Generate {
    /// Guesses the next tokens, so that several are computed at once. The text is the one that it would be without, but
    /// for rounding; how often the guesses came true is in the [`Statistics`](super::Statistics). Where guessing takes
    /// longer than it saves, it pauses by itself.
    ///
    /// The model has to be loaded with room for it: [`Request::draft_max`](crate::plan::Request::draft_max). Where it
    /// is not, or cannot go back in its memory, the text is generated without, and
    /// [`Statistics::drafts_off`](super::Statistics::drafts_off) says why. Default: [`Speculation::Off`].
    pub fn speculate(mut self, speculation: Speculation) -> Self {
        self.spec.speculation = speculation.in_range();
        self
    }

    /// Guesses the next tokens by a closure: it is given the prompt and the answer so far, and pushes the tokens that
    /// it expects, as many as it likes. For those who know more of the answer than the text says: the file that is
    /// edited, the form that is filled in. Each text has a copy of the closure.
    ///
    /// Whatever it guesses, the text is the same: see [`speculate`](Self::speculate). A model in a worker
    /// process refuses it.
    pub fn draft_with(
        mut self,
        draft: impl FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static,
    ) -> Self {
        self.spec.drafter = Some(CustomDrafter::new(draft));
        self
    }
}
