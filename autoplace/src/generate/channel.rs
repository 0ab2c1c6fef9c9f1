//! Pieces of one text on their way from the thread that computes to whoever reads: a queue whose writer learns when it
//! is far enough ahead, and whose reader is a thread or a task.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A queue whose writer is full when the reader has `ahead` items to read, and is woken when half of them are read. It
/// may write all the same.
pub(super) fn channel<T>(ahead: usize, writer: Waker) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue {
            items: VecDeque::new(),
            reader: None,
            is_written: true,
        }),
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
    reader: Option<Waker>,
    /// Whether there is somebody to write.
    is_written: bool,
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> usize {
        self.queue().items.len()
    }
}

/// The writer's end. The reader learns when it is dropped.
#[derive(Debug)]
pub(super) struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Writes an item. Where nobody reads it is lost.
    pub(super) fn send(&self, item: T) {
        let mut queue = self.0.queue();
        queue.items.push_back(item);
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    pub(super) fn is_abandoned(&self) -> bool {
        !self.0.is_wanted.load(Ordering::Acquire)
    }

    /// Whether the reader has enough to read.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= self.0.ahead
    }

    /// Whether the reader has read half of it, of which it wakes the writer.
    pub(super) fn is_drained(&self) -> bool {
        self.0.len() <= self.0.ahead / 2
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
        let shared = &self.0;
        let mut queue = shared.queue();
        if let Some(item) = queue.items.pop_front() {
            let has_read_half = queue.items.len() == shared.ahead / 2;
            drop(queue);
            if has_read_half {
                shared.writer.wake_by_ref();
            }
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

    /// Wants no more. What is there can still be read.
    pub(super) fn cancel(&mut self) {
        self.0.is_wanted.store(false, Ordering::Release);
        self.0.writer.wake_by_ref();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::generate::wait::block_on;

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
        let writer = std::thread::spawn(move || {
            for item in 0..1000 {
                sender.send(item);
            }
        });
        let items = std::iter::from_fn(|| block_on(|context| receiver.poll_next(context)));
        assert!(items.eq(0..1000));
        writer.join().unwrap();
        assert_eq!(block_on(|context| receiver.poll_next(context)), None);
    }
}
