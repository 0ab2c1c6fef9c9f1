//! The errors of embedding and reranking.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::memory::Pooling;
use crate::{load, worker};

/// An error of an embedding or a reranking.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The lengths of two vectors differ.
    #[error("a vector of {one} elements cannot be compared with one of {other}")]
    Lengths { one: usize, other: usize },
    /// Another embedder of this model still exists.
    #[error("this model is embedding already: drop its other embedder first")]
    Busy,
    /// A text has more tokens than one computation can hold, or more than the model's learned positions
    /// ([`Embedder::longest_text`](crate::Embedder::longest_text)). The length includes the tokens that the model adds.
    /// The length of a document includes the tokens of the query. Texts are numbered from 0.
    #[error(
        "text {index} has {tokens} tokens, and at most {limit} can be embedded: load with a longer context, shorten the text, or set `truncate`"
    )]
    TooLong { index: usize, tokens: usize, limit: usize },
    /// A text has no tokens, and the model adds none.
    #[error("text {index} is empty, and the model has no BOS token")]
    Empty { index: usize },
    /// The model was not loaded to score documents.
    #[error("the model was loaded to embed, with the pooling {pooling}: load it with `Pooling::Rank` to rerank")]
    NotReranking { pooling: Pooling },
    /// The model is an encoder-decoder. Its encoder works only for its decoder.
    #[error("{architecture} models do not embed")]
    NotEmbedding { architecture: String },
    /// llama.cpp refused a call, a call failed, or it [was aborted](llama_sys::Error::Aborted).
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The model's worker process died.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The model is not loaded, or was loaded to generate.
    #[error(transparent)]
    Load(#[serde(with = "load::ipc_error")] Arc<load::Error>),
}

impl From<load::Error> for Error {
    fn from(error: load::Error) -> Self {
        match error {
            load::Error::Native(error) => Self::Native(error),
            load::Error::Worker(error) => Self::Worker(error),
            load::Error::Busy => Self::Busy,
            error => Self::Load(Arc::new(error)),
        }
    }
}
