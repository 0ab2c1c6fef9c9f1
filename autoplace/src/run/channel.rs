//! The channel that carries the pieces of one text from the computing thread to its reader, which may be a thread or a
//! task.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::load::AbortHandle;
use crate::sync::lock;

/// A queue that counts as full as soon as it has `ahead` items. The writer may nevertheless send more. `writer` is
/// called when half of the items have been read, when the reader cancels, and when the reader is dropped.
pub(crate) fn channel<T>(ahead: usize, writer: AbortHandle) -> (Sender<T>, Receiver<T>) {
    let queue = Queue { items: VecDeque::new(), ahead: ahead.max(1), reader: None, is_written: true, is_wanted: true };
    let queue = Arc::new(Mutex::new(queue));
    (Sender(Arc::clone(&queue)), Receiver { queue, writer })
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    ahead: usize,
    reader: Option<Waker>,
    /// Whether the writer still exists.
    is_written: bool,
    /// Whether the reader still wants items.
    is_wanted: bool,
}

/// The writer's end. After it is dropped, the reader gets `None` after the last item.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Mutex<Queue<T>>>);

impl<T> Sender<T> {
    pub(crate) fn send(&self, item: T) {
        self.put(item).into_iter().for_each(Waker::wake);
    }

    /// Sends an item without waking the reader. A caller that holds a lock wakes the reader after it has released the
    /// lock.
    pub(crate) fn put(&self, item: T) -> Option<Waker> {
        let mut queue = lock(&self.0);
        queue.items.push_back(item);
        queue.reader.take()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        !lock(&self.0).is_wanted
    }

    /// Whether the queue has at least `ahead` unread items.
    pub(crate) fn is_full(&self) -> bool {
        let queue = lock(&self.0);
        queue.items.len() >= queue.ahead
    }

    /// Whether at most half of `ahead` items are unread.
    pub(crate) fn is_drained(&self) -> bool {
        let queue = lock(&self.0);
        queue.items.len() <= queue.ahead / 2
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.is_written = false;
        let reader = queue.reader.take();
        drop(queue);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    queue: Arc<Mutex<Queue<T>>>,
    writer: AbortHandle,
}

impl<T> Receiver<T> {
    /// Polls for the next item; `None` if all items were read and the writer is gone.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = lock(&self.queue);
        if let Some(item) = queue.items.pop_front() {
            let is_drained = queue.items.len() == queue.ahead / 2;
            drop(queue);
            if is_drained {
                self.writer.abort();
            }
            return Poll::Ready(Some(item));
        }
        if !queue.is_written {
            return Poll::Ready(None);
        }
        let before = queue.reader.replace(context.waker().clone());
        // Dropping a waker runs foreign code, so the lock is released first.
        drop(queue);
        drop(before);
        Poll::Pending
    }

    /// Returns a handle that tells the sender to stop. Items that were already sent can still be read.
    pub(crate) fn canceller(&self) -> AbortHandle
    where
        T: Send + 'static,
    {
        let (queue, writer) = (Arc::clone(&self.queue), self.writer.clone());
        AbortHandle::new(move || {
            lock(&queue).is_wanted = false;
            writer.abort();
        })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        !lock(&self.queue).is_wanted
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.is_wanted = false;
        let unread = (std::mem::take(&mut queue.items), queue.reader.take());
        drop(queue);
        drop(unread);
        self.writer.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::run::thread::block_on;

    #[test]
    fn the_writer_is_called_when_half_is_read_and_when_nobody_reads() {
        let called = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&called);
        let writer = AbortHandle::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let (sender, mut receiver) = channel(4, writer);
        for item in 0..4 {
            assert!(!sender.is_full());
            sender.send(item);
        }
        assert!(sender.is_full());
        for (item, is_drained, times) in [(0, false, 0), (1, true, 1), (2, true, 1)] {
            assert_eq!(block_on(|context| receiver.poll_next(context)), Some(item));
            assert_eq!((sender.is_drained(), called.load(Ordering::Relaxed)), (is_drained, times));
        }
        receiver.canceller().abort();
        assert!(sender.is_abandoned() && receiver.is_cancelled());
        // Items that were already sent can still be read.
        assert_eq!(block_on(|context| receiver.poll_next(context)), Some(3));
        drop(receiver);
        assert_eq!(called.load(Ordering::Relaxed), 3);
        sender.send(9);
    }
}
