//! The arguments for models that compute vectors or scores.

use autoplace::memory::Pooling;

use crate::values::one_of;

/// Whether a model computes vectors or scores, and how it pools them.
#[derive(Debug, clap::Args)]
pub(crate) struct PoolingArgs {
    /// For embeddings instead of text, with the model's pooling or this one; `rank` is for the scores of a reranker.
    /// The context is then the longest text
    #[arg(long, value_name = "none|mean|cls|last|rank", value_parser = one_of(POOLING), num_args = 0..=1, require_equals = true, default_missing_value = "model", hide_possible_values = true)]
    embeddings: Vec<Pooling>,
}

/// The names of poolings are those of llama.cpp, and `model` for the model's own pooling.
const POOLING: &[(&str, Pooling)] = &[
    ("model", Pooling::Model),
    ("none", Pooling::None),
    ("mean", Pooling::Mean),
    ("cls", Pooling::Cls),
    ("last", Pooling::Last),
    ("rank", Pooling::Rank),
];

impl PoolingArgs {
    /// The pooling, or [`Pooling::Model`] if no value names one; `None` for a model that writes texts. llama.cpp has a
    /// flag for each of the two facts, so the flag may be given without a value and with one.
    pub(crate) fn pooling(&self) -> Option<Pooling> {
        let named = self.embeddings.iter().rev().find(|pooling| **pooling != Pooling::Model);
        named.or(self.embeddings.first()).copied()
    }
}
