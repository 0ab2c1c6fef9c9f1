//! What the context holds of a text: where that is, and what is kept of it when the text leaves the context or the
//! model is released.

use llama_sys::{Context, SeqId, Token};

use super::cache::{Cache, Place};
use super::error::Error;
use super::sequence::Sequence;
use crate::load::Scales;

impl Sequence {
    /// Runs it where the context holds this much of its beginning.
    pub(super) fn put(&mut self, place: Place) {
        self.seq = place.seq;
        self.computed = place.cached;
        self.statistics.cached_tokens = place.cached;
        self.stops = place.stops;
    }

    /// Its number in the context, and what the context holds of it that others with these adapters can go on from.
    pub(super) fn held(&self, scales: &Scales) -> (SeqId, &[Token]) {
        let shared = if self.scales == *scales {
            self.computed.min(self.genuine)
        } else {
            0
        };
        (self.seq, &self.tokens[..shared])
    }

    /// Runs it again, where the context holds this much of its beginning.
    pub(super) fn put_again(&mut self, place: Place) {
        self.seq = place.seq;
        self.computed_to(place.cached);
        self.stops = place.stops;
    }

    /// Takes it out of the context, which keeps what it holds of it as long as nobody needs the place. It is
    /// [put](Self::put_again) somewhere again.
    pub(super) fn suspend(
        &mut self,
        cache: &mut Cache,
        context: &mut Context,
    ) -> Result<(), Error> {
        let held = self.keep_genuine(cache, context);
        self.computed = 0;
        self.shares = None;
        cache.remember(self.seq, self.scales.clone(), self.tokens.clone(), held?);
        Ok(())
    }

    /// Ends it, and leaves in the cache what the context holds of it and others can go on from.
    pub(super) fn leave(self, cache: &mut Cache, context: &mut Context) -> Result<(), Error> {
        let held = self.keep_genuine(cache, context)?;
        cache.remember(self.seq, self.scales, self.tokens, held);
        Ok(())
    }

    /// Has the context hold no more of it than others can go on from. Returns how many tokens that are.
    fn keep_genuine(&self, cache: &mut Cache, context: &mut Context) -> Result<usize, Error> {
        if self.genuine < self.computed {
            let known = &self.tokens[..self.genuine];
            return cache.go_back(context, self.seq, known, &self.scales);
        }
        Ok(self.computed)
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
}
