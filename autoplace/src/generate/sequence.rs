//! One text in the making: its tokens, how the next one is chosen, and the text that comes of them.

use std::time::Duration;

use llama_sys::{Batch, Context, Model, Sampler, SeqId, State, Token, Vocab};

use super::cache::{Cache, Place, keep_first};
use super::error::Error;
use super::sampling::Sampling;
use super::session::{End, FinishReason, Piece, SequenceId};
use super::shift::Shifting;
use super::stats::Statistics;
use super::text::{Released, TextAssembler};
use super::{Limits, Spec};

/// A sequence of a session. What of it is tied to the loaded model can be let go of, and made anew.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// Its number in the context.
    pub(super) seq: SeqId,
    /// The prompt, and what was generated.
    pub(super) tokens: Vec<Token>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens at the beginning that are computed as many at a time as a batch takes; the others one by one, as they came.
    pub(super) in_batches: usize,
    /// Tokens at the beginning that the KV cache holds.
    pub(super) computed: usize,
    /// Tokens after those that the batch holds.
    queued: usize,
    /// Where in the batch the token is that the next one is chosen after.
    pub(super) output: Option<i32>,
    pub(super) sampling: Sampling,
    /// `None` while the model is not loaded.
    sampler: Option<Sampler>,
    /// The KV cache of the tokens that are computed, while the model is not loaded.
    saved: Option<State>,
    /// What happens when the context is full.
    pub(super) shifting: Option<Shifting>,
    /// Tokens at the beginning of which the context holds just what they give: what a shift in place has moved has seen others too.
    pub(super) genuine: usize,
    /// Tokens that shifts took out, the last of them: a sampler has been told of them.
    pub(super) forgotten: Vec<Token>,
    /// The text that is running whose cells hold the beginning of this one, and how many of its tokens.
    pub(super) shares: Option<(SequenceId, usize)>,
    /// The text before the tokens after the prompt: more than nothing where a shift took some out.
    pub(super) told: TextAssembler,
    pub(super) text: TextAssembler,
    pub(super) limits: Limits,
    pub(super) statistics: Statistics,
}

impl Sequence {
    /// A sequence that has no [place](Self::put) yet. `capacity`: tokens that the context holds of it.
    pub(super) fn new(
        id: SequenceId,
        spec: Spec,
        mut tokens: Vec<Token>,
        model: &Model,
        capacity: usize,
    ) -> Result<Self, Error> {
        let prompt = tokens.len();
        let shifting = Shifting::of(&spec.when_full, &tokens, capacity, &model.vocab())?;
        let text = TextAssembler::new(spec.stops);
        tokens.reserve(spec.limits.max_tokens.min(capacity.saturating_sub(prompt)));
        let mut sequence = Self {
            id,
            seq: 0,
            tokens,
            prompt,
            in_batches: prompt,
            computed: 0,
            queued: 0,
            output: None,
            sampling: spec.sampling,
            sampler: None,
            saved: None,
            shifting,
            genuine: usize::MAX,
            forgotten: Vec::new(),
            shares: None,
            told: text.clone(),
            text,
            limits: spec.limits,
            statistics: Statistics::default(),
        };
        sequence.make_sampler(model)?;
        Ok(sequence)
    }

    /// Puts tokens behind the prompt that an earlier process has generated. Their text has been told, but for what is held back. What
    /// has no place in `capacity` tokens was forgotten there too.
    pub(super) fn go_on_after(
        &mut self,
        so_far: Vec<Token>,
        model: &Model,
        vocab: &Vocab,
        capacity: usize,
    ) -> Result<(), Error> {
        if so_far.is_empty() {
            return Ok(());
        }
        for &token in &so_far {
            vocab.append_piece(token, self.limits.special, self.text.buffer())?;
            self.text.release();
            self.tokens.push(token);
            if self.tokens.len() > capacity {
                self.forget_oldest(vocab, capacity, 0)?;
            }
        }
        self.in_batches = self.in_batches.min(self.prompt);
        self.statistics.generated_tokens = so_far.len();
        self.make_sampler(model)
    }

    /// The same text again, without a sampler, and without what is kept of the memory.
    pub(super) fn twin(&self) -> Self {
        let mut tokens = Vec::with_capacity(self.tokens.capacity());
        tokens.extend_from_slice(&self.tokens);
        Self {
            id: self.id,
            seq: self.seq,
            tokens,
            prompt: self.prompt,
            in_batches: self.in_batches,
            computed: self.computed,
            queued: 0,
            output: None,
            sampling: self.sampling.clone(),
            sampler: None,
            saved: None,
            shifting: self.shifting,
            genuine: self.genuine,
            forgotten: self.forgotten.clone(),
            shares: None,
            told: self.told.clone(),
            text: self.text.clone(),
            limits: self.limits,
            statistics: self.statistics,
        }
    }

    /// Runs it where the context holds this much of its beginning.
    pub(super) fn put(&mut self, place: Place) {
        self.seq = place.seq;
        self.computed = place.cached;
        self.statistics.cached_tokens = place.cached;
    }

    /// Its number in the context, and what the context holds of it, as far as others can go on from there.
    pub(super) fn held(&self) -> (SeqId, &[Token]) {
        (self.seq, &self.tokens[..self.computed.min(self.genuine)])
    }

    /// Ends it, and leaves in the cache what the context holds of it and others can go on from.
    pub(super) fn leave(self, cache: &mut Cache, context: &mut Context) -> Result<(), Error> {
        let mut keep = self.computed;
        if self.genuine < keep {
            keep = keep_first(context, self.seq, self.genuine)?;
        }
        cache.remember(self.seq, self.tokens, keep);
        Ok(())
    }

    /// The prompt, and what was generated.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Tokens that it has places for or needs them: those computed, and those to be.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Tokens that the context must hold for it to go on.
    pub(super) fn needs(&self) -> usize {
        // An answer to a prompt has one token at least; a token that was chosen may be the last.
        self.len() + usize::from(self.statistics.generated_tokens == 0)
    }

    /// Makes the sampler, as it would be had it chosen every token so far.
    pub(super) fn make_sampler(&mut self, model: &Model) -> Result<(), Error> {
        let (mut sampler, seed) = self.sampling.sampler(model)?;
        // What was forgotten came after what is kept.
        let keep = self.shifting.map_or(0, |shifting| shifting.keep);
        let (kept, others) = self.tokens.split_at(keep.min(self.tokens.len()));
        for &token in kept.iter().chain(&self.forgotten).chain(others) {
            sampler.accept(token)?;
        }
        sampler.skip(self.statistics.generated_tokens)?;
        // A seed that was drawn is needed again where the sampler is.
        self.sampling.seed = seed.or(self.sampling.seed);
        self.statistics.seed = seed;
        self.sampler = Some(sampler);
        Ok(())
    }

    /// Lets go of the sampler, which holds the model.
    pub(super) fn drop_sampler(&mut self) {
        self.sampler = None;
    }

    /// Keeps what the context holds of it. Returns the bytes.
    pub(super) fn save(&mut self, context: &mut Context) -> Result<u64, Error> {
        self.saved = match self.computed {
            0 => None,
            _ => Some(context.save_state(Some(self.seq))?),
        };
        Ok(self.saved_bytes())
    }

    /// Bytes that are kept of it.
    pub(super) fn saved_bytes(&self) -> u64 {
        self.saved.as_ref().map_or(0, |state| state.len() as u64)
    }

    /// Gives a context what was kept. Returns whether it took it.
    pub(super) fn restore(&self, context: &mut Context) -> bool {
        match &self.saved {
            Some(state) => context.restore_state(state, Some(self.seq)).is_ok(),
            None => true,
        }
    }

    /// Forgets what was kept, which the context holds now.
    pub(super) fn drop_saved(&mut self) {
        self.saved = None;
    }

    /// Has its tokens computed again: the context has none of them.
    pub(super) fn compute_again(&mut self) {
        if self.computed > 0 {
            self.computed_to(0);
        }
    }

    /// Has its tokens computed again after the first `tokens`: the context has no more of them.
    pub(super) fn computed_to(&mut self, tokens: usize) {
        self.computed = tokens;
        self.in_batches = self.tokens.len();
        self.genuine = usize::MAX;
    }

    /// Whether tokens are still to be computed that had been computed before.
    pub(super) fn is_computed_again(&self) -> bool {
        self.in_batches > self.prompt && self.computed < self.in_batches
    }

    /// Whether it ends before anything is computed.
    pub(super) fn end_at_once(&self) -> Option<Piece> {
        (self.limits.max_tokens == 0).then(|| Piece {
            sequence: self.id,
            token: None,
            text: String::new(),
            end: Some(self.end(FinishReason::MaxTokens)),
        })
    }

    /// Adds its next tokens to a batch, `room` of them at most. Returns how many.
    pub(super) fn queue(&mut self, batch: &mut Batch, room: usize) -> usize {
        let together = self.in_batches.saturating_sub(self.computed).max(1);
        self.queued = together.min(room);
        self.output = None;
        let end = self.computed + self.queued;
        for position in self.computed..end {
            let last = position + 1 == self.tokens.len();
            if last {
                self.output = Some(batch.len() as i32);
            }
            batch.add(self.tokens[position], position as i32, self.seq, last);
        }
        self.queued
    }

    /// Whether the batch computes the last token of the prompt.
    pub(super) fn ends_prompt(&self) -> bool {
        self.output.is_some() && self.statistics.first_token_latency.is_none()
    }

    /// Says that its tokens in the batch are computed, and how long that took.
    pub(super) fn computed(&mut self, took: Duration) {
        self.computed += self.queued;
        self.queued = 0;
        if self.statistics.first_token_latency.is_none() {
            self.statistics.prompt_time += took;
        } else {
            self.statistics.generation_time += took;
        }
    }

    /// Chooses the next token, if the batch was computed so far.
    pub(super) fn choose(&mut self, context: &mut Context) -> Result<Option<Token>, Error> {
        match (self.output, &mut self.sampler) {
            (Some(output), Some(sampler)) => Ok(Some(sampler.sample(context, output)?)),
            _ => Ok(None),
        }
    }

    /// Takes the token that was chosen, so long after its batch was computed, and makes text of it. `full`: there is no place for the
    /// token to be computed.
    pub(super) fn take(
        &mut self,
        token: Token,
        took: Duration,
        vocab: &Vocab,
        full: bool,
    ) -> Result<Piece, Error> {
        let statistics = &mut self.statistics;
        if statistics.first_token_latency.is_none() {
            statistics.prompt_tokens = self.prompt;
            statistics.first_token_latency = Some(statistics.prompt_time + took);
        } else {
            statistics.generation_time += took;
        }
        let mut piece = Piece {
            sequence: self.id,
            token: Some(token),
            text: String::new(),
            end: None,
        };
        if vocab.is_eog(token) {
            self.finish(&mut piece, FinishReason::EndOfGeneration);
            return Ok(piece);
        }
        self.tokens.push(token);
        self.statistics.generated_tokens += 1;
        vocab.append_piece(token, self.limits.special, self.text.buffer())?;
        match self.text.release() {
            Released::Text(text) => piece.text = text,
            Released::Stopped(text) => {
                piece.text = text;
                piece.end = Some(self.end(FinishReason::StopString));
                return Ok(piece);
            }
        }
        if self.statistics.generated_tokens >= self.limits.max_tokens {
            self.finish(&mut piece, FinishReason::MaxTokens);
        } else if full {
            self.finish(&mut piece, FinishReason::ContextFull);
        }
        Ok(piece)
    }

    /// Ends a piece with the text that was held back.
    pub(super) fn finish(&mut self, piece: &mut Piece, reason: FinishReason) {
        let (reason, rest) = match self.text.finish() {
            Released::Text(rest) => (reason, rest),
            Released::Stopped(rest) => (FinishReason::StopString, rest),
        };
        piece.text.push_str(&rest);
        piece.end = Some(self.end(reason));
    }

    fn end(&self, reason: FinishReason) -> End {
        End {
            reason,
            statistics: self.statistics,
        }
    }
}
