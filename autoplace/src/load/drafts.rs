//! What drafts for a loaded model: a smaller one, and blocks of its own, each with its context.

use llama_sys::{Context, ContextParams, Model, Token};

use super::{Error, native};
use crate::memory;

/// What is loaded to draft, lent together with the model's context.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    pub(crate) model: Option<Draft>,
    pub(crate) heads: Option<Heads>,
}

#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) context: Context,
    /// What the context holds of each sequence.
    pub(crate) held: Vec<Vec<Token>>,
    params: ContextParams,
}

/// Blocks that predict further tokens, with their context.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) context: Context,
    /// What is known of each sequence.
    pub(crate) followed: Vec<Followed>,
    params: ContextParams,
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
        plan: &memory::ContextParams,
        threads: u32,
    ) -> Result<Option<Self>, llama_sys::Error> {
        if !plan.mtp {
            return Ok(None);
        }
        let params = ContextParams {
            n_threads: Some(threads),
            n_threads_batch: Some(threads),
            ..native::heads(plan)
        };
        let context = Context::new(model, params.clone())?;
        Ok(Some(Self::of(context, params)))
    }

    fn of(context: Context, params: ContextParams) -> Self {
        let sequences = context.n_seq_max() as usize;
        let followed = std::iter::repeat_with(Followed::default);
        Self {
            context,
            followed: followed.take(sequences).collect(),
            params,
        }
    }
}

impl Draft {
    pub(super) fn new(context: Context, params: ContextParams) -> Self {
        let sequences = context.n_seq_max() as usize;
        Self {
            context,
            held: vec![Vec::new(); sequences],
            params,
        }
    }
}

impl Drafts {
    /// With contexts that work: one that has failed is made anew.
    pub(super) fn usable(self) -> Result<Self, Error> {
        let draft = |draft: Draft| {
            Ok::<_, Error>(match renewed(draft.context, &draft.params)? {
                (context, true) => Draft::new(context, draft.params),
                (context, false) => Draft { context, ..draft },
            })
        };
        let heads = |heads: Heads| {
            Ok::<_, Error>(match renewed(heads.context, &heads.params)? {
                (context, true) => Heads::of(context, heads.params),
                (context, false) => Heads { context, ..heads },
            })
        };
        Ok(Self {
            model: self.model.map(draft).transpose()?,
            heads: self.heads.map(heads).transpose()?,
        })
    }

    /// How many of those that hold the main model are among them.
    pub(crate) fn holders(&self) -> usize {
        usize::from(self.heads.is_some())
    }
}

/// A context that works: another of the same model in place of one that has failed, and whether it is.
fn renewed(context: Context, params: &ContextParams) -> Result<(Context, bool), Error> {
    if context.is_usable() {
        return Ok((context, false));
    }
    let model = context.model().clone();
    // Its memory first: there may be no room for two.
    drop(context);
    Ok((Context::new(&model, params.clone())?, true))
}
