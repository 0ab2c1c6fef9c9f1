//! Embeds texts in this process: tokenizes them, packs them into batches, computes the batches, and reads the vectors.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use llama_sys::{AbortHandle, Batch, Context};

use super::options::{About, Options};
use super::pair::{Format, Limit, Text};
use super::{Embedding, Error, Normalization};
use crate::load::{self, Contents, Model, Purpose, native};
use crate::memory::Pooling;

/// See [`Embedder`](super::Embedder).
#[derive(Debug)]
pub(crate) struct LocalEmbedder {
    model: Model,
    /// `None` after a failed re-placement, until another re-placement succeeds.
    context: Option<Context>,
    pub(crate) abort: AbortHandle,
    batch: Batch,
}

impl LocalEmbedder {
    pub(super) fn open(model: &Model) -> Result<Self, Error> {
        let context = model.take_context(Purpose::Embeddings)?;
        let (mut context, contents) = context.ok_or(Error::Busy)?;
        let native = context.model();
        if native.has_encoder() && native.has_decoder() {
            model.slot()?.give_back(context, contents);
            return Err(Error::NotEmbedding { architecture: model.placement().model.architecture.clone() });
        }
        // This embedder gets a new handle, so that the handle of an earlier embedder cannot abort it.
        let abort = AbortHandle::default();
        context.follow_abort_handle(abort.clone());
        Ok(Self { abort, model: model.clone(), context: Some(context), batch: Batch::default() })
    }

    /// Computes the vectors of texts, or of pairs of a query and documents.
    pub(super) fn compute(
        &mut self,
        query: Option<&str>,
        texts: &[&str],
        options: Options,
    ) -> Result<Vec<Embedding>, Error> {
        self.prepare();
        let context = self.context()?;
        let pooling = native::pooling_of(context.pooling());
        if query.is_some() && pooling != Pooling::Rank {
            return Err(Error::NotReranking { pooling });
        }
        let limit = Limit { tokens: self.longest_text()?, truncate: options.truncate };
        let vocab = context.model().vocab();
        let pair = query.map(|query| (query, Format::new(&vocab)));
        let read = |(index, text): (usize, &str)| match &pair {
            Some((query, format)) => format.pair(index, query, text, limit),
            None => Text::new(&vocab, index, text, limit),
        };
        let texts = texts.iter().copied().enumerate().map(read).collect::<Result<Vec<_>, Error>>()?;
        self.compute_all(&texts, options.normalization)
    }

    pub(super) fn about(&self) -> Result<About, Error> {
        let context = self.context()?;
        let model = context.model();
        let count = model.embedding_shape().n_cls_out.unwrap_or(0);
        Ok(About {
            labels: (0..count).map_while(|index| model.cls_label(index)).collect(),
            width: context.embedding_width(),
            pooling: native::pooling_of(context.pooling()),
            longest_text: self.longest_text()?,
        })
    }

    pub(super) const fn model(&self) -> &Model {
        &self.model
    }

    fn context(&self) -> Result<&Context, Error> {
        self.context.as_ref().ok_or_else(|| load::Error::NotLoaded.into())
    }

    /// llama.cpp rounds the size of a context up, but the planned size is the limit.
    fn longest_text(&self) -> Result<usize, Error> {
        Ok(self.context()?.longest_text().min(self.model.placement().context.n_ctx) as usize)
    }

    fn compute_all(&mut self, texts: &[Text], normalization: Normalization) -> Result<Vec<Embedding>, Error> {
        let context = self.context()?;
        let most_tokens = context.n_ubatch().min(context.n_batch()).min(context.n_ctx()) as usize;
        let most_texts = context.n_seq_max() as usize;
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let mut embeddings = Vec::with_capacity(texts.len());
        for range in batches(&lengths, most_tokens, most_texts) {
            let counters = Arc::clone(self.model.counters());
            let _computing = counters.computing();
            self.compute_batch(&texts[range], normalization, &mut embeddings)?;
        }
        Ok(embeddings)
    }

    fn compute_batch(
        &mut self,
        texts: &[Text],
        normalization: Normalization,
        into: &mut Vec<Embedding>,
    ) -> Result<(), Error> {
        let Self { context: Some(context), batch, .. } = self else {
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
        if let Some(threads) = self.model.counters().batch_threads(false, None) {
            threads.set(context)?;
        }
        let decoded = context.decode(batch);
        if let Some(pacer) = &mut *self.model.counters().pacer() {
            pacer.ends(Instant::now());
        }
        decoded?;
        let width = context.embedding_width();
        let pooling = native::pooling_of(context.pooling());
        let mut rows = 0..;
        for (sequence, text) in (0..).zip(texts) {
            let mut values = Vec::new();
            if pooling == Pooling::None {
                values.reserve_exact(width.saturating_mul(text.tokens.len()));
                for row in rows.by_ref().take(text.tokens.len()) {
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
            into.push(Embedding { values, width, tokens: text.tokens.len(), truncated: text.truncated });
        }
        Ok(())
    }

    /// Carries out a requested re-placement, and takes a new context if the present one is gone or broken.
    fn prepare(&mut self) {
        let (replacement, _under_way) = self.model.requests().take().unzip();
        let is_usable = self.context.as_ref().is_some_and(Context::is_usable);
        if replacement.is_none() && is_usable {
            return;
        }
        self.give_back();
        if let Some(replacement) = replacement
            && let Err(error) = self.model.carry_out(&replacement)
        {
            tracing::warn!("the model could not be re-placed: {error}");
        }
        // If the model is unloaded, or if another user has taken the context, the next call reports this.
        if let Ok(Some((mut context, _))) = self.model.take_context(Purpose::Embeddings) {
            context.follow_abort_handle(self.abort.clone());
            self.context = Some(context);
        }
    }

    fn give_back(&mut self) {
        if let (Some(context), Ok(slot)) = (self.context.take(), self.model.slot()) {
            slot.give_back(context, Contents::Unknown);
        }
    }
}

impl Drop for LocalEmbedder {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Groups texts of these lengths, in order, into batches, each of which fits in one computation. No text may be longer
/// than a batch.
fn batches(lengths: &[usize], most_tokens: usize, most_texts: usize) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut begin, mut tokens) = (0, 0_usize);
    for (index, &length) in lengths.iter().enumerate() {
        let texts = index - begin;
        let fits = tokens.saturating_add(length) <= most_tokens && texts < most_texts;
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
    use test_support::demo_path;

    use super::{LocalEmbedder, batches};
    use crate::Model;
    use crate::embed::options::Options;
    use crate::load::Threads;
    use crate::memory::Pooling;

    #[test]
    fn texts_are_computed_with_the_threads_that_the_pacer_chooses() {
        let model = Model::builder(demo_path()).embeddings(Pooling::Mean).n_ctx(512).n_threads(3).load().unwrap();
        let mut embedder = LocalEmbedder::open(&model).unwrap();
        let threads = |embedder: &LocalEmbedder| embedder.context.as_ref().unwrap().threads();
        embedder.compute(None, &["a text"], Options::default()).unwrap();
        assert_eq!(threads(&embedder), (3, 3));
        model.counters().paced_by(&Threads { generation: 1, prompt: 2, ..model.report().threads.clone() });
        embedder.compute(None, &["a text"], Options::default()).unwrap();
        assert_eq!(threads(&embedder), (1, 2));
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_batch_in_its_order_and_no_batch_could_take_the_next(
            lengths in prop::collection::vec(1_usize..50, 0..100),
            tokens in 50_usize..200,
            texts in 1_usize..9,
        ) {
            let batches = batches(&lengths, tokens, texts);
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
