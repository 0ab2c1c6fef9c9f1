//! Whose turn it is: llama.cpp computes a batch with one set of adapters, so texts with other sets wait.

use crate::load::Scales;

use super::sequence::Sequence;

/// Batches that a set computes before another one's turn, where one waits: a change has the compute buffers reserved
/// anew, which took as long as one and a half tokens of the demo model (docs/adapters.md).
const BATCHES: u32 = 8;

/// The set of adapters that is computed with.
#[derive(Debug, Default)]
pub(super) struct Turns {
    current: Scales,
    /// Batches that it may still compute while others wait.
    left: u32,
}

impl Turns {
    /// Chooses the set of the next batch: the one at hand until it has had its turn, then that of the text that
    /// has waited longest.
    pub(super) fn next(&mut self, sequences: &mut [Sequence]) -> &Scales {
        // A text that is paused takes no turn.
        let mut waiting = sequences.iter().filter(|it| it.wanted() > 0);
        let is_wanted = waiting.clone().any(|it| *it.scales() == self.current);
        let others_wait = waiting.any(|it| *it.scales() != self.current);
        if is_wanted && (!others_wait || self.left > 0) {
            self.left = self.left.saturating_sub(u32::from(others_wait));
            return &self.current;
        }
        // Of several that have waited as long, the first.
        let waiting = sequences.iter().filter(|it| it.wanted() > 0);
        let longest = waiting.clone().map(Sequence::turns_waited).max();
        let mut next = waiting.filter(|it| Some(it.turns_waited()) == longest);
        if let Some(next) = next.next() {
            self.current = next.scales().clone();
        }
        self.left = BATCHES - 1;
        for sequence in sequences {
            sequence.told_whose_turn(&self.current);
        }
        &self.current
    }
}
