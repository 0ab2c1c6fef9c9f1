//! The context shift: a full context discards the oldest tokens of a text so that the text continues (llama.cpp's
//! context shift).

use llama_sys::{Token, Vocab};

use super::context::Lent;
use super::error::Error;
use super::request::WhenFull;
use crate::memory::KvType;

/// Settings of the context shift of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shifting {
    /// Number of tokens at the beginning that are never discarded.
    pub(crate) keep: usize,
}

impl Shifting {
    /// `capacity` is the number of tokens that the context can hold of the text. Returns `None` if the text ends when
    /// the context is full.
    pub(crate) fn new(
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
            let reason = format!("{keep} tokens are to stay, and the context can hold only {capacity} of the text");
            return Err(Error::CannotShift { reason });
        }
        Ok(Some(Self { keep }))
    }

    /// The number of tokens to discard. The first `tokens` tokens of the text are computed; if too few of them can be
    /// discarded, the result is 0. The cells of the first `shared` tokens also belong to other texts, so all of these
    /// tokens are discarded too, except the first `keep`.
    pub(crate) fn discard(self, tokens: usize, shared: usize) -> usize {
        let start = self.keep.max(shared);
        let others = tokens.saturating_sub(start);
        // llama.cpp discards the same share (tools/server/server-context.cpp, `n_discard`).
        match (others / 2).min(others.saturating_sub(1)) {
            0 => 0,
            discard => start - self.keep + discard,
        }
    }
}

impl Lent {
    /// Checks that the keys can be rotated in place, that nothing else would have to change, and that the rotation
    /// needs no memory beyond the plan. The error contains the reason.
    pub(crate) fn check_shift(&self) -> Result<(), Error> {
        let (context, model) = (&self.context, self.context.model());
        // If each sequence has its own cache, each cache has its own list of moves.
        let caches = if context.kv_unified() { 1 } else { context.n_seq_max() };
        let reason = if model.is_recurrent() || model.is_hybrid() {
            "the model's recurrent state cannot discard single tokens".to_owned()
        } else if model.n_swa() > 0 && context.has_partial_state() {
            "the model's sliding windows have a cache of their own: load with `swa_full(true)` (--swa-full)".to_owned()
        } else if !context.kv_can_shift() {
            "llama.cpp does not move the positions of this model (M-RoPE has several for each token)".to_owned()
        } else if !matches!(self.type_k, KvType::F16 | KvType::F32) {
            // llama.cpp rotates quantised keys in an F32 copy of the whole cache (llama-kv-cache.cpp,
            // build_rope_shift), and ggml's ROPE supports only F16 and F32 (ggml-cpu/ops.cpp,
            // ggml_compute_forward_rope).
            format!(
                "keys of {} cannot be rotated without memory outside the plan: load with keys of f16 or f32",
                self.type_k
            )
        } else if context.n_ubatch() / 4 < caches {
            // The shift amounts take 4 bytes per cell, in the buffer of a batch's mask, which has 2 bytes for each cell
            // and token of one cache.
            format!("it needs an `n_ubatch` of at least {}, not {}", 4 * caches, context.n_ubatch())
        } else if !context.rope_only_rotates() {
            "with YaRN's factors each shift would scale the keys of all texts".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::CannotShift { reason })
    }
}

#[cfg(test)]
mod tests {
    use super::Shifting;

    #[test]
    fn half_of_the_unkept_tokens_are_shifted_out_and_one_of_them_stays() {
        for (tokens, shared, discarded) in [
            (110, 0, 50),
            (12, 0, 1),
            (11, 0, 0),
            (3, 0, 0),
            // Shared tokens are discarded in addition.
            (110, 5, 50),
            (110, 60, 50 + 25),
            (110, 109, 0),
        ] {
            assert_eq!(Shifting { keep: 10 }.discard(tokens, shared), discarded, "{tokens}, {shared}");
        }
    }
}
