//! Which blocks a graph needs for its buffers to be those of the whole model: of blocks that repeat, as many as it takes until the
//! allocator repeats itself too.
//!
//! That it does is not taken for granted: it is looked at in the same state at two places, one cycle apart, just before
//! the blocks that are left out. What follows a state depends on nothing else, so that they would have led to it once more.

/// Periods after which the allocator is to be in the same state again. Streams of activations take turns between two places.
const CYCLE: usize = 2;
/// Periods that are kept before that cycle, in which the allocator finds its rhythm: usually, and where that was not enough.
pub(super) const SETTLING: [usize; 2] = [2, 7];
/// Blocks of the longest pattern: windows repeat every 2 to 6 blocks, mixed quantisations every 3.
const LONGEST: usize = 8;

/// Some blocks of a model.
#[derive(Debug, Clone, Default)]
pub(super) struct Selection {
    /// The blocks, in order: first and last are always among them.
    pub(super) blocks: Vec<usize>,
    /// Places in `blocks` before which the allocator must be in the same state.
    pub(super) checks: Vec<(usize, usize)>,
}

impl Selection {
    /// The places of all checks, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.checks.iter().flat_map(|&(a, b)| [a, b])
    }

    /// Chooses all of `n` blocks.
    pub(super) fn all(&mut self, n: usize) {
        self.checks.clear();
        self.blocks.clear();
        self.blocks.extend(0..n);
    }

    /// Chooses those of `n` blocks that stand for all, if the allocator finds its rhythm in `settling` periods; `same` tells
    /// whether two blocks are alike.
    pub(super) fn representative(
        &mut self,
        n: usize,
        settling: usize,
        same: impl Fn(usize, usize) -> bool,
    ) {
        let before = settling + CYCLE;
        self.checks.clear();
        self.blocks.clear();
        let mut at = 0;
        while at < n {
            let (mut run, mut period, mut saved) = (1, 1, 0);
            for candidate in 1..=LONGEST.min(n - at) {
                let repeats = (at..n - candidate).take_while(|&i| same(i, i + candidate));
                let length = candidate + repeats.count();
                // At least one follows what is left out.
                let spare = (length / candidate).saturating_sub(before + 1);
                let out = (spare - spare % CYCLE) * candidate;
                if out > saved {
                    (run, period, saved) = (length, candidate, out);
                }
            }
            if saved > 0 {
                let first = self.blocks.len();
                let cut = first + before * period;
                self.checks.push((cut - CYCLE * period, cut));
                self.blocks.extend(at..at + before * period);
                at += before * period + saved;
                run -= before * period + saved;
            }
            self.blocks.extend(at..at + run);
            at += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::Selection;

    fn representative(blocks: &[u8]) -> Selection {
        let mut selection = Selection::default();
        selection.representative(blocks.len(), 1, |a, b| blocks[a] == blocks[b]);
        selection
    }

    #[test]
    fn of_equal_blocks_four_or_five_stay() {
        let even = representative(&[7; 80]);
        assert_eq!(even.blocks, [0, 1, 2, 79]);
        assert_eq!(even.checks, [(1, 3)]);
        let odd = representative(&[7; 81]);
        assert_eq!(odd.blocks, [0, 1, 2, 79, 80]);
        assert_eq!(representative(&[7; 4]).blocks, [0, 1, 2, 3]);
    }

    #[test]
    fn patterns_are_repetitions_too() {
        let blocks: Vec<u8> = (0..62).map(|i| u8::from(i % 6 == 5)).collect();
        let selection = representative(&blocks);
        assert_eq!(selection.blocks.len(), 62 - 6 * 6);
        assert_eq!(selection.checks, [(6, 18)]);
        let pattern: Vec<u8> = selection.blocks.iter().map(|&i| blocks[i]).collect();
        assert_eq!(pattern, blocks[..pattern.len()]);
    }

    #[test]
    fn blocks_that_differ_all_stay() {
        let blocks: Vec<u8> = (0..40).collect();
        let selection = representative(&blocks);
        assert_eq!(selection.blocks, (0..40).collect::<Vec<_>>());
        assert!(selection.checks.is_empty());
    }

    proptest! {
        #[test]
        fn first_and_last_stay_and_neighbours_are_those_of_the_model(
            blocks in prop::collection::vec(0u8..3, 1..120),
        ) {
            let kept = representative(&blocks).blocks;
            prop_assert_eq!(kept[0], 0);
            prop_assert_eq!(kept[kept.len() - 1], blocks.len() - 1);
            prop_assert!(kept.is_sorted_by(|a, b| a < b));
            for pair in kept.windows(2) {
                let there = blocks.windows(2).any(|two| two == [blocks[pair[0]], blocks[pair[1]]]);
                prop_assert!(there);
            }
        }
    }
}
