//! Waiting on a thread for what a task would wait for: one way to be woken for both.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

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
        let mut has_rung = self
            .rings
            .wait_while(has_rung, |has_rung| !*has_rung)
            .unwrap_or_else(PoisonError::into_inner);
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
    use super::*;

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
