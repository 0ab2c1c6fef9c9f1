//! Chooses the set of adapters of a step. llama.cpp computes a batch with one set of adapters, so a step computes the
//! texts of one set.

use super::sequence::Sequence;
use crate::load::Scales;

/// The number of batches that one set of adapters gets in a row while another set waits. When the set changes,
/// llama.cpp reserves the compute buffers again. This took as long as one and a half tokens of the demo model
/// (docs/adapters.md).
const BATCHES: u32 = 8;

/// The set of adapters that has its turn.
#[derive(Debug, Default)]
pub(crate) struct AdapterTurns {
    current: Scales,
    /// The number of batches that the current set may still compute while other sets wait.
    left: u32,
}

impl AdapterTurns {
    /// Chooses the adapters of the next batch. The current set keeps its turn until the turn is over. The next set
    /// belongs to the text that has waited for the most turns. If several texts have waited equally long, the first of
    /// them is chosen.
    pub(crate) fn next(&mut self, sequences: &mut [Sequence]) -> &Scales {
        let is_wanted = sequences.iter().any(|sequence| sequence.scales == self.current);
        let others_wait = sequences.iter().any(|sequence| sequence.scales != self.current);
        if is_wanted && (!others_wait || self.left > 0) {
            self.left = self.left.saturating_sub(u32::from(others_wait));
            return &self.current;
        }
        if let Some(next) = sequences.iter().rev().max_by_key(|sequence| sequence.turns_waited) {
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
