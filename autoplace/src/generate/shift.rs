//! A full context whose oldest tokens are shifted out, so that the text goes on: llama.cpp's context shift.

use llama_sys::{Position, Token, Vocab};

use super::cache::position;
use super::context::Lent;
use super::error::Error;
use super::request::WhenFull;
use super::sequence::Sequence;
use crate::memory::KvType;

/// How the oldest tokens of a text are shifted out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shifting {
    /// Tokens at the beginning that stay.
    keep: usize,
}

impl Shifting {
    /// `capacity`: tokens that the context holds of the text. `None` for a text that ends when the context is full.
    pub(super) fn of(
        when_full: WhenFull,
        prompt: &[Token],
        capacity: usize,
        vocab: &Vocab,
    ) -> Result<Option<Self>, Error> {
        let WhenFull::Shift { keep } = when_full else {
            return Ok(None);
        };
        let begins = vocab.bos().is_some_and(|bos| prompt.first() == Some(&bos));
        let keep = keep.max(usize::from(begins)).min(prompt.len());
        if keep.saturating_add(2) > capacity {
            let reason = format!("{keep} tokens are kept, and the context holds {capacity} of the text");
            return Err(Error::CannotShift { reason });
        }
        Ok(Some(Self { keep }))
    }

    /// How many of the first `tokens`, which are computed, are shifted out: 0 where too few are left. The first
    /// `shared` of them lie in cells that others have too, and go besides.
    fn discard(self, tokens: usize, shared: usize) -> usize {
        let start = self.keep.max(shared);
        let others = tokens.saturating_sub(start);
        // llama.cpp's own share (tools/server/server-context.cpp, `n_discard`).
        match (others / 2).min(others.saturating_sub(1)) {
            0 => 0,
            discard => start - self.keep + discard,
        }
    }
}

impl Lent {
    /// Whether the keys of this context can be turned where they lie, without memory that no plan has counted and
    /// without any other change: or why not.
    pub(super) fn check_shift(&self) -> Result<(), Error> {
        let (context, model) = (&self.context, self.context.model());
        // Where sequences have caches of their own, each has a list of moves.
        let caches = if context.kv_unified() { 1 } else { context.n_seq_max() };
        let reason = if model.is_recurrent() || model.is_hybrid() {
            "the model's state is recurrent: it does not forget single tokens".to_owned()
        } else if model.n_swa() > 0 && context.has_partial_state() {
            "the model's sliding windows have a cache of their own: load with `swa_full(true)` (--swa-full)".to_owned()
        } else if !context.kv_can_shift() {
            "llama.cpp does not move the positions of this model (M-RoPE has several for each token)".to_owned()
        } else if !matches!(self.type_k, KvType::F16 | KvType::F32) {
            // Quantised keys are turned in a copy of 4 bytes per number of the whole cache (llama-kv-cache.cpp,
            // build_rope_shift), and ggml's ROPE knows two types (ggml-cpu/ops.cpp, ggml_compute_forward_rope).
            format!(
                "keys of {} cannot be turned without memory that no plan counts: load with keys of f16 or f32",
                self.type_k
            )
        } else if context.n_ubatch() / 4 < caches {
            // By how much each cell moves, in 4 bytes, has its place where the mask of a batch had one: 2 bytes per
            // cell of one cache and token.
            format!("it needs an `n_ubatch` of {} at least, which is {}", 4 * caches, context.n_ubatch())
        } else if !context.rope_only_rotates() {
            "with YaRN's factors each shift would scale the keys of all texts".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::CannotShift { reason })
    }
}

impl Sequence {
    /// The token behind those that a shift would take out now: from there on they move. `None` for a text that does not
    /// shift.
    pub(super) fn shift_end(&self, shared: usize) -> Option<usize> {
        let shifting = self.shifting?;
        Some(shifting.keep + shifting.discard(self.len().saturating_sub(1), shared))
    }

    /// Makes room by shifting its oldest tokens out. `shared`: tokens at the beginning that lie in cells of others too.
    /// Returns how many tokens stay in their places; `None` where nothing can be shifted out.
    pub(super) fn shift(&mut self, lent: &mut Lent, shared: usize) -> Result<Option<usize>, Error> {
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
        // At the next decode llama.cpp would only log that it failed.
        context.kv_update()?;
        self.held.computed = before - discard;
        self.held.unshifted = self.held.unshifted.min(keep);
        Ok(Some(keep))
    }

    /// Takes tokens behind those that are kept out of the text, whose last one was just chosen, and returns where they
    /// were and how many. The memory is as before. `None` where nothing can be taken out.
    pub(super) fn forget_oldest(&mut self, shared: usize) -> Option<(usize, usize)> {
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

#[cfg(test)]
mod tests {
    use super::Shifting;

    #[test]
    fn half_of_what_is_not_kept_is_shifted_out_and_one_token_after_it_stays() {
        for (tokens, shared, discarded) in [
            (110, 0, 50),
            (12, 0, 1),
            (11, 0, 0),
            (3, 0, 0),
            // What others have too goes besides.
            (110, 5, 50),
            (110, 60, 50 + 25),
            (110, 109, 0),
        ] {
            assert_eq!(Shifting { keep: 10 }.discard(tokens, shared), discarded, "{tokens}, {shared}");
        }
    }
}
