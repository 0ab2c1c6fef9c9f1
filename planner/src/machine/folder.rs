//! Folders that may not answer, such as a folder of a network share. In: work with the files of a folder. Out: its
//! result, or an error once the folder has not answered within a time.
//!
//! The operating system ends no call for a file of such a folder, so the work is done by a thread. If the folder does
//! not answer, the thread is left: it ends by itself once the folder answers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long a folder may take to answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The folders that do not answer.
static HUNG: Mutex<BTreeMap<PathBuf, Hung>> = Mutex::new(BTreeMap::new());

/// A folder that does not answer.
struct Hung {
    /// Number of threads that were left there.
    threads: usize,
    /// How long the first of them was waited for.
    waited: Duration,
}

fn hung() -> MutexGuard<'static, BTreeMap<PathBuf, Hung>> {
    HUNG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does this work with the files of `folder` in a thread, and waits for it at most [`ANSWER_WITHIN`].
///
/// If the folder does not answer in this time, the thread is left, and drops its result. Until it has ended, the folder
/// counts as one that does not answer: further work is not begun, so nobody waits a second time.
///
/// # Errors
///
/// The errors of the work; [`TimedOut`](io::ErrorKind::TimedOut), with the name of the folder, if the folder does not
/// answer; the system's error if it refuses a thread.
pub fn ask<T: Send + 'static>(folder: &Path, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    ask_within(ANSWER_WITHIN, folder, work)
}

/// Like [`ask`], with another time, for example because running texts wait meanwhile.
///
/// # Errors
///
/// Those of [`ask`].
pub fn ask_within<T: Send + 'static>(
    time: Duration,
    folder: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    FolderThread::new(folder).ask_within(time, work)
}

/// Like [`ask`], for work that must be done in any case, such as the removal of a lock: it is begun even if the folder
/// does not answer, and its thread then does it later.
pub fn tell(folder: &Path, work: impl FnOnce() + Send + 'static) {
    let time = if hung().contains_key(folder) { Duration::ZERO } else { ANSWER_WITHIN };
    if let Err(error) = FolderThread::new(folder).within(time, work) {
        tracing::debug!(%error, "not waited for");
    }
}

/// The error of a folder that has not answered within this time. [`ask`] returns it; others who wait for a folder can
/// use it too.
pub fn no_answer(folder: &Path, waited: Duration) -> io::Error {
    let words = format!("{}: the folder has not answered within {} s", folder.display(), waited.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, words)
}

/// Work in a folder. When it ends, the folder answers again, unless other threads were left there too.
struct Working {
    folder: PathBuf,
    is_left: Arc<AtomicBool>,
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut hung = hung();
        if self.is_left.load(Ordering::Relaxed)
            && let Some(of_folder) = hung.get_mut(&self.folder)
        {
            of_folder.threads -= 1;
            if of_folder.threads == 0 {
                hung.remove(&self.folder);
            }
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that works with the files of a folder, for somebody who asks the folder again and again. The thread starts
/// with the first work, and ends when this value is dropped. If the folder does not answer, the thread is left, and
/// later work gets another thread.
#[derive(Debug)]
pub struct FolderThread {
    folder: PathBuf,
    /// The thread, and the way to give it work.
    started: Option<(mpsc::Sender<Work>, JoinHandle<()>)>,
}

impl FolderThread {
    /// A thread for this folder. It is not started yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), started: None }
    }

    /// Like the function [`ask`], but in this thread.
    ///
    /// # Errors
    ///
    /// Those of the function [`ask`].
    pub fn ask<T: Send + 'static>(&mut self, work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        self.ask_within(ANSWER_WITHIN, work)
    }

    fn ask_within<T: Send + 'static>(
        &mut self,
        time: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if let Some(hung) = hung().get(&self.folder) {
            return Err(no_answer(&self.folder, hung.waited));
        }
        self.within(time, work)?
    }

    /// Does the work in the thread, and waits for it at most this long.
    fn within<T: Send + 'static>(
        &mut self,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (to, done) = mpsc::channel();
        let is_left = Arc::new(AtomicBool::new(false));
        let working = Working { folder: self.folder.clone(), is_left: Arc::clone(&is_left) };
        self.begin(Box::new(move || {
            let _working = working;
            let value = work();
            // The lock is held, so that whoever waits either receives the value, or has left the thread before.
            let sent = {
                let _hung = hung();
                to.send(value)
            };
            // A value that nobody wants any more may itself wait for the folder.
            drop(sent);
        }))?;
        let mut received = done.recv_timeout(time);
        if matches!(received, Err(RecvTimeoutError::Timeout)) {
            let mut hung = hung();
            received = done.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            });
            if matches!(received, Err(RecvTimeoutError::Timeout)) {
                is_left.store(true, Ordering::Relaxed);
                self.started = None;
                let of_folder = hung.entry(self.folder.clone()).or_insert(Hung { threads: 0, waited: time });
                of_folder.threads += 1;
                let is_first = of_folder.threads == 1;
                let error = no_answer(&self.folder, of_folder.waited);
                // The thread holds no lock when it drops its value.
                drop(done);
                drop(hung);
                if is_first {
                    tracing::warn!("{error}; until it answers, it is not used");
                }
                return Err(error);
            }
        }
        received.map_err(|_| {
            // The work has panicked, which ends the thread.
            self.end();
            io::Error::other(format!("{}: the work in the folder has failed", self.folder.display()))
        })
    }

    /// Gives work to the thread, which is started if there is none.
    fn begin(&mut self, work: Work) -> io::Result<()> {
        if self.started.is_none() {
            let (works, given) = mpsc::channel::<Work>();
            let run = move || given.into_iter().for_each(|work| work());
            let thread = thread::Builder::new().name("autoplace-folder".to_owned()).spawn(run)?;
            self.started = Some((works, thread));
        }
        let sent = self.started.as_ref().is_some_and(|(works, _)| works.send(work).is_ok());
        if sent { Ok(()) } else { Err(io::Error::other("the thread of the folder has ended")) }
    }

    fn end(&mut self) {
        let Some((works, thread)) = self.started.take() else { return };
        drop(works);
        // The thread has only to end now. Whoever counts the threads of the process does not find it.
        drop(thread.join());
    }
}

impl Drop for FolderThread {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does this work, and waits for it at most a millisecond.
    fn within<T: Send + 'static>(folder: &Path, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        FolderThread::new(folder).within(Duration::from_millis(1), work)
    }

    /// Waits until the folder answers again.
    fn answers(folder: &Path) {
        let begun = std::time::Instant::now();
        while hung().contains_key(folder) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the thread never ends");
            thread::yield_now();
        }
    }

    #[test]
    fn a_folder_that_does_not_answer_is_waited_for_once_until_it_answers() {
        let folder = Path::new("/a/share");
        assert_eq!(ask(folder, || Ok(5)).unwrap(), 5);
        let (release, held) = mpsc::channel::<()>();
        let error = within(folder, move || held.recv().is_ok()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "/a/share: the folder has not answered within 0.001 s");
        // Nothing more is begun there.
        let again = ask::<()>(folder, || unreachable!("it is not begun")).unwrap_err();
        assert_eq!((again.kind(), again.to_string()), (error.kind(), error.to_string()));
        assert_eq!(ask(Path::new("/another/share"), || Ok(6)).unwrap(), 6);
        drop(release);
        answers(folder);
        assert_eq!(ask(folder, || Ok(7)).unwrap(), 7);
    }

    #[test]
    fn work_that_must_be_done_is_done_once_the_folder_answers() {
        let folder = Path::new("/a/lock");
        let (release, held) = mpsc::channel::<()>();
        within(folder, move || held.recv().is_ok()).unwrap_err();
        let (done, is_done) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        tell(folder, move || {
            let _ = goes.recv();
            done.send(()).unwrap();
        });
        drop(release);
        drop(go);
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
        answers(folder);
    }

    #[test]
    fn a_result_that_nobody_waits_for_is_dropped_by_its_thread() {
        struct Dropped(mpsc::Sender<thread::ThreadId>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(thread::current().id());
            }
        }
        let folder = Path::new("/a/left");
        let (release, held) = mpsc::channel::<()>();
        let (dropped, by) = mpsc::channel();
        let left = within(folder, move || {
            let _ = held.recv();
            Dropped(dropped)
        });
        assert!(left.is_err());
        drop(release);
        assert_ne!(by.recv_timeout(Duration::from_secs(60)).unwrap(), thread::current().id());
        answers(folder);
    }

    #[test]
    fn work_after_work_is_done_by_one_thread_unless_the_folder_does_not_answer() {
        let folder = Path::new("/a/lease");
        let mut thread = FolderThread::new(folder);
        let id = |thread: &mut FolderThread| thread.ask(|| Ok(thread::current().id()));
        let first = id(&mut thread).unwrap();
        assert_eq!([(); 3].map(|()| id(&mut thread).unwrap()), [first; 3]);
        let (release, held) = mpsc::channel::<()>();
        thread.within(Duration::from_millis(1), move || held.recv().is_ok()).unwrap_err();
        assert_eq!(id(&mut thread).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(release);
        answers(folder);
        let next = id(&mut thread).unwrap();
        assert_ne!(next, first);
        assert_eq!(id(&mut thread).unwrap(), next);
        // Work that panics costs its thread only.
        assert!(thread.ask::<()>(|| panic!("on purpose")).is_err());
        assert_ne!(id(&mut thread).unwrap(), next);
    }

    #[test]
    fn work_that_panics_is_an_error_and_leaves_the_folder_in_use() {
        let folder = Path::new("/a/panic");
        assert!(ask::<()>(folder, || panic!("on purpose")).is_err());
        assert_eq!(ask(folder, || Ok(1)).unwrap(), 1);
    }
}
