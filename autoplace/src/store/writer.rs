//! The thread that writes pieces to the folder, so that no text waits for a disk.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use super::folder::Folder;
use super::found::Id;
use super::tree::{Tree, Write};
use crate::sync::lock;

/// The state that the store and the thread of its folder share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tree: Mutex<Tree>,
    pub(super) folder: Option<Folder>,
}

/// The thread that writes pieces.
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

/// The number of pieces that are still to be written.
#[derive(Debug, Default)]
struct Waiting {
    pieces: Mutex<usize>,
    changed: Condvar,
}

impl Waiting {
    fn add(&self) {
        *lock(&self.pieces) += 1;
    }

    fn done(&self) {
        *lock(&self.pieces) -= 1;
        self.changed.notify_all();
    }
}

impl Writer {
    /// Starts the thread, which may write up to `folder_bytes` bytes once this store is the writer of the folder.
    /// `None` if the system refuses a thread; nothing is then written.
    pub(super) fn start(shared: Arc<Shared>, folder_bytes: u64) -> Option<Self> {
        let (queue, jobs) = mpsc::channel();
        let waiting = Arc::new(Waiting::default());
        let done = Arc::clone(&waiting);
        let run = move || {
            let mut is_warned = false;
            for job in jobs {
                match job {
                    Job::Write(id) => write_one(&shared, id, &mut is_warned),
                    Job::TakeOver => take_over(&shared, folder_bytes, &mut is_warned),
                }
                done.done();
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
        self.waiting.add();
        if self.queue.as_ref().is_none_or(|queue| queue.send(job).is_err()) {
            self.waiting.done();
        }
    }

    /// Number of queued pieces that are not written yet.
    pub(super) fn unwritten(&self) -> usize {
        *lock(&self.waiting.pieces)
    }

    /// Waits until all queued pieces are written.
    pub(super) fn wait(&self) {
        let pieces = lock(&self.waiting.pieces);
        let waited = self.waiting.changed.wait_while(pieces, |pieces| *pieces > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Becomes the writer of the folder if there is no other writer, and writes the pieces that are only in memory.
fn take_over(shared: &Shared, folder_bytes: u64, is_warned: &mut bool) {
    let Shared { tree, folder } = shared;
    let Some(folder) = folder.as_ref().filter(|folder| !folder.is_ours()) else { return };
    match folder.take_over() {
        Ok(None) => {}
        Ok(Some(found)) => {
            let to_write = lock(tree).taken_over(found, folder_bytes, folder);
            to_write.into_iter().for_each(|id| write_one(shared, id, is_warned));
        }
        Err(error) => {
            tracing::debug!(target: "autoplace::store", "another process still writes to the folder: {error}");
        }
    }
}

/// Writes a piece, unless it is gone or the folder has no room for it.
fn write_one(shared: &Shared, id: Id, is_warned: &mut bool) {
    let Shared { tree, folder } = shared;
    let Some(folder) = folder else { return };
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
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
