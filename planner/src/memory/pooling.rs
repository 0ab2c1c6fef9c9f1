//! How the vectors of a text's tokens become one.

use serde::{Deserialize, Serialize};

/// How an embedding context combines the vectors of a text's tokens (`llama_pooling_type`). It prints as llama.cpp's
/// name; the model's own as `model`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// As the model's header says. Where it says nothing, a load refuses.
    #[default]
    #[error("model")]
    Model,
    /// Not at all: a vector for each token.
    #[error("none")]
    None,
    /// Their mean.
    #[error("mean")]
    Mean,
    /// That of the first token.
    #[error("cls")]
    Cls,
    /// That of the last token.
    #[error("last")]
    Last,
    /// The scores of a classification head: for reranking.
    #[error("rank")]
    Rank,
}
