//! Pieces of one text on their way from the thread that computes to whoever reads: a queue whose writer learns when it
//! is far enough ahead, and whose reader is a thread or a task.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// A queue whose writer is full when the reader has `ahead` items to read, and is woken when half of them are read. It
/// may write all the same.
pub(super) fn channel<T>(ahead: usize, writer: Waker) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue { items: VecDeque::new(), unread: 0, reader: None, is_written: true }),
        is_wanted: AtomicBool::new(true),
        ahead: ahead.max(1),
        writer,
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

#[derive(Debug)]
struct Shared<T> {
    queue: Mutex<Queue<T>>,
    /// Whether the reader wants more.
    is_wanted: AtomicBool,
    ahead: usize,
    writer: Waker,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    /// Items that the reader has not read, those included that are on their way to it.
    unread: usize,
    reader: Option<Waker>,
    /// Whether there is somebody to write.
    is_written: bool,
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unread(&self) -> usize {
        self.queue().unread
    }

    fn cancel(&self) {
        self.is_wanted.store(false, Ordering::Release);
        self.writer.wake_by_ref();
    }
}

/// The writer's end. The reader learns when it is dropped.
#[derive(Debug)]
pub(super) struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Writes an item. Where nobody reads it is lost.
    pub(super) fn send(&self, item: T) {
        if let Some(reader) = self.put(item) {
            reader.wake();
        }
    }

    /// The same, for who holds a lock: the reader is to be woken once that is free.
    pub(super) fn put(&self, item: T) -> Option<Waker> {
        let mut queue = self.0.queue();
        queue.items.push_back(item);
        queue.unread += 1;
        queue.reader.take()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        !self.0.is_wanted.load(Ordering::Acquire)
    }

    /// Whether the reader has enough to read.
    pub(super) fn is_full(&self) -> bool {
        self.0.unread() >= self.0.ahead
    }

    /// Whether the reader has read half of it, of which it wakes the writer.
    pub(super) fn is_drained(&self) -> bool {
        self.0.unread() <= self.0.ahead / 2
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_written = false;
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// The reader's end. The writer is woken when it is dropped.
#[derive(Debug)]
pub(super) struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    /// The next item; `None` when all are read and nobody writes.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let item = self.poll_unread(context);
        if matches!(item, Poll::Ready(Some(_))) {
            self.has_read(1);
        }
        item
    }

    /// The same for a reader in another process, which has not [read](Self::has_read) the item yet.
    pub(super) fn poll_unread(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = self.0.queue();
        if let Some(item) = queue.items.pop_front() {
            return Poll::Ready(Some(item));
        }
        if !queue.is_written {
            return Poll::Ready(None);
        }
        let before = queue.reader.replace(context.waker().clone());
        // Nobody knows what a waker does when it is dropped.
        drop(queue);
        drop(before);
        Poll::Pending
    }

    /// So many items are read.
    pub(super) fn has_read(&self, items: usize) {
        let (mut queue, half) = (self.0.queue(), self.0.ahead / 2);
        let before = queue.unread;
        queue.unread = before.saturating_sub(items);
        let has_read_half = before > half && queue.unread <= half;
        drop(queue);
        if has_read_half {
            self.0.writer.wake_by_ref();
        }
    }

    /// Wants no more. What is there can still be read.
    pub(super) fn cancel(&self) {
        self.0.cancel();
    }

    /// The same from elsewhere.
    pub(super) fn canceller(&self) -> impl Fn() + Send + Sync + use<T>
    where
        T: Send,
    {
        let shared = Arc::clone(&self.0);
        move || shared.cancel()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        !self.0.is_wanted.load(Ordering::Acquire)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.cancel();
        let mut queue = self.0.queue();
        let unread = std::mem::take(&mut queue.items);
        let reader = queue.reader.take();
        drop(queue);
        drop((unread, reader));
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static UNPARK: Waker = waker();
}

fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Asks until there is an answer. Between two questions the thread sleeps, until it is woken.
pub(crate) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    // Where the thread ends, its own are gone already.
    let waker = UNPARK.try_with(Waker::clone).unwrap_or_else(|_| waker());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = poll(&mut context) {
            return answer;
        }
        thread::park();
    }
}

/// What a thread listens for that has several things to do: whoever has something for it rings.
#[derive(Debug, Default)]
pub(super) struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rings.notify_one();
    }

    /// Sleeps until it rings. Returns at once if it has rung since the last time.
    pub(super) fn wait(&self) {
        let has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let mut has_rung =
            self.rings.wait_while(has_rung, |has_rung| !*has_rung).unwrap_or_else(PoisonError::into_inner);
        *has_rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::generate::channel::block_on;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_writer_is_woken_when_half_is_read_and_when_nobody_reads() {
        let woken = Arc::new(Count::default());
        let (sender, mut receiver) = channel(4, Waker::from(Arc::clone(&woken)));
        for item in 0..4 {
            assert!(!sender.is_full());
            sender.send(item);
        }
        assert!(sender.is_full());
        let expected = [(0, false, 0), (1, true, 1), (2, true, 1)];
        for (item, is_drained, times) in expected {
            assert_eq!(block_on(|context| receiver.poll_next(context)), Some(item));
            assert_eq!(sender.is_drained(), is_drained);
            assert_eq!(woken.0.load(Ordering::Relaxed), times);
        }
        drop(receiver);
        assert!(sender.is_abandoned());
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        sender.send(9);
    }

    #[test]
    fn the_reader_gets_everything_and_then_the_end() {
        let (sender, mut receiver) = channel(2, Waker::noop().clone());
        let writer = thread::spawn(move || {
            for item in 0..1000 {
                sender.send(item);
            }
        });
        let items = std::iter::from_fn(|| block_on(|context| receiver.poll_next(context)));
        assert!(items.eq(0..1000));
        writer.join().unwrap();
        assert_eq!(block_on(|context| receiver.poll_next(context)), None);
    }

    #[test]
    fn a_ring_that_comes_first_is_not_lost() {
        let bell = Arc::new(Bell::default());
        bell.ring();
        bell.wait();
        let ringing = Arc::clone(&bell);
        let other = thread::spawn(move || Waker::from(ringing).wake());
        bell.wait();
        other.join().unwrap();
    }

    #[test]
    fn a_thread_sleeps_until_the_answer_is_there() {
        let mut questions = 0;
        let answer = block_on(|context| {
            questions += 1;
            let waker = context.waker().clone();
            if questions < 3 {
                thread::spawn(move || waker.wake());
                return Poll::Pending;
            }
            Poll::Ready(questions)
        });
        assert_eq!(answer, 3);
    }
}
