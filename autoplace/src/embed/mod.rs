//! Texts in, vectors out: embeddings, and the scores of rerankers.
//!
//! In: a [`Model`] that was loaded to embed ([`ModelBuilder::embeddings`](crate::ModelBuilder::embeddings)), and texts.
//! Out: an [`Embedding`] for each, or a score for each document. Texts are computed together, as many as one
//! computation holds, and give the same vectors as alone but for rounding.

mod embedder;
mod embedding;
mod error;
mod pair;

pub use embedder::Embedder;
pub use embedding::{Embedding, Normalization, Statistics, cosine_similarity};
pub use error::Error;

use crate::load::{Model, Purpose};
use crate::worker;

impl Model {
    /// Takes the model's one context, to embed texts or to rerank documents. Dropping it gives the context back.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while another embedder of this model lives; [`Error::Load`] for a model that was loaded to
    /// generate, or that is not loaded; [`Error::NotEmbedding`] for an encoder-decoder, whose context is there to
    /// translate; [`Error::Worker`] for a model in a worker process.
    pub fn embedder(&self) -> Result<Embedder, Error> {
        if self.is_elsewhere() {
            let what = "the embedder";
            return Err(worker::Error::Elsewhere { what }.into());
        }
        let context = self.slot().take_for(Purpose::Embeddings)?;
        let (context, contents) = context.ok_or(Error::Busy)?;
        let model = context.model();
        if model.has_encoder() && model.has_decoder() {
            self.slot().give_back(context, contents);
            return Err(Error::NotEmbedding {
                architecture: self.placement().model.architecture.clone(),
            });
        }
        Ok(Embedder::new(self.clone(), context))
    }
}
