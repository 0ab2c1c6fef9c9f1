//! How the vectors of a text's tokens become one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an embedding context combines the vectors of a text's tokens (`llama_pooling_type`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// As the model's header says. Where it says nothing, a load refuses.
    #[default]
    Model,
    /// Not at all: a vector for each token.
    None,
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
    /// The scores of a classification head: for reranking.
    Rank,
}

impl fmt::Display for Pooling {
    /// llama.cpp's name; `model` for the model's own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        })
    }
}
