//! The thread that opens the folder and writes pieces to it, so that no text waits for a disk.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::folder::Folder;
use super::found::Id;
use super::piece::Header;
use super::tree::{Tree, Write};
use crate::sync::lock;

/// The end of a store waits at most this long for a folder to take one more piece.
const END_WITHIN: Duration = Duration::from_secs(30);

/// The state that the store and the thread of its folder share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tree: Mutex<Tree>,
    /// Set once the folder is open. A store in memory alone has none.
    pub(super) folder: OnceLock<Folder>,
}

impl Shared {
    /// Uses a folder that was opened with these pieces. Returns the pieces in memory that are to be written.
    fn use_folder(&self, folder: Folder, found: Vec<Header>, folder_bytes: u64) -> Vec<Id> {
        // The lock is held, so that whoever adds a piece sees either no folder or all of its pieces.
        let mut tree = lock(&self.tree);
        let folder = self.folder.get_or_init(|| folder);
        if folder.is_ours() {
            return tree.taken_over(found, folder_bytes, folder);
        }
        tree.add_files(found, folder);
        Vec::new()
    }
}

/// The thread that opens the folder and writes pieces.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` once the writer is to end.
    queue: Option<mpsc::Sender<Job>>,
    waiting: Arc<Waiting>,
    thread: Option<JoinHandle<()>>,
}

/// A task of the thread.
#[derive(Debug)]
enum Job {
    Write(Id),
    /// Become the writer of the folder, if there is no other writer any more.
    TakeOver,
}

/// What the thread still has to do.
#[derive(Debug, Default)]
struct Waiting {
    left: Mutex<Left>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Left {
    /// Whether the folder is open, or cannot be opened.
    is_open: bool,
    /// Number of pieces that are still to be written.
    pieces: usize,
    /// Number of tasks that the thread has done.
    done: usize,
    /// The number of tasks that were done when somebody last waited in vain.
    stuck_at: Option<usize>,
}

impl Waiting {
    fn add(&self, pieces: usize) {
        lock(&self.left).pieces += pieces;
    }

    fn done(&self) {
        let mut left = lock(&self.left);
        left.pieces -= 1;
        left.done += 1;
        drop(left);
        self.changed.notify_all();
    }

    fn open(&self) {
        lock(&self.left).is_open = true;
        self.changed.notify_all();
    }

    /// Waits while the condition holds, for at most this long. Returns whether the condition holds no more.
    fn wait_while<'l>(
        &'l self,
        left: MutexGuard<'l, Left>,
        time: Duration,
        holds: impl Fn(&Left) -> bool,
    ) -> (MutexGuard<'l, Left>, bool) {
        let waited = self.changed.wait_timeout_while(left, time, |left| holds(left));
        let (left, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        (left, !outcome.timed_out())
    }

    /// Waits until nothing is left, but not longer than `time` for each task. Returns whether nothing is left.
    fn is_done_within(&self, time: Duration) -> bool {
        let mut left = lock(&self.left);
        while left.pieces > 0 {
            let done = left.done;
            if left.stuck_at == Some(done) {
                return false;
            }
            let goes_on;
            (left, goes_on) = self.wait_while(left, time, |left| left.pieces > 0 && left.done == done);
            if !goes_on {
                left.stuck_at = Some(done);
            }
        }
        true
    }
}

impl Writer {
    /// Starts the thread. It opens the folder, and writes pieces of up to `folder_bytes` bytes while this store is the
    /// folder's writer. Until the folder is open, the thread does not hold the store, so that the store can end before
    /// that. `None` if the system refuses a thread; nothing is then read or written.
    pub(super) fn start(
        shared: &Arc<Shared>,
        folder_bytes: u64,
        open: impl FnOnce() -> io::Result<(Folder, Vec<Header>)> + Send + 'static,
    ) -> Option<Self> {
        let (queue, jobs) = mpsc::channel();
        let waiting = Arc::new(Waiting::default());
        let (done, store) = (Arc::clone(&waiting), Arc::downgrade(shared));
        let run = move || {
            let opened = open().inspect_err(
                |error| tracing::warn!(target: "autoplace::store", "storing prompts in memory alone: {error}"),
            );
            let Some((shared, (folder, found))) = store.upgrade().zip(opened.ok()) else { return done.open() };
            let mut is_warned = false;
            let mut write_all = |ids: Vec<Id>| {
                for id in ids {
                    write_one(&shared, id, &mut is_warned);
                    done.done();
                }
            };
            let in_memory = shared.use_folder(folder, found, folder_bytes);
            done.add(in_memory.len());
            done.open();
            write_all(in_memory);
            for job in jobs {
                match job {
                    Job::Write(id) => write_all(vec![id]),
                    Job::TakeOver => {
                        let in_memory = take_over(&shared, folder_bytes);
                        done.add(in_memory.len());
                        done.done();
                        write_all(in_memory);
                    }
                }
            }
        };
        let spawned = thread::Builder::new().name("autoplace-store".to_owned()).spawn(run);
        let thread = spawned
            .inspect_err(|error| tracing::warn!(target: "autoplace::store", "no thread writes prompts: {error}"))
            .ok()?;
        Some(Self { queue: Some(queue), waiting, thread: Some(thread) })
    }

    /// Queues a piece.
    pub(super) fn write(&self, id: Id) {
        self.queue(Job::Write(id));
    }

    /// Queues an attempt to become the writer of the folder.
    pub(super) fn take_over(&self) {
        self.queue(Job::TakeOver);
    }

    fn queue(&self, job: Job) {
        self.waiting.add(1);
        if self.queue.as_ref().is_none_or(|queue| queue.send(job).is_err()) {
            self.waiting.done();
        }
    }

    /// Number of queued pieces that are not written yet.
    pub(super) fn unwritten(&self) -> usize {
        lock(&self.waiting.left).pieces
    }

    /// Waits until all queued pieces are written.
    pub(super) fn wait(&self) {
        let left = self.waiting.changed.wait_while(lock(&self.waiting.left), |left| left.pieces > 0);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until all queued pieces are written, but not longer than `time` for each of them. If the folder has
    /// written nothing since somebody waited in vain, this does not wait at all.
    pub(super) fn wait_within(&self, time: Duration) {
        self.waiting.is_done_within(time);
    }

    /// Waits until the folder is open, or cannot be opened.
    pub(super) fn wait_until_open(&self) {
        let left = self.waiting.changed.wait_while(lock(&self.waiting.left), |left| !left.is_open);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits at most this long until the folder is open, or cannot be opened. Returns whether it is.
    pub(super) fn is_open_within(&self, time: Duration) -> bool {
        let (left, _) = self.waiting.wait_while(lock(&self.waiting.left), time, |left| !left.is_open);
        left.is_open
    }
}

/// Becomes the writer of the folder if there is no other writer. Returns the pieces that are only in memory, and are to
/// be written.
fn take_over(shared: &Shared, folder_bytes: u64) -> Vec<Id> {
    let Shared { tree, folder } = shared;
    let Some(folder) = folder.get().filter(|folder| !folder.is_ours()) else { return Vec::new() };
    match folder.take_over() {
        Ok(None) => Vec::new(),
        Ok(Some(found)) => lock(tree).taken_over(found, folder_bytes, folder),
        Err(error) => {
            tracing::debug!(target: "autoplace::store", "another process still writes to the folder: {error}");
            Vec::new()
        }
    }
}

/// Writes a piece, unless it is gone or the folder has no room for it.
fn write_one(shared: &Shared, id: Id, is_warned: &mut bool) {
    let Shared { tree, folder } = shared;
    let Some(folder) = folder.get() else { return };
    let Write { outdated, piece } = lock(tree).begin_write(id, folder);
    // The lock is not held while files are removed, because a step of a text may wait for the lock.
    outdated.into_iter().for_each(|id| folder.remove(id));
    let Some((header, data)) = piece else { return };
    let written = folder.write(&header, &data);
    // On a full disk, every write fails, so only the first of these failures is a warning.
    match &written {
        Err(error) if !std::mem::replace(is_warned, true) => {
            tracing::warn!(target: "autoplace::store", "prompts are not kept on disk: {error}");
        }
        Err(error) => tracing::debug!(target: "autoplace::store", "{error}"),
        Ok(()) => *is_warned = false,
    }
    lock(tree).end_write(&header, written.is_ok(), folder);
}

impl Drop for Writer {
    /// Waits for the pieces that are still to be written. If the folder does not answer, the thread ends by itself.
    fn drop(&mut self) {
        self.queue = None;
        let Some(thread) = self.thread.take() else { return };
        let is_open = {
            let mut left = lock(&self.waiting.left);
            // The folder may answer again.
            left.stuck_at = None;
            left.is_open
        };
        if is_open && self.waiting.is_done_within(END_WITHIN) {
            drop(thread.join());
        } else {
            tracing::warn!(target: "autoplace::store", "the folder does not answer; some prompts are not kept there");
        }
    }
}
