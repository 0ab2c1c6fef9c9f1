//! Who has a sequence of the context, and who waits: first come, first served, as far as there is room.
//!
//! In: the texts that run and the first that waits, as numbers. Out: what to do about them. A text is never ended for
//! lack of room: one that pauses for its reader, or the one that came last, gives its place up and waits again.

use crate::generate::context::Room;

/// A text as far as the order goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stand {
    /// Its turn: the lower, the earlier.
    pub(super) arrival: u64,
    /// Tokens so far, its prompt included.
    pub(super) len: usize,
    /// Tokens that it can come to.
    pub(super) limit: usize,
    /// It waits for its reader.
    pub(super) is_paused: bool,
}

/// Whether a text may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// There is room.
    Join,
    /// When this one of the running texts has made room.
    Suspend(usize),
    /// When a text has ended.
    Wait,
}

/// Whether the first that waits may join those that run.
pub(super) fn admit(room: Room, running: &[Stand], next: &Stand) -> Admission {
    let taken = running.iter().map(|it| reserve(room, it)).sum::<usize>();
    let fits = taken.saturating_add(reserve(room, next)) <= room.all || !shares_cells(room);
    if running.is_empty() || (running.len() < room.sequences && fits) {
        return Admission::Join;
    }
    match last_paused(running) {
        Some(paused) => Admission::Suspend(paused),
        None => Admission::Wait,
    }
}

/// Who is to make room before the next step, in which every text that does not pause may get a token; `None` if
/// there is room enough.
pub(super) fn too_many(room: Room, running: &[Stand]) -> Option<usize> {
    if !shares_cells(room) || running.len() < 2 {
        return None;
    }
    let taken: usize = running.iter().map(|it| it.len).sum();
    let more = running.iter().filter(|it| !it.is_paused).count();
    if taken.saturating_add(more) <= room.all {
        return None;
    }
    let last = (0..running.len()).max_by_key(|&at| running[at].arrival);
    last_paused(running).or(last)
}

/// Whether all texts take what they need from one lot of cells (`kv_unified`).
fn shares_cells(room: Room) -> bool {
    room.each.saturating_mul(room.sequences) > room.all
}

/// Tokens to count on for a text: all it can come to; where that is more, an even share of the context, or an eighth
/// more than it has.
fn reserve(room: Room, text: &Stand) -> usize {
    let share = room.all / room.sequences.max(1);
    let likely = share.max(text.len.saturating_add(text.len / 8).saturating_add(1));
    likely.min(text.limit).min(room.each)
}

fn last_paused(running: &[Stand]) -> Option<usize> {
    let paused = (0..running.len()).filter(|&at| running[at].is_paused);
    paused.max_by_key(|&at| running[at].arrival)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn room(all: usize, sequences: usize, is_shared: bool) -> Room {
        Room { each: if is_shared { all } else { all / sequences }, all, sequences }
    }

    fn stand(arrival: u64, len: usize, limit: usize) -> Stand {
        Stand { arrival, len, limit, is_paused: false }
    }

    #[test]
    fn a_text_joins_while_there_is_room_for_what_it_asked_for() {
        let shared = room(1000, 4, true);
        let running = [stand(0, 300, 600)];
        assert_eq!(admit(shared, &running, &stand(1, 100, 400)), Admission::Join);
        // An eighth more than it has.
        assert_eq!(admit(shared, &running, &stand(1, 700, 5000)), Admission::Wait);
        assert_eq!(admit(shared, &[], &stand(1, 990, 5000)), Admission::Join);
        let own = room(1000, 4, false);
        let full = [stand(0, 249, 250); 4];
        assert_eq!(admit(own, &full[..3], &stand(9, 240, 250)), Admission::Join);
        assert_eq!(admit(own, &full, &stand(9, 1, 2)), Admission::Wait);
    }

    #[test]
    fn a_text_that_pauses_makes_room_first() {
        let shared = room(100, 2, true);
        let mut running = [stand(0, 60, 100), stand(1, 40, 100)];
        assert_eq!(too_many(shared, &running), Some(1));
        running[0].is_paused = true;
        assert_eq!(too_many(shared, &running), Some(0));
        assert_eq!(admit(shared, &running, &stand(2, 1, 2)), Admission::Suspend(0));
        running[1].len = 39;
        assert_eq!(too_many(shared, &running), None);
    }

    /// A reader that stops reading now and then, and a text as it runs.
    #[derive(Debug, Clone)]
    struct Life {
        comes: usize,
        prompt: usize,
        answer: usize,
        reads: Vec<bool>,
    }

    fn life() -> impl Strategy<Value = Life> {
        let reads = prop::collection::vec(any::<bool>(), 5);
        (0usize..40, 1usize..60, 1usize..80, reads).prop_map(|(comes, prompt, answer, reads)| Life {
            comes,
            prompt,
            answer,
            reads,
        })
    }

    proptest! {
        /// Steps as the engine takes them, without a model: every text comes to its end, and none that runs finds
        /// its place taken.
        #[test]
        fn every_text_whose_reader_reads_ends_and_none_for_lack_of_room(
            lives in prop::collection::vec(life(), 1..20),
            all in 64usize..200,
            sequences in 1usize..5,
            is_shared: bool,
        ) {
            let room = room(all, sequences, is_shared);
            let mut running: Vec<Stand> = Vec::new();
            let mut waiting: Vec<Stand> = Vec::new();
            let mut ended = 0;
            // Those that do not fit are refused before.
            let lives: Vec<_> = lives.into_iter().filter(|it| it.prompt < room.each).collect();
            for step in 0..20_000 {
                for (arrival, it) in (0..).zip(&lives) {
                    if it.comes == step {
                        let limit = it.prompt + it.answer;
                        waiting.push(stand(arrival, it.prompt, limit));
                        waiting.sort_by_key(|it| it.arrival);
                    }
                }
                for it in running.iter_mut().chain(&mut waiting) {
                    let reads = &lives[it.arrival as usize].reads;
                    // Nobody stops for good.
                    it.is_paused = step < 500 && !reads[step / 7 % reads.len()];
                }
                while let Some(next) = waiting.iter().position(|it| !it.is_paused) {
                    match admit(room, &running, &waiting[next]) {
                        Admission::Join => running.push(waiting.remove(next)),
                        Admission::Suspend(at) => waiting.push(running.remove(at)),
                        Admission::Wait => break,
                    }
                    waiting.sort_by_key(|it| it.arrival);
                }
                while let Some(at) = too_many(room, &running) {
                    waiting.push(running.remove(at));
                    waiting.sort_by_key(|it| it.arrival);
                }
                prop_assert!(running.len() <= sequences);
                let mut taken: usize = running.iter().map(|it| it.len).sum();
                let many = running.len() > 1;
                running.retain_mut(|it| {
                    if it.is_paused {
                        return true;
                    }
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
