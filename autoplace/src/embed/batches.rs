//! Which texts are computed together.

use std::ops::Range;

/// What one computation holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) tokens: usize,
    pub(super) texts: usize,
}

/// Texts of these lengths, in their order, as many at once as there is room for. None may be longer than the room.
pub(super) fn batches(lengths: &[usize], room: Room) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut begin, mut tokens) = (0, 0_usize);
    for (index, &length) in lengths.iter().enumerate() {
        let texts = index - begin;
        let fits = tokens.saturating_add(length) <= room.tokens && texts < room.texts;
        if texts > 0 && !fits {
            batches.push(begin..index);
            (begin, tokens) = (index, 0);
        }
        tokens = tokens.saturating_add(length);
    }
    if begin < lengths.len() {
        batches.push(begin..lengths.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::{Room, batches};
    use proptest::prelude::*;

    #[test]
    fn texts_share_a_computation_until_tokens_or_sequences_run_out() {
        let room = Room {
            tokens: 10,
            texts: 3,
        };
        assert_eq!(batches(&[], room), []);
        assert_eq!(batches(&[10, 10], room), [0..1, 1..2]);
        assert_eq!(batches(&[4, 6, 1], room), [0..2, 2..3]);
        assert_eq!(batches(&[1, 1, 1, 1], room), [0..3, 3..4]);
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_batch_in_its_order_and_no_batch_could_take_the_next(
            lengths in prop::collection::vec(1_usize..50, 0..100),
            tokens in 50_usize..200,
            texts in 1_usize..9,
        ) {
            let batches = batches(&lengths, Room { tokens, texts });
            let all: Vec<usize> = batches.iter().cloned().flatten().collect();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for batch in &batches {
                let sum: usize = lengths[batch.clone()].iter().sum();
                prop_assert!(sum <= tokens && batch.len() <= texts);
                if let Some(next) = lengths.get(batch.end) {
                    prop_assert!(sum + next > tokens || batch.len() == texts);
                }
            }
        }
    }
}
