//! The context shift of a text: discards its oldest tokens, and moves the others to earlier positions.

use llama_sys::Position;

use super::Sequence;
use crate::decode::context::Lent;
use crate::decode::error::Error;
use crate::decode::prefix::position;

impl Sequence {
    /// Index of the first token that a shift would move; `None` for a text that does not shift.
    pub(crate) fn shift_end(&self, shared: usize) -> Option<usize> {
        let shifting = self.shifting?;
        Some(shifting.keep + shifting.discard(self.len().saturating_sub(1), shared))
    }

    /// Discards the oldest tokens of the text. `shared` is the number of leading tokens whose cells also belong to
    /// other texts. Returns the number of tokens that keep their positions, or `None` if no token can be discarded.
    pub(crate) fn shift(&mut self, lent: &mut Lent, shared: usize) -> Result<Option<usize>, Error> {
        let before = self.held.computed;
        let Some((keep, discard)) = self.forget_oldest(shared) else {
            return Ok(None);
        };
        let context = &mut lent.context;
        let (from, to) = (position(keep), position(keep + discard));
        if !context.kv_seq_remove(self.held.seq, from..to)? {
            return Err(Error::CannotShift { reason: "llama.cpp refused to remove tokens from the cache".to_owned() });
        }
        context.kv_seq_shift(self.held.seq, to..Position::MAX, from - to)?;
        // Without this call, the next decode would apply the shift, and would only log a failure.
        context.kv_update()?;
        self.held.computed = before - discard;
        self.held.unshifted = self.held.unshifted.min(keep);
        Ok(Some(keep))
    }

    /// Removes the oldest tokens after the first `keep` tokens from the list of tokens. Returns the index of the first
    /// removed token, and how many were removed. Leaves the KV cache unchanged. Returns `None` if no token can be
    /// removed.
    pub(crate) fn forget_oldest(&mut self, shared: usize) -> Option<(usize, usize)> {
        let shifting = self.shifting?;
        let keep = shifting.keep;
        let discard = shifting.discard(self.len() - 1, shared);
        if discard == 0 {
            return None;
        }
        self.tokens.drain(keep..keep + discard);
        self.prompt = self.prompt.saturating_sub(discard).max(keep);
        self.held.in_batches = self.held.in_batches.min(self.prompt);
        self.statistics.discarded_tokens += discard;
        Some((keep, discard))
    }
}
