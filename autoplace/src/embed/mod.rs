//! Computes embeddings, and the scores of rerankers.
//!
//! In: a [`Model`](crate::Model) that was loaded to embed
//! ([`ModelBuilder::embeddings`](crate::ModelBuilder::embeddings)), and texts. Out: an [`Embedding`] for each text, or
//! a score for each document. A computation takes as many texts as it can hold. Except for rounding, the other texts do
//! not change the vector of a text.

mod embedder;
mod embedding;
mod error;
mod local;
mod options;
mod pair;
pub(crate) mod remote;

pub use embedder::Embedder;
pub use embedding::{Embedding, Normalization, cosine_similarity};
pub use error::Error;
pub(crate) use local::LocalEmbedder;
