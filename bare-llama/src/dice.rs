//! Random tokens, as in llama-bench. They are the same in every process.

use llama_sys::raw;

/// A source of random tokens.
#[derive(Debug)]
pub(super) struct Dice {
    state: u64,
    n_vocab: u64,
    /// The token for the beginning of a text, if the vocabulary has one.
    first: Option<raw::llama_token>,
}

impl Dice {
    pub(super) fn new(n_vocab: i32, first: Option<raw::llama_token>) -> Self {
        Self { state: 1, n_vocab: u64::try_from(n_vocab).unwrap_or(0).max(1), first }
    }

    /// Returns the next token. If `begins` is true, it is the token for the beginning of a text, if there is one.
    pub(super) fn roll(&mut self, begins: bool) -> raw::llama_token {
        // Knuth's linear congruential generator (MMIX). The upper bits of its numbers are more random than the lower
        // bits.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = (self.state >> 33) % self.n_vocab;
        let first = self.first.filter(|_| begins);
        first.unwrap_or_else(|| i32::try_from(token).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn a_text_begins_with_the_token_of_its_vocabulary_and_goes_on_at_random() {
        let mut dice = Dice::new(50, Some(49));
        assert_eq!(dice.roll(true), 49);
        let rolls: Vec<i32> = (0..200).map(|_| dice.roll(false)).collect();
        assert!(rolls.iter().all(|token| (0..50).contains(token)));
        let kinds: std::collections::BTreeSet<i32> = rolls.iter().copied().collect();
        assert!(kinds.len() > 40, "{kinds:?}");
    }
}
