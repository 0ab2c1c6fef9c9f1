//! Decides for which texts there is room. The first waiting text is admitted when the cache has room for it. When the
//! cache runs out, the newest text gives up its sequence and waits again, so that no text ends for lack of room.

use crate::decode::context::Room;
use crate::decode::sequence::Sequence;

/// The facts about a text that decide its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueEntry {
    /// Order of arrival; lower is earlier.
    pub(super) arrival: u64,
    /// Number of tokens so far, including the prompt.
    len: usize,
    /// Maximum number of tokens of the text.
    limit: usize,
}

impl QueueEntry {
    pub(super) fn new(sequence: &Sequence) -> Self {
        let limit = sequence.prompt.saturating_add(sequence.limits.max_tokens);
        Self { arrival: sequence.id.0, len: sequence.len(), limit }
    }
}

/// Whether the waiting text `next` may join the running texts. Room for the waiting text `prepared` stays free: it is
/// being restored, and would never join if later texts took its cells. It does not keep a text from running alone.
pub(super) fn may_join(
    room: Room,
    running: impl ExactSizeIterator<Item = QueueEntry>,
    prepared: Option<QueueEntry>,
    next: QueueEntry,
) -> bool {
    let n = running.len();
    let taken = running.chain(prepared).map(|text| reserve(room, text)).sum::<usize>();
    let fits = taken.saturating_add(reserve(room, next)) <= room.all || !shares_cells(room);
    n == 0 || (n < room.sequences && fits)
}

/// The arrival number of the text that must be suspended before the next step; `None` when each text has room for one
/// more token.
pub(super) fn too_many(room: Room, running: impl ExactSizeIterator<Item = QueueEntry> + Clone) -> Option<u64> {
    let taken: usize = running.clone().map(|text| text.len + 1).sum();
    if !shares_cells(room) || running.len() < 2 || taken <= room.all {
        return None;
    }
    running.map(|text| text.arrival).max()
}

/// Whether all texts share one pool of cells (`kv_unified`).
fn shares_cells(room: Room) -> bool {
    room.each.saturating_mul(room.sequences) > room.all
}

/// Expected number of tokens of a text: an even share of the context, or an eighth more than its present length if that
/// is larger. The number is at most the limit of the text and of its sequence.
fn reserve(room: Room, text: QueueEntry) -> usize {
    let share = room.all / room.sequences.max(1);
    share.max(text.len.saturating_add(text.len / 8).saturating_add(1)).min(text.limit).min(room.each)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn room(all: usize, sequences: usize, is_shared: bool) -> Room {
        Room { each: if is_shared { all } else { all / sequences }, all, sequences }
    }

    fn entry(arrival: u64, len: usize, limit: usize) -> QueueEntry {
        QueueEntry { arrival, len, limit }
    }

    #[test]
    fn a_text_joins_while_there_is_room_for_its_expected_length() {
        let shared = room(1000, 4, true);
        let running = || [entry(0, 300, 600)].into_iter();
        assert!(may_join(shared, running(), None, entry(1, 100, 400)));
        // The reserve is an eighth of the present length.
        assert!(!may_join(shared, running(), None, entry(1, 700, 5000)));
        assert!(may_join(shared, [].into_iter(), None, entry(1, 990, 5000)));
        let own = room(1000, 4, false);
        let full = |n| std::iter::repeat_n(entry(0, 249, 250), n);
        assert!(may_join(own, full(3), None, entry(9, 240, 250)));
        assert!(!may_join(own, full(4), None, entry(9, 1, 2)));
    }

    #[test]
    fn texts_that_overtake_a_prepared_one_leave_it_its_room() {
        let shared = room(1000, 4, true);
        let small = entry(2, 200, 250);
        let prepared = || Some(entry(1, 600, 700));
        assert!(may_join(shared, [entry(0, 90, 100)].into_iter(), prepared(), entry(2, 100, 200)));
        assert!(!may_join(shared, [entry(0, 90, 100)].into_iter(), prepared(), small));
        assert!(may_join(shared, [entry(0, 90, 100)].into_iter(), None, small));
        // If nothing runs, a text joins in any case.
        assert!(may_join(shared, [].into_iter(), prepared(), entry(2, 900, 950)));
        // If each sequence has a cache of its own, each text has room.
        assert!(may_join(room(1000, 4, false), [entry(0, 90, 100)].into_iter(), prepared(), small));
    }

    proptest! {
        /// Simulates the engine's steps without a model. Each case is a list of texts (arrival step, prompt length,
        /// answer length).
        #[test]
        fn every_text_ends_and_none_for_lack_of_room(
            lives in prop::collection::vec((0usize..40, 1usize..60, 1usize..80), 1..20),
            all in 64usize..200,
            sequences in 1usize..5,
            is_shared: bool,
        ) {
            let room = room(all, sequences, is_shared);
            let mut running: Vec<QueueEntry> = Vec::new();
            let mut waiting: Vec<QueueEntry> = Vec::new();
            let mut ended = 0;
            // Such a prompt does not fit, so the engine refuses the request at once.
            let lives: Vec<_> = lives.into_iter().filter(|life| life.1 < room.each).collect();
            for step in 0..20_000 {
                for (arrival, (comes, prompt, answer)) in (0..).zip(&lives) {
                    if *comes == step {
                        waiting.push(entry(arrival, *prompt, prompt + answer));
                    }
                }
                waiting.sort_by_key(|text| text.arrival);
                while waiting.first().is_some_and(|next| may_join(room, running.iter().copied(), None, *next)) {
                    running.push(waiting.remove(0));
                }
                while let Some(last) = too_many(room, running.iter().copied()) {
                    waiting.extend(running.extract_if(.., |text| text.arrival == last));
                }
                prop_assert!(running.len() <= sequences);
                let mut taken: usize = running.iter().map(|text| text.len).sum();
                let many = running.len() > 1;
                running.retain_mut(|text| {
                    let is_full = text.len >= room.each || taken >= room.all;
                    assert!(!is_full || !many || text.len >= room.each, "no room for a text that runs");
                    text.len += 1;
                    let is_over = is_full || text.len >= text.limit;
                    // The last token needs no cell.
                    taken += usize::from(!is_over);
                    ended += usize::from(is_over);
                    !is_over
                });
                if ended == lives.len() {
                    return Ok(());
                }
            }
            prop_assert!(false, "{} of {} ended", ended, lives.len());
        }
    }
}
