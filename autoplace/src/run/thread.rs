//! Starts the threads that compute texts, waits for their results, and stops them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::decode::error::Error;
use crate::load::AbortHandle;
use crate::sync::lock;
use crate::worker::Word;

thread_local! {
    static NOTIFY: Arc<Notify> = Arc::default();
}

/// Polls until the answer is ready, and returns the answer. The thread sleeps between two polls.
pub(crate) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    // If this thread computes the answer itself, it is ready at once, and no waker is needed.
    if let Poll::Ready(answer) = poll(&mut Context::from_waker(Waker::noop())) {
        return answer;
    }
    // While the thread ends, its thread-local value no longer exists.
    let notify = NOTIFY.try_with(Arc::clone).unwrap_or_default();
    let waker = Waker::from(Arc::clone(&notify));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = poll(&mut context) {
            return answer;
        }
        notify.wait();
    }
}

pub(crate) fn spawn(name: Word, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map_err(|error| Error::Thread { name, reason: error.to_string() })
}

/// Wakes a sleeping thread when there is work.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    is_notified: Mutex<bool>,
    condvar: Condvar,
}

impl Notify {
    pub(crate) fn notify(&self) {
        *lock(&self.is_notified) = true;
        self.condvar.notify_one();
    }

    /// Sleeps until a notification, or returns at once if one has come since the last call.
    pub(crate) fn wait(&self) {
        let is_notified = self.condvar.wait_while(lock(&self.is_notified), |is_notified| !*is_notified);
        *is_notified.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

/// A running thread, for which any number of threads may wait.
#[derive(Debug)]
pub(crate) struct RunningThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    ended: Arc<Ended>,
}

/// The end of a thread, for the threads that wait for it.
#[derive(Debug, Default)]
struct Ended {
    is_so: Mutex<bool>,
    changed: Condvar,
}

/// Marks the thread as ended when dropped, even after a panic.
struct EndsThread(Arc<Ended>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        *lock(&self.0.is_so) = true;
        self.0.changed.notify_all();
    }
}

impl RunningThread {
    pub(crate) fn spawn(name: Word, run: impl FnOnce() + Send + 'static) -> Result<Self, Error> {
        let ended = Arc::new(Ended::default());
        let ends = EndsThread(Arc::clone(&ended));
        let handle = spawn(name, move || {
            let _ends = ends;
            run();
        })?;
        Ok(Self { handle: Mutex::new(Some(handle)), ended })
    }

    /// Waits for the end of the thread. If it is called on that thread itself, it returns at once.
    pub(crate) fn join(&self) {
        let mut handle = lock(&self.handle);
        // The last handle of an engine may be in a waker of the application, which the engine's own thread may drop.
        let is_other = |handle: &mut JoinHandle<()>| handle.thread().id() != thread::current().id();
        if let Some(handle) = handle.take_if(is_other) {
            // If the thread panicked, the callers have already received the error.
            let _ = handle.join();
        }
    }

    /// Waits for the end of the thread, but at most for `time`. Returns whether the thread has ended.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let is_so = lock(&self.ended.is_so);
        let waited = self.ended.changed.wait_timeout_while(is_so, time, |is_so| !*is_so);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The guard of a thread that computes texts. When the guard is dropped, it cancels the texts and waits until the
/// thread has ended, so that the model's context is free.
#[derive(Debug)]
pub(crate) struct AbortAndJoin {
    /// Stops the present computation.
    abort: AbortHandle,
    /// Cancels all texts, so that the thread ends.
    cancel: AbortHandle,
    thread: RunningThread,
}

impl AbortAndJoin {
    pub(crate) fn new(abort: AbortHandle, cancel: AbortHandle, thread: RunningThread) -> Self {
        Self { abort, cancel, thread }
    }

    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    pub(crate) fn thread(&self) -> &RunningThread {
        &self.thread
    }
}

impl Drop for AbortAndJoin {
    fn drop(&mut self) {
        self.cancel.abort();
        self.thread.join();
    }
}
