//! What can go wrong between a text and its vector.

use std::sync::Arc;

use crate::memory::Pooling;
use crate::{load, worker};

/// An error of an embedding or a reranking.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An embedder of this model lives already.
    #[error("this model is embedding already: drop its other embedder first")]
    Busy,
    /// A text is longer than one computation, or than the positions that the model has learned.
    #[error(
        "text {index} is {tokens} tokens long, and the longest that can be embedded is {limit}: load with a longer context, cut it, or ask for `truncate`"
    )]
    TooLong {
        /// Which of the texts or documents, counted from 0.
        index: usize,
        /// Its tokens, with those that the model adds; of a document, the query's too.
        tokens: usize,
        /// The most that can be: [`Embedder::longest_text`](super::Embedder::longest_text).
        limit: usize,
    },
    /// A text has no tokens, and the model adds none.
    #[error("text {index} is empty, and the model has no token that begins a text")]
    Empty {
        /// Which of the texts, counted from 0.
        index: usize,
    },
    /// Documents were to be scored by a model that was loaded to embed.
    #[error(
        "the model was loaded to embed, with the pooling {pooling}: load it with `Pooling::Rank` to rerank"
    )]
    NotReranking {
        /// The pooling in use.
        pooling: Pooling,
    },
    /// The model is an encoder-decoder, whose encoder is there for its decoder.
    #[error("{architecture} models do not embed")]
    NotEmbedding {
        /// `general.architecture` of the file.
        architecture: String,
    },
    /// llama.cpp refused or failed, or [was aborted](llama_sys::Error::Aborted).
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The model runs in a worker process, where it cannot embed so far.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The model is not loaded, or was not loaded to embed.
    #[error(transparent)]
    Load(Arc<load::Error>),
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
