//! A queue for the decoding of pictures and sounds. In: the files of all requests, in the order of their arrival. Out:
//! turns to decode. At most one file per processor is decoded at once, within a limit of memory.
//!
//! A request decodes one file at a time and queues again for its next one. So a request with a single picture need not
//! wait for all pictures of another request.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use super::error::ApiError;

/// Maximum bytes of heap that all decoders take together.
pub(super) const MAX_MEMORY: u64 = 1 << 30;
/// Maximum number of files that wait for their turn. The server refuses more.
const MAX_WAITING: usize = 64;
/// Maximum number of files that are decoded at once on machines with many processors, because they share the memory.
const MAX_AT_ONCE: usize = 8;

/// The queue of all requests of this process.
pub(super) static TURNS: LazyLock<Turns> = LazyLock::new(|| Turns::new(at_once(), MAX_WAITING, MAX_MEMORY));

/// Number of files that are decoded at once: one for each processor, within the maximum.
pub(super) fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_AT_ONCE)
}

/// Bytes of heap that each file may take if as many as possible are decoded at once.
pub(super) fn share() -> u64 {
    MAX_MEMORY / at_once() as u64
}

/// A queue that grants turns in the order in which they were requested.
pub(super) struct Turns {
    at_once: usize,
    max_waiting: usize,
    memory: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The numbers of the files that wait, in the order of their arrival.
    waiting: VecDeque<u64>,
    next: u64,
    running: usize,
    in_use: u64,
}

/// The turn of a file. Dropping it ends the turn.
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    bytes: u64,
}

impl Turns {
    fn new(at_once: usize, max_waiting: usize, memory: u64) -> Self {
        Self { at_once, max_waiting, memory, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for the turn of a file whose decoding takes at most `bytes` bytes of heap.
    ///
    /// # Errors
    ///
    /// Status 503 if too many files wait already.
    pub(super) fn take(&self, bytes: u64) -> Result<Turn<'_>, ApiError> {
        // A file that needs more than all memory gets its turn alone; the decoder's own limits refuse it.
        let bytes = bytes.min(self.memory);
        let mut state = self.lock();
        if state.waiting.len() >= self.max_waiting {
            let message = format!("{} images and sounds wait to be decoded: ask again later", state.waiting.len());
            return Err(ApiError::new(503, message).with_code("overloaded"));
        }
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        // Only the first file in the queue may begin, and the others wait behind it. Otherwise small pictures could
        // keep a large one waiting forever.
        let is_held_up = |state: &mut State| {
            state.waiting.front() != Some(&number)
                || state.running >= self.at_once
                || state.in_use + bytes > self.memory
        };
        let waited = self.changed.wait_while(state, is_held_up);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting.pop_front();
        state.running += 1;
        state.in_use += bytes;
        drop(state);
        // The next file in the queue may have room too.
        self.changed.notify_all();
        Ok(Turn { turns: self, bytes })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.running -= 1;
        state.in_use -= self.bytes;
        drop(state);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::Turns;

    /// The number of files that are being decoded, and their bytes.
    fn running(turns: &Turns) -> (usize, u64) {
        let state = turns.lock();
        (state.running, state.in_use)
    }

    /// Waits until `count` files wait.
    fn until_waiting(turns: &Turns, count: usize) {
        while turns.lock().waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn as_many_files_as_processors_have_their_turn_at_once_within_the_memory() {
        let turns = Turns::new(3, 8, 100);
        let first = turns.take(40).unwrap();
        let second = turns.take(40).unwrap();
        thread::scope(|scope| {
            // There is a place for a third file, but not enough memory.
            let third = scope.spawn(|| turns.take(40).map(drop));
            until_waiting(&turns, 1);
            assert_eq!(running(&turns), (2, 80));
            drop(first);
            third.join().unwrap().unwrap();
        });
        drop(second);
        // A file that needs more than all memory gets its turn alone.
        assert_eq!(turns.take(1000).unwrap().bytes, 100);
        assert_eq!(running(&turns), (0, 0));
    }

    #[test]
    fn turns_come_in_the_order_of_asking_and_a_large_file_is_not_passed_by_small_ones() {
        let turns = Turns::new(2, 8, 100);
        let before = turns.take(60).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (index, bytes) in [95, 10, 10].into_iter().enumerate() {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let turn = turns.take(bytes).unwrap();
                    order.lock().unwrap().push(index);
                    drop(turn);
                });
                until_waiting(turns, index + 1);
            }
            // A small file would fit beside the first one, but waits behind the large one.
            assert!(order.lock().unwrap().is_empty());
            drop(before);
        });
        assert_eq!(order.into_inner().unwrap()[0], 0);
    }

    #[test]
    fn a_file_beyond_the_queue_is_refused() {
        let turns = Turns::new(1, 2, 100);
        let first = turns.take(1).unwrap();
        thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| turns.take(1).map(drop)));
            until_waiting(&turns, 2);
            let refused = turns.take(1).map(drop).unwrap_err();
            assert_eq!((refused.status, refused.code), (503, Some("overloaded")));
            assert!(refused.message.starts_with("2 images and sounds wait"), "{refused}");
            drop(first);
            waiting.into_iter().for_each(|waiting| waiting.join().unwrap().unwrap());
        });
    }
}
