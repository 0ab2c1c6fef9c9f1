//! The loop: texts are read, packed into batches, computed, and their vectors taken.

use std::ops::Range;
use std::time::Instant;

use llama_sys::{AbortHandle, Batch, Context};

use super::pair::{Format, Limit, Text};
use super::{Embedding, Error, Normalization, Statistics};
use crate::load::{self, Contents, Model, Purpose, native};
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
#[derive(Debug)]
#[must_use]
pub struct Embedder {
    model: Model,
    /// `None` after a re-placement that failed, until one succeeds.
    context: Option<Context>,
    abort: AbortHandle,
    batch: Batch,
    truncate: bool,
    normalization: Normalization,
    statistics: Statistics,
}

impl Embedder {
    pub(super) fn new(model: Model, mut context: Context) -> Self {
        // Its own: who still holds one of an earlier embedder stops nothing of this one.
        let abort = AbortHandle::default();
        context.follow_abort_handle(abort.clone());
        Self {
            abort,
            model,
            context: Some(context),
            batch: Batch::default(),
            truncate: false,
            normalization: Normalization::default(),
            statistics: Statistics::default(),
        }
    }

    /// Cuts texts that are too long, instead of refusing them: what the model adds at the end stays. Of a query and a
    /// document, the document is cut. Default: `false`.
    pub const fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// How vectors are scaled; scores never are. Default: [`Normalization::Euclidean`].
    pub const fn normalize(mut self, normalization: Normalization) -> Self {
        self.normalization = normalization;
        self
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
        self.prepare();
        let limit = self.limit()?;
        let vocab = self.context()?.model().vocab();
        let texts: Result<Vec<Text>, Error> = (0..)
            .zip(texts)
            .map(|(index, text)| Text::of(&vocab, index, text.as_ref(), limit))
            .collect();
        self.compute(&texts?)
    }

    /// How well each of these documents answers the query, in their order: the first score of the model's
    /// classification head, as llama.cpp's server gives it. What it is on depends on the model: a logit for most, of
    /// Qwen3 a probability.
    ///
    /// Each pair is put in the model's own form: its `tokenizer.chat_template.rerank`, or
    /// `[BOS]query[EOS][SEP]document[EOS]` of the tokens that it has.
    ///
    /// # Errors
    ///
    /// [`Error::NotReranking`] for a model that was not loaded with [`Pooling::Rank`], or whose own pooling is another;
    /// else as [`embed`](Self::embed), the index being the document's.
    pub fn rerank<T: AsRef<str>>(
        &mut self,
        query: &str,
        documents: &[T],
    ) -> Result<Vec<f32>, Error> {
        self.prepare();
        let pooling = self.pooling()?;
        if pooling != Pooling::Rank {
            return Err(Error::NotReranking { pooling });
        }
        let limit = self.limit()?;
        let vocab = self.context()?.model().vocab();
        let format = Format::of(&vocab);
        let pairs: Result<Vec<Text>, Error> = (0..)
            .zip(documents)
            .map(|(index, document)| format.pair(index, query, document.as_ref(), limit))
            .collect();
        let scores = self.compute(&pairs?)?;
        let first = |scores: &Embedding| scores.values.first().copied().unwrap_or(f32::NAN);
        Ok(scores.iter().map(first).collect())
    }

    /// What the scores of a classification head stand for, in their order; empty where the model does not say.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] after a re-placement that failed.
    pub fn labels(&self) -> Result<Vec<String>, Error> {
        let model = self.context()?.model();
        let count = model.embedding_shape().n_cls_out.unwrap_or(0);
        Ok((0..count).map_while(|index| model.cls_label(index)).collect())
    }

    /// Elements of a vector; with [`Pooling::Rank`], scores.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] after a re-placement that failed.
    pub fn width(&self) -> Result<usize, Error> {
        Ok(self.context()?.embedding_width())
    }

    /// The pooling in use: what was asked for, or the model's own; never [`Pooling::Model`].
    ///
    /// # Errors
    ///
    /// [`Error::Load`] after a re-placement that failed.
    pub fn pooling(&self) -> Result<Pooling, Error> {
        Ok(native::pooling_of(self.context()?.pooling()))
    }

    /// Tokens of the longest text, with those that the model adds: of the context, and of the positions that the
    /// model has learned.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] after a re-placement that failed.
    pub fn longest_text(&self) -> Result<usize, Error> {
        Ok(self.limit()?.tokens)
    }

    /// Counts and time so far.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Stops what another thread is waiting for, which then returns [`llama_sys::Error::Aborted`]; while nothing is
    /// computed, the next computation. It stays good when the model is placed anew.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    fn context(&self) -> Result<&Context, Error> {
        let missing = || load::Error::NotLoaded.into();
        self.context.as_ref().ok_or_else(missing)
    }

    /// llama.cpp rounds a context up; what was asked for, and planned, is what holds.
    fn limit(&self) -> Result<Limit, Error> {
        let planned = self.model.placement().context.n_ctx;
        let tokens = self.context()?.longest_text().min(planned) as usize;
        Ok(Limit { tokens, truncate: self.truncate })
    }

    fn compute(&mut self, texts: &[Text]) -> Result<Vec<Embedding>, Error> {
        let context = self.context()?;
        let room = Room {
            tokens: context.n_ubatch().min(context.n_batch()).min(context.n_ctx()) as usize,
            texts: context.n_seq_max() as usize,
        };
        let lengths: Vec<usize> = texts.iter().map(Text::len).collect();
        let mut embeddings = Vec::with_capacity(texts.len());
        for range in batches(&lengths, room) {
            let began = Instant::now();
            let texts = &texts[range];
            self.compute_at_once(texts, &mut embeddings)?;
            self.statistics.texts += texts.len();
            self.statistics.tokens += self.batch.len();
            self.statistics.batches += 1;
            self.statistics.time += began.elapsed();
        }
        Ok(embeddings)
    }

    fn compute_at_once(
        &mut self,
        texts: &[Text],
        embeddings: &mut Vec<Embedding>,
    ) -> Result<(), Error> {
        let Self { context: Some(context), batch, normalization, .. } = self else {
            return Err(load::Error::NotLoaded.into());
        };
        if context.has_memory() {
            context.kv_clear()?;
        }
        batch.clear();
        for (sequence, text) in (0..).zip(texts) {
            for (position, &token) in (0..).zip(&text.tokens) {
                batch.add(token, position, sequence, true);
            }
        }
        context.decode(batch)?;
        let width = context.embedding_width();
        let pooling = native::pooling_of(context.pooling());
        let mut rows = 0..;
        for (sequence, text) in (0..).zip(texts) {
            let mut values = Vec::new();
            if pooling == Pooling::None {
                values.reserve_exact(width.saturating_mul(text.len()));
                for row in rows.by_ref().take(text.len()) {
                    let begin = values.len();
                    values.extend_from_slice(context.embeddings_ith(row)?);
                    normalization.apply(&mut values[begin..]);
                }
            } else {
                values.extend_from_slice(context.embeddings_seq(sequence)?);
                if pooling != Pooling::Rank {
                    normalization.apply(&mut values);
                }
            }
            let (tokens, truncated) = (text.len(), text.truncated);
            embeddings.push(Embedding { values, width, tokens, truncated });
        }
        Ok(())
    }

    /// Carries out a re-placement that somebody asked for, and takes a context in place of one that is gone
    /// or works no more.
    fn prepare(&mut self) {
        let replacement = self.model.requested();
        let is_usable = self.context.as_ref().is_some_and(Context::is_usable);
        if replacement.is_none() && is_usable {
            return;
        }
        self.give_back();
        if let Some(replacement) = replacement
            && let Err(error) = self.model.carry_out(&replacement)
        {
            tracing::warn!("the model was not placed anew: {error}");
        }
        // Where nothing is loaded any more, or somebody else was faster, whatever is asked next says so.
        if let Ok(Some((mut context, _))) = self.model.slot().take_for(Purpose::Embeddings) {
            context.follow_abort_handle(self.abort.clone());
            self.context = Some(context);
        }
    }

    fn give_back(&mut self) {
        if let Some(context) = self.context.take() {
            self.model.slot().give_back(context, Contents::Unknown);
        }
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What one computation holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    tokens: usize,
    texts: usize,
}

/// Texts of these lengths, in their order, as many at once as there is room for. None may be longer than the room.
fn batches(lengths: &[usize], room: Room) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut begin, mut tokens) = (0, 0_usize);
    for (index, &length) in lengths.iter().enumerate() {
        let texts = index - begin;
        let fits = tokens.saturating_add(length) <= room.tokens && texts < room.texts;
        if texts > 0 && !fits {
            batches.push(begin..index);
            (begin, tokens) = (index, 0);
        }
        tokens = tokens.saturating_add(length);
    }
    if begin < lengths.len() {
        batches.push(begin..lengths.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Room, batches};

    #[test]
    fn texts_share_a_computation_until_tokens_or_sequences_run_out() {
        let room = Room { tokens: 10, texts: 3 };
        assert!(batches(&[], room).is_empty());
        assert_eq!(batches(&[10, 10], room), [0..1, 1..2]);
        assert_eq!(batches(&[4, 6, 1], room), [0..2, 2..3]);
        assert_eq!(batches(&[1, 1, 1, 1], room), [0..3, 3..4]);
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_batch_in_its_order_and_no_batch_could_take_the_next(
            lengths in prop::collection::vec(1_usize..50, 0..100),
            tokens in 50_usize..200,
            texts in 1_usize..9,
        ) {
            let batches = batches(&lengths, Room { tokens, texts });
            let all: Vec<usize> = batches.iter().cloned().flatten().collect();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for batch in &batches {
                let sum: usize = lengths[batch.clone()].iter().sum();
                prop_assert!(sum <= tokens && batch.len() <= texts);
                if let Some(next) = lengths.get(batch.end) {
                    prop_assert!(sum + next > tokens || batch.len() == texts);
                }
            }
        }
    }
}
