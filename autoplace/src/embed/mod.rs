//! Computes embeddings, and the scores of rerankers.
//!
//! In: a [`Model`](crate::Model) that was loaded to embed
//! ([`ModelBuilder::embeddings`](crate::ModelBuilder::embeddings)), and texts. Out: an [`Embedding`] for each text, or
//! a score for each document. Each computation has as many texts as fit. Except for rounding, the vector of a text does
//! not depend on the other texts.

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
