//! What the context holds of a text: where that is, and what is kept of it when the text leaves the context or the
//! model is released.

use llama_sys::{Context, SeqId, State};

use super::Sequence;
use crate::generate::cache::{Cache, Place, Prefix};
use crate::generate::checkpoints::Stops;
use crate::generate::error::Error;
use crate::generate::piece::SequenceId;

#[derive(Debug)]
pub(crate) struct Held {
    /// Its number in the context.
    pub(crate) seq: SeqId,
    /// Tokens at the beginning that the KV cache holds.
    pub(crate) computed: usize,
    /// Tokens at the beginning that are computed as many at a time as a batch takes; the others one by
    /// one, as they came.
    pub(crate) in_batches: usize,
    /// Tokens at the beginning that no shift has moved. Those that it has moved have seen the ones that were shifted
    /// out: no other text goes on from them.
    pub(crate) unshifted: usize,
    pub(crate) stops: Stops,
    /// The running text whose cells hold the beginning of this one, and how many of its tokens.
    pub(crate) shares: Option<(SequenceId, usize)>,
    /// The KV cache of the tokens that are computed, while the model is not loaded.
    pub(crate) saved: Option<State>,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            seq: 0,
            computed: 0,
            in_batches: 0,
            unshifted: usize::MAX,
            stops: Stops::default(),
            shares: None,
            saved: None,
        }
    }
}

impl Held {
    /// Tokens at the beginning that another text can go on from.
    fn reusable(&self) -> usize {
        self.computed.min(self.unshifted)
    }
}

impl Sequence {
    /// Runs it where the context holds this much of its beginning; `again`: after it was suspended.
    pub(crate) fn put(&mut self, place: Place, again: bool) {
        self.held.seq = place.seq;
        self.held.computed = place.cached;
        self.held.unshifted = usize::MAX;
        self.held.stops = place.stops;
        match again {
            true => self.held.in_batches = self.tokens.len(),
            false => self.statistics.cached_tokens = place.cached,
        }
    }

    /// What the context holds of it that another text can go on from.
    pub(crate) fn held(&self) -> Prefix<'_> {
        Prefix { tokens: &self.tokens[..self.held.reusable()], scales: &self.scales }
    }

    /// All of its tokens.
    pub(crate) fn all(&self) -> Prefix<'_> {
        Prefix { tokens: &self.tokens, scales: &self.scales }
    }

    /// Takes it out of the context, which keeps what it holds of it as long as no other text needs the place.
    /// [`put`](Self::put) puts it back.
    pub(crate) fn suspend(&mut self, cache: &mut Cache) {
        let held = self.held.reusable();
        self.held.computed = 0;
        self.held.shares = None;
        cache.remember(self.held.seq, self.scales.clone(), self.tokens.clone(), held);
    }

    /// Ends it, and leaves in the cache what the context holds of it and others can go on from.
    pub(crate) fn leave(self, cache: &mut Cache) {
        let held = self.held.reusable();
        cache.remember(self.held.seq, self.scales, self.tokens, held);
    }

    /// Keeps what the context holds of it. Returns the bytes.
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

    /// Gives a context what was kept. Returns whether it took it.
    pub(crate) fn restore(&self, context: &mut Context) -> bool {
        match &self.held.saved {
            Some(state) => context.restore_state(self.held.seq, state).is_ok(),
            None => true,
        }
    }

    /// Has its tokens computed again: the context has none of them.
    pub(crate) fn compute_again(&mut self) {
        if self.held.computed > 0 {
            self.held.computed = 0;
            self.held.unshifted = usize::MAX;
            self.held.in_batches = self.tokens.len();
        }
    }

    /// Whether tokens are still to be computed that had been computed before.
    pub(crate) fn is_computed_again(&self) -> bool {
        self.held.in_batches > self.prompt && self.held.computed < self.held.in_batches
    }
}
