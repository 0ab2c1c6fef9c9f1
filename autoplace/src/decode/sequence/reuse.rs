//! How a text gets its part of the context, and how other texts or a re-placed model get it later.

use llama_sys::Context;

use super::Sequence;
use crate::decode::cache::{Cache, Place};
use crate::decode::error::Error;
use crate::decode::prefix::Prefix;
use crate::decode::speculative::{Drafters, SeqTokens};

impl Sequence {
    /// Assigns a place to the text. `again` is true if the text was suspended before.
    pub(crate) fn put(&mut self, place: Place, again: bool) {
        self.held.seq = place.seq;
        self.held.computed = place.cached;
        self.held.unshifted = usize::MAX;
        self.held.stops = place.stops;
        match again {
            true => self.held.in_batches = self.tokens.len(),
            false => {
                self.statistics.cached_tokens = place.cached;
                self.statistics.restored_tokens = place.restored.tokens;
                self.statistics.restored_from_folder = place.restored.from_folder;
            }
        }
    }

    /// The prefix that another text can reuse.
    pub(crate) fn held(&self) -> Prefix<'_> {
        self.all().first(self.held.reusable())
    }

    /// All tokens of the text, as a prefix.
    pub(crate) fn all(&self) -> Prefix<'_> {
        Prefix { tokens: &self.tokens, spans: &self.spans, marks: &self.marks, scales: &self.scales }
    }

    /// Takes the text out of the context. The tokens stay cached until another text needs the cells. [`put`](Self::put)
    /// puts the text back.
    pub(crate) fn suspend(&mut self, cache: &mut Cache, drafters: &mut Drafters) {
        self.remember(cache, drafters);
        self.held.computed = 0;
        self.held.shares = None;
    }

    /// Ends the text, and leaves its reusable tokens in the cache.
    pub(crate) fn leave(self, cache: &mut Cache, drafters: &mut Drafters) {
        self.remember(cache, drafters);
    }

    fn remember(&self, cache: &mut Cache, drafters: &mut Drafters) {
        cache.remember(self.held.seq, self.held());
        drafters.ended(SeqTokens { seq: self.held.seq, tokens: &self.tokens });
    }

    /// Saves the KV cache of the text to host memory. Returns the number of saved bytes.
    pub(crate) fn save(&mut self, context: &mut Context) -> Result<u64, Error> {
        self.held.saved = match self.held.computed {
            0 => None,
            _ => Some(context.save_state(self.held.seq)?),
        };
        Ok(self.saved_bytes())
    }

    pub(crate) fn saved_bytes(&self) -> u64 {
        self.held.saved.as_ref().map_or(0, |state| state.len() as u64)
    }

    /// Restores the saved KV cache. Returns whether the context accepted it.
    pub(crate) fn restore(&self, context: &mut Context) -> bool {
        match &self.held.saved {
            Some(state) => context.restore_state(self.held.seq, state).is_ok(),
            None => true,
        }
    }

    /// Marks all tokens as not computed.
    pub(crate) fn compute_again(&mut self) {
        if self.held.computed > 0 {
            self.held.computed = 0;
            self.held.unshifted = usize::MAX;
            self.held.in_batches = self.tokens.len();
        }
    }

    /// Whether tokens of an earlier computation must still be computed again.
    pub(crate) fn is_computed_again(&self) -> bool {
        self.held.in_batches > self.prompt && self.held.computed < self.held.in_batches
    }
}
