//! Texts in, vectors out, wherever the model is.

use serde::{Deserialize, Serialize};

use super::local::EmbedderHere;
use super::remote::EmbedderThere;
use super::{Embedding, Error, Normalization};
use crate::load::{AbortHandle, Model};
use crate::memory::Pooling;

/// The model's one context, on which texts are embedded. Dropping it gives the context back.
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
/// After a re-placement that failed, whatever it is asked is [`Error::Load`].
#[derive(Debug)]
#[must_use]
pub struct Embedder {
    at: At,
    options: Options,
}

#[derive(Debug)]
enum At {
    Here(Box<EmbedderHere>),
    There(Box<EmbedderThere>),
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(super) truncate: bool,
    pub(super) normalization: Normalization,
}

/// What holds for all texts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) labels: Vec<String>,
    pub(super) width: usize,
    pub(super) pooling: Pooling,
    pub(super) longest_text: usize,
}

impl Embedder {
    pub(super) fn open(model: &Model) -> Result<Self, Error> {
        let at = if model.is_elsewhere() {
            At::There(Box::new(EmbedderThere::open(model)?))
        } else {
            At::Here(Box::new(EmbedderHere::open(model)?))
        };
        Ok(Self { at, options: Options::default() })
    }

    setters! {
        /// Cuts texts that are too long, instead of refusing them: what the model adds at the end stays. Of a query and
        /// a document, the document is cut. Default: `false`.
        truncate(truncate: bool) options.truncate = truncate;
        /// How vectors are scaled; scores never are. `true` and `false` are Euclidean and none. Default:
        /// [`Normalization::Euclidean`], a length of 1.
        normalize(normalization: impl Into<Normalization>) options.normalization = normalization.into();
    }

    /// The vectors of these texts, in their order. Prefixes that a model wants ("query: ") are the caller's.
    ///
    /// All texts are read before the first is computed. With [`Pooling::Rank`] each vector is the scores of the
    /// classification head ([`labels`](Self::labels)).
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] and [`Error::Empty`] name the text. [`Error::Native`] where llama.cpp fails,
    /// [`Aborted`](llama_sys::Error::Aborted) included.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Embedding>, Error> {
        self.compute(None, texts, self.options)
    }

    /// The same, for these texts alone with [`truncate`](Self::truncate).
    ///
    /// # Errors
    ///
    /// As [`embed`](Self::embed), but none is too long.
    pub fn embed_truncated<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Embedding>, Error> {
        self.compute(None, texts, Options { truncate: true, ..self.options })
    }

    /// The same as [`embed`](Self::embed), for these texts alone with [`truncate`](Self::truncate) and
    /// [`normalize`](Self::normalize).
    ///
    /// # Errors
    ///
    /// As [`embed`](Self::embed).
    pub fn embed_with<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        truncate: bool,
        normalization: Normalization,
    ) -> Result<Vec<Embedding>, Error> {
        self.compute(None, texts, Options { truncate, normalization })
    }

    /// How vectors are scaled: see [`normalize`](Self::normalize).
    pub const fn normalization(&self) -> Normalization {
        self.options.normalization
    }

    /// How well each of these documents answers the query, in their order: the first score of the model's
    /// classification head, as llama.cpp's server gives it. Its scale depends on the model: a logit for most, a
    /// probability for Qwen3.
    ///
    /// Each pair is put in the model's own form: its `tokenizer.chat_template.rerank`, or
    /// `[BOS]query[EOS][SEP]document[EOS]` of the tokens that it has.
    ///
    /// # Errors
    ///
    /// [`Error::NotReranking`] for a model that was not loaded with [`Pooling::Rank`], or whose own pooling is another;
    /// else as [`embed`](Self::embed), the index being the document's.
    pub fn rerank<T: AsRef<str>>(&mut self, query: &str, documents: &[T]) -> Result<Vec<f32>, Error> {
        let scores = self.compute(Some(query), documents, self.options)?;
        Ok(scores.iter().map(|scores| scores.values.first().copied().unwrap_or(f32::NAN)).collect())
    }

    fn compute<T: AsRef<str>>(
        &mut self,
        query: Option<&str>,
        texts: &[T],
        options: Options,
    ) -> Result<Vec<Embedding>, Error> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        match &mut self.at {
            At::Here(it) => it.compute(query, &texts, options),
            At::There(it) => it.compute(query, &texts, options),
        }
    }

    /// What the scores of a classification head stand for, in their order; empty where the model does not say.
    pub fn labels(&self) -> Result<Vec<String>, Error> {
        Ok(self.about()?.labels)
    }

    /// Elements of a vector; with [`Pooling::Rank`], scores.
    pub fn width(&self) -> Result<usize, Error> {
        Ok(self.about()?.width)
    }

    /// The pooling in use: what was asked for, or the model's own; never [`Pooling::Model`].
    pub fn pooling(&self) -> Result<Pooling, Error> {
        Ok(self.about()?.pooling)
    }

    /// Tokens of the longest text, with those that the model adds: of the context, and of the positions that the
    /// model has learned.
    pub fn longest_text(&self) -> Result<usize, Error> {
        Ok(self.about()?.longest_text)
    }

    fn about(&self) -> Result<About, Error> {
        match &self.at {
            At::Here(it) => it.about(),
            At::There(it) => it.about(),
        }
    }

    /// Stops what another thread is waiting for, which then returns [`llama_sys::Error::Aborted`]; while nothing is
    /// computed, the next computation. The handle stays valid when the model is re-placed.
    pub fn abort_handle(&self) -> AbortHandle {
        match &self.at {
            At::Here(it) => it.abort.clone().into(),
            At::There(it) => it.abort_handle(),
        }
    }
}
