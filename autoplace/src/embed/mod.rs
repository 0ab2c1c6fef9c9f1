//! Embeddings and the scores of rerankers: texts in, vectors out.
//!
//! In: a [`Model`] that was loaded to embed ([`ModelBuilder::embeddings`](crate::ModelBuilder::embeddings)), and texts.
//! Out: an [`Embedding`] for each text, or a score for each document. A computation takes as many texts as it can hold.
//! Except for rounding, they get the same vectors as alone.

mod embedder;
mod embedding;
mod local;
mod pair;
pub(crate) mod remote;

pub use embedder::Embedder;
pub use embedding::{Embedding, Normalization, cosine_similarity};
pub(crate) use local::LocalEmbedder;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::load::Model;
use crate::memory::Pooling;
use crate::{load, worker};

impl Model {
    /// Takes the model's one context to embed texts or rerank documents. Dropping the embedder gives the context back.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while another embedder of this model lives; [`Error::Load`] for a model that was loaded to
    /// generate or is not loaded; [`Error::NotEmbedding`] for an encoder-decoder; [`Error::Worker`] if the model's
    /// worker process has died or cannot be started again.
    pub fn embedder(&self) -> Result<Embedder, Error> {
        Embedder::open(self)
    }
}

/// An error of an embedding or a reranking.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The lengths of two vectors differ.
    #[error("a vector of {one} elements cannot be compared with one of {other}")]
    Lengths { one: usize, other: usize },
    /// Another embedder of this model lives.
    #[error("this model is embedding already: drop its other embedder first")]
    Busy,
    /// A text is longer than one computation, or than the model's learned positions
    /// ([`Embedder::longest_text`](Embedder::longest_text)). The length includes the tokens that the model adds. The
    /// length of a document includes the tokens of the query. Texts are numbered from 0.
    #[error(
        "text {index} has {tokens} tokens, and at most {limit} can be embedded: load with a longer context, shorten the text, or set `truncate`"
    )]
    TooLong { index: usize, tokens: usize, limit: usize },
    /// A text has no tokens, and the model adds none.
    #[error("text {index} is empty, and the model has no token that begins a text")]
    Empty { index: usize },
    /// The model was not loaded to score documents.
    #[error("the model was loaded to embed, with the pooling {pooling}: load it with `Pooling::Rank` to rerank")]
    NotReranking { pooling: Pooling },
    /// The model is an encoder-decoder, whose encoder serves its decoder.
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
