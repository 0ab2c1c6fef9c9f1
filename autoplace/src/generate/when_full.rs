//! What happens to a text when the context is full: it ends, or it forgets its oldest tokens and goes on (`shift`).

use llama_sys::{Position, SeqId, Token, Vocab};
use serde::{Deserialize, Serialize};

use super::cache::{Cache, position};
use super::context::Lent;
use super::error::Error;
use super::sequence::Sequence;
use crate::memory::KvType;

/// What happens to a text when the context has no place for its next token.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhenFull {
    /// It ends, with [`FinishReason::ContextFull`](super::FinishReason::ContextFull).
    #[default]
    Stop,
    /// It ends, and after its last piece a stream returns [`Error::ContextFull`], and so does
    /// [`Generate::text`](super::Generate::text): for whom half an answer is none. A [`Session`](super::Session) says
    /// it with the last piece, as for `Stop`, since its other texts go on.
    Error,
    /// It forgets its oldest tokens after those that are kept, and goes on without end.
    ///
    /// Where the memory can, the other tokens move up and are not computed again: as llama.cpp's own context shift,
    /// with what they have seen of the forgotten ones still in them. Where it cannot (M-RoPE, windows without
    /// `swa_full`), where that would need memory that is not planned (quantised keys, a tiny `n_ubatch`), or would
    /// change more than positions (keys of BF16, which ggml cannot turn; YaRN's factors), they are computed again: as
    /// if the text had always been the shorter one. [`Statistics::shifted_tokens`](super::Statistics::shifted_tokens)
    /// and [`Statistics::recomputed_tokens`](super::Statistics::recomputed_tokens) say which it was.
    ///
    /// What another text holds in the same cells (`kv_unified`) goes besides, since to forget it makes no room. Where
    /// nothing is left to forget, the text ends as for `Stop`.
    Shift {
        /// Tokens at the beginning of the prompt that are never forgotten: at most all of it, at least a BOS token.
        keep: usize,
        /// Tokens to forget at a time; `None`: half of those that are not kept.
        discard: Option<usize>,
    },
}

impl WhenFull {
    /// Keeps the first `keep` tokens of the prompt, and forgets half of the others whenever the context is full.
    pub fn shift(keep: usize) -> Self {
        Self::Shift { keep, discard: None }
    }
}

/// How a text is shifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shifting {
    /// Tokens at the beginning that stay.
    pub(super) keep: usize,
    discard: Option<usize>,
}

impl Shifting {
    /// `context`: tokens that the context holds of the text. `None` for a text that ends when the context is full.
    pub(super) fn of(full: &WhenFull, prompt: &[Token], context: usize, vocab: &Vocab) -> Result<Option<Self>, Error> {
        let &WhenFull::Shift { keep, discard } = full else {
            return Ok(None);
        };
        let begins = vocab.bos().is_some_and(|bos| prompt.first() == Some(&bos));
        let keep = keep.max(usize::from(begins)).min(prompt.len());
        if discard == Some(0) || keep.saturating_add(2) > context {
            return Err(Error::NothingToShift { keep, context });
        }
        Ok(Some(Self { keep, discard }))
    }

    /// How many of `tokens` that are computed are forgotten: 0 where too few are left. The first `shared` lie in cells
    /// that others hold too: those go besides.
    pub(super) fn discard(&self, tokens: usize, shared: usize) -> usize {
        let start = self.keep.max(shared);
        let others = tokens.saturating_sub(start);
        // llama.cpp's own share (tools/server/server-context.cpp, n_discard).
        let discard = self.discard.unwrap_or(others / 2);
        match discard.min(others.saturating_sub(1)) {
            0 => 0,
            discard => start - self.keep + discard,
        }
    }
}

/// Whether a context's keys can be turned where they lie: without memory that was not planned, and without
/// any other change.
fn turns_in_place(lent: &Lent) -> bool {
    let context = &lent.context;
    // Quantised keys are turned in a copy of 4 bytes per number of the whole cache (llama-kv-cache.cpp,
    // build_rope_shift), and ggml's ROPE knows two types (ggml-cpu/ops.cpp, ggml_compute_forward_rope).
    let plain = matches!(lent.type_k, KvType::F16 | KvType::F32);
    // By how much each cell moves, in 4 bytes, has its place where the mask of a batch had one: 2 bytes per cell of one
    // cache and token.
    let caches = if context.kv_unified() { 1 } else { context.n_seq_max() };
    let has_place = context.n_ubatch() / 4 >= caches;
    plain && has_place && context.kv_can_shift() && context.rope_only_rotates()
}

/// Takes `discard` tokens after the first `keep` out of a sequence, whose later ones lie in cells of its own. Returns
/// whether its memory could do it in place.
fn shift(lent: &mut Lent, seq: SeqId, keep: usize, discard: usize) -> Result<bool, Error> {
    let in_place = turns_in_place(lent);
    let context = &mut lent.context;
    let (from, to) = (position(keep), position(keep + discard));
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

    /// Makes room by forgetting its oldest tokens. `shared`: tokens at the beginning that lie in cells of others too.
    /// Returns whether there was anything to forget.
    pub(super) fn shift(&mut self, lent: &mut Lent, cache: &mut Cache, shared: usize) -> Result<bool, Error> {
        let Some((keep, discard)) = self.forget_oldest(shared) else {
            return Ok(false);
        };
        let before = self.held.computed;
        if shift(lent, self.held.seq, keep, discard)? {
            self.held.computed = before - discard;
            self.held.unshifted = self.held.unshifted.min(keep);
            self.statistics.shifted_tokens += self.held.computed - keep;
        } else {
            let held = cache.go_back(&mut lent.context, self.held.seq, self.first(keep))?;
            self.statistics.recomputed_tokens += (before - discard).saturating_sub(held);
            self.computed_to(held);
        }
        Ok(true)
    }

    /// Takes tokens after those that are kept out of the text, as if the last had just been chosen, and says where and
    /// how many. The memory is as before. `None` where nothing is to be forgotten.
    pub(super) fn forget_oldest(&mut self, shared: usize) -> Option<(usize, usize)> {
        let shifting = self.shifting?;
        let keep = shifting.keep;
        let discard = shifting.discard(self.tokens.len() - 1, shared);
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

#[cfg(test)]
mod tests {
    use super::Shifting;

    #[test]
    fn half_of_what_is_not_kept_is_forgotten_and_one_token_after_it_stays() {
        let (half, many) = (Shifting { keep: 10, discard: None }, Shifting { keep: 4, discard: Some(100) });
        for (shifting, tokens, shared, discarded) in [
            (half, 110, 0, 50),
            (half, 12, 0, 1),
            (half, 11, 0, 0),
            (half, 3, 0, 0),
            (many, 50, 0, 45),
            (many, 200, 0, 100),
            // What others hold too goes besides.
            (half, 110, 5, 50),
            (half, 110, 60, 50 + 25),
            (half, 110, 109, 0),
        ] {
            assert_eq!(shifting.discard(tokens, shared), discarded, "{shifting:?}, {tokens}, {shared}");
        }
    }
}
