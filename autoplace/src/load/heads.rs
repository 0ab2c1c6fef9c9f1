//! The context of a model's own blocks that predict further tokens: made of the same weights, beside the main one.
//!
//! In: a loaded model and a plan with room for it. Out: [`Heads`], whose context is warmed up and judged
//! with the main one.

use llama_sys::{Context, Model, Token};

use super::drafts::renewed;
use super::{Error, native};
use crate::memory::ContextParams;

/// Blocks that predict further tokens, with their context.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) context: Context,
    /// What is known of each sequence.
    pub(crate) followed: Vec<Followed>,
    params: llama_sys::ContextParams,
}

/// The tokens of a sequence whose hidden states are known.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// The position of the first of them: what came before was computed while nobody listened.
    pub(crate) first: usize,
    pub(crate) tokens: Vec<Token>,
    /// How many of them the context holds.
    pub(crate) computed: usize,
    /// The hidden states of the tokens before those that it does not hold, one after the other; at the end there may be
    /// one more, for the token that comes next.
    pub(crate) hidden: Vec<f32>,
}

impl Heads {
    /// As the plan has them; `None` where it has none.
    pub(super) fn new(
        model: &Model,
        plan: &ContextParams,
        threads: u32,
    ) -> Result<Option<Self>, llama_sys::Error> {
        if !plan.mtp {
            return Ok(None);
        }
        let params = llama_sys::ContextParams {
            n_threads: Some(threads),
            n_threads_batch: Some(threads),
            ..native::heads(plan)
        };
        let context = Context::new(model, params.clone())?;
        Ok(Some(Self::of(context, params)))
    }

    fn of(context: Context, params: llama_sys::ContextParams) -> Self {
        let sequences = context.n_seq_max() as usize;
        let followed = std::iter::repeat_with(Followed::default);
        Self {
            context,
            followed: followed.take(sequences).collect(),
            params,
        }
    }

    /// With a context that works: one that has failed is made anew.
    pub(super) fn usable(self) -> Result<Self, Error> {
        if self.context.is_usable() {
            return Ok(self);
        }
        let Self {
            context, params, ..
        } = self;
        Ok(Self::of(renewed(context, &params)?, params))
    }
}
