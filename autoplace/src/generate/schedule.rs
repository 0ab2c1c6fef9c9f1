//! What a step computes: the texts of one set of adapters, since llama.cpp computes a batch with one, and the same
//! number of tokens of each of their prompts.

use super::sequence::Sequence;
use crate::load::Scales;

/// Batches that a set computes before another one's turn, where one waits: a change has the compute buffers reserved
/// anew, which took as long as one and a half tokens of the demo model (docs/adapters.md).
const BATCHES: u32 = 8;

/// The set of adapters that is computed with.
#[derive(Debug, Default)]
pub(super) struct AdapterTurns {
    current: Scales,
    /// Batches that it may still compute while others wait.
    left: u32,
}

impl AdapterTurns {
    /// Chooses the set of the next batch: the one at hand until it has had its turn, then that of the text that
    /// has waited longest.
    pub(super) fn next(&mut self, sequences: &mut [Sequence]) -> &Scales {
        // A text that is paused takes no turn.
        let mut waiting = sequences.iter().filter(|it| it.wanted() > 0);
        let is_wanted = waiting.clone().any(|it| it.scales == self.current);
        let others_wait = waiting.any(|it| it.scales != self.current);
        if is_wanted && (!others_wait || self.left > 0) {
            self.left = self.left.saturating_sub(u32::from(others_wait));
            return &self.current;
        }
        // Of several that have waited as long, the first.
        let waiting = sequences.iter().filter(|it| it.wanted() > 0);
        let longest = waiting.clone().map(|it| it.turn.turns_waited).max();
        let mut next = waiting.filter(|it| Some(it.turn.turns_waited) == longest);
        if let Some(next) = next.next() {
            self.current = next.scales.clone();
        }
        self.left = BATCHES - 1;
        for sequence in sequences {
            sequence.count_turn(&self.current);
        }
        &self.current
    }
}

/// A prompt that asks for its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asking {
    /// Tokens that are not computed yet.
    pub(super) wanted: usize,
    /// Tokens that it gets in this step.
    pub(super) given: usize,
    /// The last step in which it got a token that not all could get.
    pub(super) favoured: u64,
}

impl Asking {
    pub(super) fn new(wanted: usize, favoured: u64) -> Self {
        Self { wanted, given: 0, favoured }
    }
}

/// Gives every prompt the same number of tokens, and what those leave who want fewer to the others. What is left when
/// there is no token for each goes to those who have waited for such a one the longest.
pub(super) fn share(asking: &mut [Asking], tokens: usize, step: u64) {
    let mut left = tokens;
    loop {
        let open = asking.iter().filter(|it| it.given < it.wanted).count();
        if open == 0 {
            return;
        }
        let each = left / open;
        if each == 0 {
            break;
        }
        for it in &mut *asking {
            let more = each.min(it.wanted - it.given);
            it.given += more;
            left -= more;
        }
    }
    for _ in 0..left {
        let open = asking.iter_mut().filter(|it| it.given < it.wanted);
        // In one step nobody gets two of them: there are fewer than prompts.
        let Some(next) = open.min_by_key(|it| (it.favoured == step, it.favoured)) else {
            return;
        };
        next.given += 1;
        next.favoured = step;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn given(asking: &[Asking]) -> Vec<usize> {
        asking.iter().map(|it| it.given).collect()
    }

    #[test]
    fn what_a_short_prompt_leaves_goes_to_the_others() {
        let mut asking = [100, 4, 100].map(|wanted| Asking::new(wanted, 0));
        share(&mut asking, 64, 1);
        assert_eq!(given(&asking), [30, 4, 30]);
    }

    #[test]
    fn a_single_token_goes_round() {
        let mut favoured = [0; 3];
        for (step, expected) in (1..).zip([0, 1, 2, 0, 1, 2]) {
            let mut asking = favoured.map(|favoured| Asking::new(50, favoured));
            share(&mut asking, 1, step);
            let got = asking.iter().position(|it| it.given == 1);
            assert_eq!(got, Some(expected));
            favoured = asking.map(|it| it.favoured);
        }
    }

    proptest! {
        #[test]
        fn all_is_given_and_nobody_gets_more_than_another_who_wants_more(
            wanted in prop::collection::vec((2usize..400, 0u64..9), 0..20),
            tokens in 0usize..600,
        ) {
            let mut asking: Vec<_> = wanted.iter().map(|&(wanted, at)| Asking::new(wanted, at)).collect();
            share(&mut asking, tokens, 10);
            let all: usize = asking.iter().map(|it| it.wanted).sum();
            prop_assert_eq!(given(&asking).iter().sum::<usize>(), all.min(tokens));
            let most = asking.iter().map(|it| it.given).max().unwrap_or(0);
            for it in &asking {
                prop_assert!(it.given == it.wanted || it.given + 1 >= most, "{asking:?}");
                prop_assert!(it.given <= it.wanted);
            }
        }

        /// However the others come and go.
        #[test]
        fn no_prompt_waits_longer_than_there_are_others(
            steps in prop::collection::vec((1usize..4, prop::collection::vec(any::<bool>(), 7)), 20..60),
        ) {
            // The first wants tokens all the time; others take the places of those who leave.
            let mut favoured = [0u64; 8];
            let mut waited = 0;
            for (step, (tokens, leave)) in (1..).zip(steps) {
                let mut asking = favoured.map(|favoured| Asking::new(1000, favoured));
                share(&mut asking, tokens, step);
                waited = if asking[0].given > 0 { 0 } else { waited + 1 };
                prop_assert!(waited < 8, "step {step}");
                favoured = asking.map(|it| it.favoured);
                for (other, leave) in favoured[1..].iter_mut().zip(leave) {
                    if leave {
                        *other = step;
                    }
                }
            }
        }
    }
}
