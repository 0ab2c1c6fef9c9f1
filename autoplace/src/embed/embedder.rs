//! An embedder. In: texts. Out: vectors. The model runs in this process or in a worker.

use super::local::LocalEmbedder;
use super::options::{About, Options};
use super::remote::WorkerEmbedder;
use super::{Embedding, Error, Normalization};
use crate::load::{AbortHandle, Model};
use crate::memory::Pooling;

/// An embedder uses the model's only context to embed texts. The context is free again when the embedder is dropped.
///
/// ```no_run
/// use autoplace::{Model, embed::cosine_similarity, memory::Pooling};
/// let model = Model::builder("nomic-embed-text-v1.5.gguf").embeddings(Pooling::Model).load()?;
/// let mut embedder = model.embedder()?;
/// let vectors = embedder.embed(&["search_query: tides", "search_document: The moon pulls the sea."])?;
/// println!("{}", cosine_similarity(&vectors[0], &vectors[1])?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// After a re-placement that failed, every call returns [`Error::Load`].
#[derive(Debug)]
#[must_use]
pub struct Embedder {
    runner: Runner,
    options: Options,
}

/// The side that computes: this process or a worker.
#[derive(Debug)]
enum Runner {
    Local(Box<LocalEmbedder>),
    Worker(Box<WorkerEmbedder>),
}

impl Model {
    /// Takes the model's only context to embed texts or rerank documents. The context is free again when the embedder
    /// is dropped.
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

impl Embedder {
    pub(super) fn open(model: &Model) -> Result<Self, Error> {
        let runner = if model.is_in_worker() {
            Runner::Worker(Box::new(WorkerEmbedder::open(model)?))
        } else {
            Runner::Local(Box::new(LocalEmbedder::open(model)?))
        };
        Ok(Self { runner, options: Options::default() })
    }

    /// Truncates texts that are too long instead of refusing them. The tokens that the model adds at the end are kept.
    /// In a pair of a query and a document, only the document is truncated. Default: `false`.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.options.truncate = truncate;
        self
    }

    /// Sets the scaling of vectors; scores are never scaled. `true` means [`Normalization::Euclidean`], `false` means
    /// [`Normalization::None`]. Default: [`Normalization::Euclidean`], which gives vectors a length of 1.
    pub fn normalize(mut self, normalization: impl Into<Normalization>) -> Self {
        self.options.normalization = normalization.into();
        self
    }

    /// Computes the vectors of these texts, in order. If the model expects a prefix ("query: "), the caller must add it
    /// to the text.
    ///
    /// All texts are tokenized before the first text is computed. With [`Pooling::Rank`], each vector contains the
    /// scores of the classification head ([`labels`](Self::labels)).
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] and [`Error::Empty`] name the text. [`Error::Native`] if llama.cpp fails, including
    /// [`Aborted`](llama_sys::Error::Aborted).
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Embedding>, Error> {
        self.compute(None, texts, self.options)
    }

    /// Like [`embed`](Self::embed), but this call truncates texts that are too long.
    ///
    /// # Errors
    ///
    /// The errors of [`embed`](Self::embed), without [`Error::TooLong`].
    pub fn embed_truncated<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Embedding>, Error> {
        self.compute(None, texts, Options { truncate: true, ..self.options })
    }

    /// Like [`embed`](Self::embed), with other settings of [`truncate`](Self::truncate) and
    /// [`normalize`](Self::normalize) for this call.
    ///
    /// # Errors
    ///
    /// The errors of [`embed`](Self::embed).
    pub fn embed_with<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        truncate: bool,
        normalization: Normalization,
    ) -> Result<Vec<Embedding>, Error> {
        self.compute(None, texts, Options { truncate, normalization })
    }

    /// The scaling of vectors: see [`normalize`](Self::normalize).
    pub const fn normalization(&self) -> Normalization {
        self.options.normalization
    }

    /// Scores how well each of these documents answers the query, in order. The result is the first score of the
    /// model's classification head, as in llama.cpp's server. The scale of the score depends on the model: most models
    /// compute a logit, Qwen3 a probability.
    ///
    /// Each pair is written in the form that the model expects: its `tokenizer.chat_template.rerank` or, without this
    /// template, `[BOS]query[EOS][SEP]document[EOS]` with those special tokens that the model adds.
    ///
    /// # Errors
    ///
    /// [`Error::NotReranking`] for a model that was not loaded with [`Pooling::Rank`], or whose own pooling is another
    /// one; otherwise the errors of [`embed`](Self::embed), with the index of the document.
    pub fn rerank<T: AsRef<str>>(&mut self, query: &str, documents: &[T]) -> Result<Vec<f32>, Error> {
        let scores = self.score(query, documents)?;
        Ok(scores.iter().map(|scores| scores.values.first().copied().unwrap_or(f32::NAN)).collect())
    }

    /// Like [`rerank`](Self::rerank), but returns all scores of the model's classification head for each document, and
    /// the number of tokens of each pair. The results have the order of the documents.
    ///
    /// # Errors
    ///
    /// The errors of [`rerank`](Self::rerank).
    pub fn score<T: AsRef<str>>(&mut self, query: &str, documents: &[T]) -> Result<Vec<Embedding>, Error> {
        self.compute(Some(query), documents, self.options)
    }

    fn compute<T: AsRef<str>>(
        &mut self,
        query: Option<&str>,
        texts: &[T],
        options: Options,
    ) -> Result<Vec<Embedding>, Error> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        match &mut self.runner {
            Runner::Local(local) => local.compute(query, &texts, options),
            Runner::Worker(worker) => worker.compute(query, &texts, options),
        }
    }

    /// The labels of the classification head's scores, in order; empty if the model has none.
    pub fn labels(&self) -> Result<Vec<String>, Error> {
        Ok(self.about()?.labels)
    }

    /// The number of elements per vector; with [`Pooling::Rank`], the number of scores.
    pub fn width(&self) -> Result<usize, Error> {
        Ok(self.about()?.width)
    }

    /// The pooling in use: the requested pooling, or the model's own. It is never [`Pooling::Model`].
    pub fn pooling(&self) -> Result<Pooling, Error> {
        Ok(self.about()?.pooling)
    }

    /// Maximum tokens of a text, including those that the model adds. The context and the model's learned positions
    /// limit this number.
    pub fn longest_text(&self) -> Result<usize, Error> {
        Ok(self.about()?.longest_text)
    }

    fn about(&self) -> Result<About, Error> {
        match &self.runner {
            Runner::Local(local) => local.about(),
            Runner::Worker(worker) => worker.about(),
        }
    }

    /// The model whose context this embedder uses.
    pub fn model(&self) -> &Model {
        match &self.runner {
            Runner::Local(local) => local.model(),
            Runner::Worker(worker) => worker.model(),
        }
    }

    /// A handle that aborts the running computation, or the next one. The waiting call returns
    /// [`llama_sys::Error::Aborted`]. The handle stays valid when the model is re-placed.
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.runner {
            Runner::Local(local) => local.abort.clone().into(),
            Runner::Worker(worker) => worker.abort_handle(),
        }
    }
}
