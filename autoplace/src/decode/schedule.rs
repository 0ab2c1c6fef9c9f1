//! Schedules the prompts of a step. llama.cpp computes a batch with one set of adapters, so a step computes the texts
//! of one set. Each prompt gets the same number of tokens, or the rest of a shorter prompt.

use super::sequence::Sequence;
use crate::load::Scales;

/// Batches of one set of adapters in a row while another set waits. A change of the set makes llama.cpp reserve the
/// compute buffers again, which took as long as one and a half tokens of the demo model (docs/adapters.md).
const BATCHES: u32 = 8;

/// The set of adapters whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct AdapterTurns {
    current: Scales,
    /// Batches that the current set may still compute while others wait.
    left: u32,
}

impl AdapterTurns {
    /// Chooses the adapters of the next batch. The current set keeps its turn until the turn is over. The next set is
    /// that of the text that has waited for the most turns; the first such text wins ties.
    pub(crate) fn next(&mut self, sequences: &mut [Sequence]) -> &Scales {
        let is_wanted = sequences.iter().any(|it| it.scales == self.current);
        let others_wait = sequences.iter().any(|it| it.scales != self.current);
        if is_wanted && (!others_wait || self.left > 0) {
            self.left = self.left.saturating_sub(u32::from(others_wait));
            return &self.current;
        }
        if let Some(next) = sequences.iter().rev().max_by_key(|it| it.turns_waited) {
            self.current = next.scales.clone();
        }
        self.left = BATCHES - 1;
        for sequence in sequences {
            let is_next = sequence.scales == self.current;
            sequence.turns_waited = if is_next { 0 } else { sequence.turns_waited.saturating_add(1) };
        }
        &self.current
    }
}

/// A prompt that needs a share of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asking {
    /// Tokens of the prompt that are not computed yet.
    pub(crate) wanted: usize,
    /// Tokens of the prompt in this step.
    pub(crate) given: usize,
}

impl Asking {
    pub(crate) fn new(wanted: usize) -> Self {
        Self { wanted, given: 0 }
    }

    fn is_open(&self) -> bool {
        self.given < self.wanted
    }
}

/// Gives every prompt the same number of tokens. Tokens that shorter prompts do not need go to the longer ones. When
/// there are fewer tokens than prompts, the prompts take turns from step to step.
pub(crate) fn share(asking: &mut [Asking], tokens: usize, step: usize) {
    let mut left = tokens;
    loop {
        let open = asking.iter().filter(|it| it.is_open()).count();
        if open == 0 {
            return;
        }
        let each = left / open;
        if each == 0 {
            let first = step % open;
            for (at, it) in asking.iter_mut().filter(|it| it.is_open()).enumerate() {
                it.given += usize::from((at + open - first) % open < left);
            }
            return;
        }
        for it in &mut *asking {
            let more = each.min(it.wanted - it.given);
            it.given += more;
            left -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_single_token_goes_round() {
        for (step, expected) in (0..).zip([0, 1, 2, 0, 1, 2]) {
            let mut asking = [Asking::new(50); 3];
            share(&mut asking, 1, step);
            assert_eq!(asking.iter().position(|it| it.given == 1), Some(expected));
        }
    }

    proptest! {
        #[test]
        fn all_is_given_and_nobody_gets_more_than_another_who_wants_more(
            wanted in prop::collection::vec(2usize..400, 0..20),
            tokens in 0usize..600,
            step in 0usize..100,
        ) {
            let mut asking: Vec<_> = wanted.iter().map(|&wanted| Asking::new(wanted)).collect();
            share(&mut asking, tokens, step);
            let all: usize = wanted.iter().sum();
            prop_assert_eq!(asking.iter().map(|it| it.given).sum::<usize>(), all.min(tokens));
            let most = asking.iter().map(|it| it.given).max().unwrap_or(0);
            for it in &asking {
                prop_assert!(it.given == it.wanted || it.given + 1 >= most, "{asking:?}");
                prop_assert!(it.given <= it.wanted);
            }
        }
    }
}
