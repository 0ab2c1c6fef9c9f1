//! How an embedding context combines the vectors of a text's tokens.

use serde::{Deserialize, Serialize};

/// How an embedding context combines the vectors of a text's tokens (`llama_pooling_type`). `Display` writes
/// llama.cpp's name, or `model`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The pooling that the model's header states. If the header states none, the load fails.
    #[default]
    #[error("model")]
    Model,
    /// No pooling: one vector for each token.
    #[error("none")]
    None,
    /// The mean of all vectors.
    #[error("mean")]
    Mean,
    /// The vector of the first token.
    #[error("cls")]
    Cls,
    /// The vector of the last token.
    #[error("last")]
    Last,
    /// The scores of a classification head, for reranking.
    #[error("rank")]
    Rank,
}
