//! A queue for decoding pictures and sounds. In: the files of all requests, in the order of their arrival. Out:
//! permission to decode one file, called a turn. At most one file per processor is decoded at a time, and there is a
//! limit for the memory of all decoders.
//!
//! A request decodes one file at a time, and then joins the queue again for its next file. So a request with a single
//! picture need not wait for all pictures of another request.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use super::error::ApiError;

/// Maximum bytes of heap for all decoders together.
pub(super) const MAX_MEMORY: u64 = 1 << 30;
/// Maximum number of files that wait for their turn. The server refuses more.
const MAX_WAITING: usize = 64;
/// Maximum number of files that are decoded at once. It matters on machines with many processors, because all decoders
/// share the memory.
const MAX_AT_ONCE: usize = 8;

/// The queue for all requests of this process.
pub(super) static TURNS: LazyLock<Turns> = LazyLock::new(|| Turns::new(at_once(), MAX_WAITING, MAX_MEMORY));

/// How many files are decoded at once: one for each processor, up to the maximum.
pub(super) fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_AT_ONCE)
}

/// The bytes of heap that each file may use if the maximum number of files is decoded at once.
pub(super) fn share() -> u64 {
    MAX_MEMORY / at_once() as u64
}

/// A queue. It grants turns in the order in which they were requested.
pub(super) struct Turns {
    at_once: usize,
    max_waiting: usize,
    memory: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The numbers of the waiting files, in the order of their arrival.
    waiting: VecDeque<u64>,
    next: u64,
    running: usize,
    in_use: u64,
}

/// One file's turn. When it is dropped, the turn ends.
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
    /// Status 503 if too many files are waiting already.
    pub(super) fn take(&self, bytes: u64) -> Result<Turn<'_>, ApiError> {
        // If a file needs more than all of the memory, it gets its turn alone, and the decoder's own limits refuse it.
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
        // There may be room for the next file in the queue too.
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

    /// The number of files that are being decoded, and the bytes that they use together.
    fn running(turns: &Turns) -> (usize, u64) {
        let state = turns.lock();
        (state.running, state.in_use)
    }

    /// Waits until `count` files are in the queue.
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
            // A third file could be decoded at the same time, but there is not enough memory.
            let third = scope.spawn(|| turns.take(40).map(drop));
            until_waiting(&turns, 1);
            assert_eq!(running(&turns), (2, 80));
            drop(first);
            third.join().unwrap().unwrap();
        });
        drop(second);
        // If a file needs more than all of the memory, it gets its turn alone.
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
            // There would be room for a small file, but it waits behind the large one.
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
