//! Locks the standard library's mutexes, and waits for a thread within a time.

use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does this work in a thread with this name, and waits for it at most this long. If the work takes longer, for example
/// because a folder on the network does not answer, the result is `None`, and the thread ends by itself later.
pub(crate) fn within<T: Send + 'static>(
    time: Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (to, done) = mpsc::channel();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || drop(to.send(work()))).ok()?;
    let value = done.recv_timeout(time).ok()?;
    // The thread has only to end now. Whoever counts the threads of the process does not find it.
    drop(thread.join());
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_is_not_waited_for() {
        assert_eq!(within(Duration::from_secs(3600), "works", || 5), Some(5));
        let (release, held) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(1), "hangs", move || held.recv().is_ok());
        assert_eq!(hung, None);
        drop(release);
    }
}
