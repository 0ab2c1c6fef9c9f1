//! What happens to a text when the context is full: it ends, or it forgets its oldest tokens and goes on (`shift`).

use llama_sys::{Token, Vocab};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::prompt::Prompt;

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
    /// What another text holds in the same cells (a [fork](super::Session::fork) with `kv_unified`) goes besides, since
    /// to forget it makes no room. Where nothing is left to forget, the text ends as for `Stop`.
    Shift {
        /// What is never forgotten.
        keep: Keep,
        /// Tokens to forget at a time; `None`: half of those that are not kept.
        discard: Option<usize>,
    },
}

impl WhenFull {
    /// Forgets half of what is not kept, whenever the context is full.
    pub fn shift(keep: Keep) -> Self {
        Self::Shift {
            keep,
            discard: None,
        }
    }
}

/// The beginning of a prompt that a [shift](WhenFull::Shift) leaves. A BOS token at the beginning is always kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Keep {
    /// Nothing but a BOS token.
    #[default]
    Nothing,
    /// So many tokens, or the whole prompt if that is shorter.
    Tokens(usize),
    /// What the prompt has in common with this one, such as the system message alone.
    Beginning(Prompt),
    /// The whole prompt.
    Prompt,
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
    pub(super) fn of(
        when_full: &WhenFull,
        prompt: &[Token],
        context: usize,
        vocab: &Vocab,
    ) -> Result<Option<Self>, Error> {
        let WhenFull::Shift { keep, discard } = when_full else {
            return Ok(None);
        };
        let keep = match keep {
            Keep::Nothing => 0,
            Keep::Tokens(tokens) => *tokens,
            Keep::Beginning(beginning) => {
                let beginning = beginning.tokenize(vocab)?;
                beginning
                    .iter()
                    .zip(prompt)
                    .take_while(|(a, b)| a == b)
                    .count()
            }
            Keep::Prompt => prompt.len(),
        };
        let begins = vocab.bos().is_some_and(|bos| prompt.first() == Some(&bos));
        let keep = keep.max(usize::from(begins)).min(prompt.len());
        if *discard == Some(0) || keep.saturating_add(2) > context {
            return Err(Error::NothingToShift { keep, context });
        }
        Ok(Some(Self {
            keep,
            discard: *discard,
        }))
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

#[cfg(test)]
mod tests {
    use super::Shifting;

    #[test]
    fn half_of_what_is_not_kept_is_forgotten() {
        let half = Shifting {
            keep: 10,
            discard: None,
        };
        assert_eq!(half.discard(110, 0), 50);
        assert_eq!(half.discard(12, 0), 1);
        assert_eq!([11, 10, 3].map(|tokens| half.discard(tokens, 0)), [0; 3]);
    }

    #[test]
    fn one_token_after_the_kept_ones_always_stays() {
        let many = Shifting {
            keep: 4,
            discard: Some(100),
        };
        assert_eq!(many.discard(50, 0), 45);
        assert_eq!(many.discard(200, 0), 100);
    }

    #[test]
    fn what_others_hold_too_goes_besides() {
        let half = Shifting {
            keep: 10,
            discard: None,
        };
        assert_eq!(half.discard(110, 5), 50);
        assert_eq!(half.discard(110, 60), 50 + 25);
        assert_eq!(half.discard(110, 109), 0);
    }
}
