//! Which texts have a sequence of the context, and which wait: first come, first served, as far as there is room. No
//! text ends for lack of room: the one that came last gives up its place and waits again.

use crate::generate::context::Room;
use crate::generate::sequence::Sequence;

/// What the order needs to know of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stand {
    /// Its turn: the lower, the earlier.
    pub(super) arrival: u64,
    /// Tokens so far, its prompt included.
    len: usize,
    /// The most tokens that it can have.
    limit: usize,
}

impl Stand {
    pub(super) fn of(sequence: &Sequence) -> Self {
        let limit = sequence.prompt.saturating_add(sequence.limits.max_tokens);
        Self { arrival: sequence.id.0, len: sequence.len(), limit }
    }
}

/// Whether the first text that waits may join those that run.
pub(super) fn may_join(room: Room, running: impl ExactSizeIterator<Item = Stand>, next: Stand) -> bool {
    let n = running.len();
    let taken = running.map(|it| reserve(room, it)).sum::<usize>();
    let fits = taken.saturating_add(reserve(room, next)) <= room.all || !shares_cells(room);
    n == 0 || (n < room.sequences && fits)
}

/// The text that must make room before the next step, in which every text may get a token; `None` if there is
/// room for all.
pub(super) fn too_many(room: Room, running: impl ExactSizeIterator<Item = Stand> + Clone) -> Option<u64> {
    let taken: usize = running.clone().map(|it| it.len + 1).sum();
    if !shares_cells(room) || running.len() < 2 || taken <= room.all {
        return None;
    }
    running.map(|it| it.arrival).max()
}

/// Whether all texts take what they need from one lot of cells (`kv_unified`).
fn shares_cells(room: Room) -> bool {
    room.each.saturating_mul(room.sequences) > room.all
}

/// Tokens to expect of a text: the most that it can have, but no more than an even share of the context or an eighth
/// more than it has, whichever is more.
fn reserve(room: Room, text: Stand) -> usize {
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

    fn stand(arrival: u64, len: usize, limit: usize) -> Stand {
        Stand { arrival, len, limit }
    }

    #[test]
    fn a_text_joins_while_there_is_room_for_what_it_asked_for() {
        let shared = room(1000, 4, true);
        let running = || [stand(0, 300, 600)].into_iter();
        assert!(may_join(shared, running(), stand(1, 100, 400)));
        // An eighth more than it has.
        assert!(!may_join(shared, running(), stand(1, 700, 5000)));
        assert!(may_join(shared, [].into_iter(), stand(1, 990, 5000)));
        let own = room(1000, 4, false);
        let full = |n| std::iter::repeat_n(stand(0, 249, 250), n);
        assert!(may_join(own, full(3), stand(9, 240, 250)));
        assert!(!may_join(own, full(4), stand(9, 1, 2)));
    }

    proptest! {
        /// Steps as the engine takes them, without a model: every text comes to its end, and none that runs finds
        /// its place taken. A text: when it comes, its prompt, its answer.
        #[test]
        fn every_text_ends_and_none_for_lack_of_room(
            lives in prop::collection::vec((0usize..40, 1usize..60, 1usize..80), 1..20),
            all in 64usize..200,
            sequences in 1usize..5,
            is_shared: bool,
        ) {
            let room = room(all, sequences, is_shared);
            let mut running: Vec<Stand> = Vec::new();
            let mut waiting: Vec<Stand> = Vec::new();
            let mut ended = 0;
            // Those that do not fit are refused before.
            let lives: Vec<_> = lives.into_iter().filter(|it| it.1 < room.each).collect();
            for step in 0..20_000 {
                for (arrival, (comes, prompt, answer)) in (0..).zip(&lives) {
                    if *comes == step {
                        waiting.push(stand(arrival, *prompt, prompt + answer));
                    }
                }
                waiting.sort_by_key(|it| it.arrival);
                while waiting.first().is_some_and(|next| may_join(room, running.iter().copied(), *next)) {
                    running.push(waiting.remove(0));
                }
                while let Some(last) = too_many(room, running.iter().copied()) {
                    waiting.extend(running.extract_if(.., |it| it.arrival == last));
                }
                prop_assert!(running.len() <= sequences);
                let mut taken: usize = running.iter().map(|it| it.len).sum();
                let many = running.len() > 1;
                running.retain_mut(|it| {
                    let is_full = it.len >= room.each || taken >= room.all;
                    assert!(!is_full || !many || it.len >= room.each, "no room for a text that runs");
                    it.len += 1;
                    let is_over = is_full || it.len >= it.limit;
                    // The last token needs no place.
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
