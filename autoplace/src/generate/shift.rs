//! Making room in a full context: a text forgets its oldest tokens and goes on.

use llama_sys::{Position, SeqId, Vocab};

use super::cache::Cache;
use super::context::Lent;
use super::error::Error;
use super::sequence::Sequence;
use crate::memory::KvType;

/// Whether a context's keys can be turned where they lie: without memory that was not planned, and without
/// any other change.
fn turns_in_place(lent: &Lent) -> bool {
    let context = &lent.context;
    // Quantised keys are turned in a copy of 4 bytes per number of the whole cache (llama-kv-cache.cpp,
    // build_rope_shift), and ggml's ROPE knows two types (ggml-cpu/ops.cpp, ggml_compute_forward_rope).
    let plain = matches!(lent.type_k, KvType::F16 | KvType::F32);
    // By how much each cell moves, in 4 bytes, has its place where the mask of a batch had one: 2 bytes per cell of one
    // cache and token.
    let caches = if context.kv_unified() {
        1
    } else {
        context.n_seq_max()
    };
    let has_place = context.n_ubatch() / 4 >= caches;
    plain && has_place && context.kv_can_shift() && context.rope_only_rotates()
}

/// Takes `discard` tokens after the first `keep` out of a sequence, whose later ones lie in cells of its own. Returns
/// whether its memory could do it in place.
fn shift(lent: &mut Lent, seq: SeqId, keep: usize, discard: usize) -> Result<bool, Error> {
    let in_place = turns_in_place(lent);
    let context = &mut lent.context;
    let positions = |tokens: usize| Position::try_from(tokens).unwrap_or(Position::MAX);
    let (from, to) = (positions(keep), positions(keep + discard));
    if in_place && context.kv_seq_remove(seq, from..to)? {
        context.kv_seq_shift(seq, to..Position::MAX, from - to)?;
        context.kv_update()?;
        return Ok(true);
    }
    Ok(false)
}

impl Sequence {
    /// Where what a shift would forget now ends: the tokens from there on move. `None` for a text that does not shift.
    pub(super) fn shift_end(&self, shared: usize) -> Option<usize> {
        let shifting = self.shifting?;
        let computed = self.tokens.len().saturating_sub(1);
        Some(shifting.keep + shifting.discard(computed, shared))
    }

    /// Makes room by forgetting its oldest tokens, all but the last of which are computed. `shared`: tokens at the
    /// beginning that lie in cells of others too. Returns whether there was anything to forget.
    pub(super) fn shift(
        &mut self,
        lent: &mut Lent,
        cache: &mut Cache,
        shared: usize,
    ) -> Result<bool, Error> {
        let capacity = lent.room.each;
        let Some((keep, discard)) = self.forget_oldest(&lent.vocab, capacity, shared)? else {
            return Ok(false);
        };
        let before = self.held.computed;
        if shift(lent, self.held.seq, keep, discard)? {
            self.held.computed = before - discard;
            self.held.unshifted = self.held.unshifted.min(keep);
            self.statistics.shifted_tokens += self.held.computed - keep;
        } else {
            let known = &self.tokens[..keep];
            let held = cache.go_back(&mut lent.context, self.held.seq, known, &self.scales)?;
            let again = (before - discard).saturating_sub(held);
            self.statistics.recomputed_tokens += again;
            self.computed_to(held);
        }
        Ok(true)
    }

    /// Takes tokens after those that are kept out of the text, as if the last had just been chosen, and says where and
    /// how many. The memory is as before. `None` where nothing is to be forgotten.
    pub(super) fn forget_oldest(
        &mut self,
        vocab: &Vocab,
        capacity: usize,
        shared: usize,
    ) -> Result<Option<(usize, usize)>, Error> {
        let Some(shifting) = self.shifting else {
            return Ok(None);
        };
        let keep = shifting.keep;
        let discard = shifting.discard(self.tokens.len() - 1, shared);
        if discard == 0 {
            return Ok(None);
        }
        let end = keep + discard;
        for &token in self.tokens.get(self.prompt..end).unwrap_or_default() {
            vocab.append_piece(token, self.limits.special, self.before.text.buffer())?;
            self.before.text.release();
            if let Some(matcher) = &mut self.before.matcher {
                matcher.accept(token)?;
            }
        }
        self.prompt = self.prompt.saturating_sub(discard).max(keep);
        self.held.in_batches = self.held.in_batches.min(self.prompt);
        self.choices.known = self.choices.known.saturating_sub(discard);
        self.before.forgotten.extend(self.tokens.drain(keep..end));
        // No sampler looks further back than a context.
        let surplus = self.before.forgotten.len().saturating_sub(capacity);
        self.before.forgotten.drain(..surplus);
        self.statistics.discarded_tokens += discard;
        Ok(Some((keep, discard)))
    }
}
