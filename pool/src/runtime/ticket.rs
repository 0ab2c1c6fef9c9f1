//! A place for one answer. A thread or a task waits for the answer.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(super) struct Ticket<T> {
    held: Mutex<Held<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Held<T> {
    answer: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for Ticket<T> {
    fn default() -> Self {
        Self { held: Mutex::new(Held { answer: None, waker: None }), arrived: Condvar::new() }
    }
}

impl<T> Ticket<T> {
    fn lock(&self) -> MutexGuard<'_, Held<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn answer(&self, answer: T) {
        let mut held = self.lock();
        held.answer = Some(answer);
        let waker = held.waker.take();
        drop(held);
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the answer, if it has arrived.
    pub(super) fn take(&self) -> Option<T> {
        self.lock().answer.take()
    }

    pub(super) fn wait(&self) -> T {
        let mut held = self.lock();
        loop {
            if let Some(answer) = held.answer.take() {
                return answer;
            }
            held = self.arrived.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<T> {
        let mut held = self.lock();
        match held.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                held.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
