//! The thread that opens the folder, writes pieces to it and removes them, so that no text waits for a disk.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::folder::Folder;
use super::found::Id;
use super::piece::Header;
use super::tree::{Tree, Write};
use crate::machine::folder::{ANSWER_WITHIN, no_answer};
use crate::sync::lock;

/// The end of a store waits at most this long for a folder to take one more piece.
const END_WITHIN: Duration = Duration::from_secs(30);

/// The state that the store and the thread of its folder share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tree: Mutex<Tree>,
    /// Set once the folder is open. A store in memory alone has none.
    pub(super) folder: OnceLock<Folder>,
    /// What the thread still has to do. A store in memory alone has no thread.
    tasks: Arc<Tasks>,
}

impl Shared {
    pub(super) fn new(tree: Tree) -> Self {
        Self { tree: Mutex::new(tree), folder: OnceLock::new(), tasks: Arc::default() }
    }

    /// Changes the tree. The thread then removes the files of the pieces that the tree has no more, so that nobody who
    /// waits for the tree waits for a disk.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Tree, Option<&Folder>) -> T) -> T {
        let mut tree = lock(&self.tree);
        let result = change(&mut tree, self.folder.get());
        let has_outdated = tree.has_outdated();
        drop(tree);
        if has_outdated {
            self.tasks.remove_outdated();
        }
        result
    }

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

/// The thread that opens the folder, writes pieces and removes them.
#[derive(Debug)]
pub(super) struct Writer {
    folder: PathBuf,
    tasks: Arc<Tasks>,
    thread: Option<JoinHandle<()>>,
}

/// A task of the thread.
#[derive(Debug)]
enum Job {
    Write(Id),
    /// Become the writer of the folder, if there is no other writer any more.
    TakeOver,
    /// Remove the files of pieces that the tree has no more.
    RemoveOutdated,
}

/// What the thread still has to do.
#[derive(Debug, Default)]
struct Tasks {
    left: Mutex<Left>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Left {
    /// Whether the folder is open, or cannot be opened.
    is_open: bool,
    jobs: VecDeque<Job>,
    /// Number of pieces that are still to be written.
    pieces: usize,
    /// Whether there are files to be removed.
    has_outdated: bool,
    /// Whether files are being removed.
    is_removing: bool,
    /// Number of tasks that the thread has done, and of files that it has read or removed.
    done: usize,
    /// That number when somebody last waited in vain.
    stuck_at: Option<usize>,
    /// Whether the thread is to end when nothing is left.
    is_ending: bool,
    /// Whether the thread has ended.
    has_ended: bool,
}

impl Left {
    const fn is_any(&self) -> bool {
        self.pieces > 0 || self.has_outdated || self.is_removing
    }
}

impl Tasks {
    fn add(&self, pieces: usize) {
        lock(&self.left).pieces += pieces;
    }

    fn queue(&self, job: Job) {
        let mut left = lock(&self.left);
        if !left.has_ended {
            left.pieces += 1;
            left.jobs.push_back(job);
        }
        drop(left);
        self.changed.notify_all();
    }

    fn remove_outdated(&self) {
        let mut left = lock(&self.left);
        left.has_outdated = !left.has_ended;
        drop(left);
        self.changed.notify_all();
    }

    /// The next task; `None` if the thread is to end. Files are removed first, because their bytes are no longer
    /// counted.
    fn next(&self) -> Option<Job> {
        let waits = |left: &mut Left| left.jobs.is_empty() && !left.has_outdated && !left.is_ending;
        let left = self.changed.wait_while(lock(&self.left), waits);
        let mut left = left.unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut left.has_outdated) {
            left.is_removing = true;
            return Some(Job::RemoveOutdated);
        }
        left.jobs.pop_front()
    }

    fn done(&self) {
        let mut left = lock(&self.left);
        left.pieces -= 1;
        left.done += 1;
        drop(left);
        self.changed.notify_all();
    }

    /// A file was read or removed.
    fn goes_on(&self) {
        lock(&self.left).done += 1;
        self.changed.notify_all();
    }

    fn has_removed_all(&self) {
        lock(&self.left).is_removing = false;
        self.changed.notify_all();
    }

    fn open(&self) {
        let mut left = lock(&self.left);
        left.is_open = true;
        left.done += 1;
        drop(left);
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

    /// Waits while the condition holds, but not longer than `time` for each task and each file. If none of them was
    /// done since somebody waited in vain, this does not wait at all. Returns whether the condition holds no more.
    fn wait_for_each(&self, time: Duration, holds: impl Fn(&Left) -> bool) -> bool {
        let mut left = lock(&self.left);
        while holds(&left) {
            let done = left.done;
            if left.stuck_at == Some(done) {
                return false;
            }
            let goes_on;
            (left, goes_on) = self.wait_while(left, time, |left| holds(left) && left.done == done);
            if !goes_on {
                left.stuck_at = Some(done);
            }
        }
        true
    }

    /// Waits at most this long until the thread has ended. Returns whether it has.
    fn has_ended_within(&self, time: Duration) -> bool {
        self.wait_while(lock(&self.left), time, |left| !left.has_ended).1
    }
}

/// When this is dropped, the thread has ended, however it has ended.
struct Ends(Arc<Tasks>);

impl Drop for Ends {
    fn drop(&mut self) {
        *lock(&self.0.left) = Left { is_open: true, has_ended: true, ..Left::default() };
        self.0.changed.notify_all();
    }
}

impl Writer {
    /// Starts the thread. It opens `folder`, and writes pieces of up to `folder_bytes` bytes while this store is the
    /// folder's writer. Until the folder is open, the thread does not hold the store, so that the store can end before
    /// that. `None` if the system refuses a thread; nothing is then read or written.
    pub(super) fn start(
        shared: &Arc<Shared>,
        (folder, folder_bytes): (PathBuf, u64),
        open: impl FnOnce(&dyn Fn()) -> io::Result<(Folder, Vec<Header>)> + Send + 'static,
    ) -> Option<Self> {
        let tasks = Arc::clone(&shared.tasks);
        let store = Arc::downgrade(shared);
        let of = Arc::clone(&tasks);
        let run = move || {
            // This is dropped last: the folder is unlocked before.
            let ends = Ends(of);
            let tasks = &ends.0;
            let opened = open(&|| tasks.goes_on()).inspect_err(
                |error| tracing::warn!(target: "autoplace::store", "storing prompts in memory alone: {error}"),
            );
            let Some((shared, (folder, found))) = store.upgrade().zip(opened.ok()) else { return };
            let mut is_warned = false;
            let mut write_all = |ids: Vec<Id>| {
                for id in ids {
                    write_one(&shared, id, &mut is_warned);
                    tasks.done();
                }
            };
            let in_memory = shared.use_folder(folder, found, folder_bytes);
            remove_outdated(&shared);
            tasks.add(in_memory.len());
            tasks.open();
            write_all(in_memory);
            while let Some(job) = tasks.next() {
                match job {
                    Job::Write(id) => write_all(vec![id]),
                    Job::RemoveOutdated => {
                        remove_outdated(&shared);
                        tasks.has_removed_all();
                    }
                    Job::TakeOver => {
                        let in_memory = take_over(&shared, folder_bytes);
                        tasks.add(in_memory.len());
                        tasks.done();
                        write_all(in_memory);
                    }
                }
            }
        };
        let spawned = thread::Builder::new().name("autoplace-store".to_owned()).spawn(run);
        let thread = spawned
            .inspect_err(|error| tracing::warn!(target: "autoplace::store", "no thread writes prompts: {error}"))
            .ok()?;
        Some(Self { folder, tasks, thread: Some(thread) })
    }

    /// Queues a piece.
    pub(super) fn write(&self, id: Id) {
        self.tasks.queue(Job::Write(id));
    }

    /// Queues an attempt to become the writer of the folder.
    pub(super) fn take_over(&self) {
        self.tasks.queue(Job::TakeOver);
    }

    /// Number of queued pieces that are not written yet.
    pub(super) fn unwritten(&self) -> usize {
        lock(&self.tasks.left).pieces
    }

    /// Waits until all queued pieces are written, and all files are removed that the tree has no more.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.wait_while(Left::is_any)
    }

    /// Waits until the folder is open, or cannot be opened.
    pub(super) fn wait_until_open(&self) -> io::Result<()> {
        self.wait_while(|left| !left.is_open)
    }

    /// Waits while the condition holds. The error is that of a folder that does not answer.
    fn wait_while(&self, holds: impl Fn(&Left) -> bool) -> io::Result<()> {
        match self.tasks.wait_for_each(ANSWER_WITHIN, holds) {
            true => Ok(()),
            false => Err(no_answer(&self.folder, ANSWER_WITHIN)),
        }
    }

    /// Waits at most this long until the folder is open, or cannot be opened. Returns whether it is.
    pub(super) fn is_open_within(&self, time: Duration) -> bool {
        let left = lock(&self.tasks.left);
        let before = left.done;
        let (mut left, _) = self.tasks.wait_while(left, time, |left| !left.is_open);
        if !left.is_open && left.done == before {
            left.stuck_at = Some(before);
        }
        left.is_open
    }
}

/// Becomes the writer of the folder if there is no other writer. Returns the pieces that are only in memory, and are to
/// be written.
fn take_over(shared: &Shared, folder_bytes: u64) -> Vec<Id> {
    let Some(folder) = shared.folder.get().filter(|folder| !folder.is_ours()) else { return Vec::new() };
    match folder.take_over(&|| shared.tasks.goes_on()) {
        Ok(None) => Vec::new(),
        Ok(Some(found)) => shared.change(|tree, _| tree.taken_over(found, folder_bytes, folder)),
        Err(error) => {
            tracing::debug!(target: "autoplace::store", "another process still writes to the folder: {error}");
            Vec::new()
        }
    }
}

/// Writes a piece, unless it is gone or the folder has no room for it.
fn write_one(shared: &Shared, id: Id, is_warned: &mut bool) {
    let Some(folder) = shared.folder.get() else { return };
    let Write { outdated, piece } = lock(&shared.tree).begin_write(id, folder);
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
    shared.change(|tree, _| tree.end_write(&header, written.is_ok(), folder));
}

/// Removes the files of the pieces that the tree has no more. The lock is not held meanwhile.
fn remove_outdated(shared: &Shared) {
    let Some(folder) = shared.folder.get() else { return };
    let outdated = lock(&shared.tree).take_outdated();
    for id in outdated {
        folder.remove(id);
        shared.tasks.goes_on();
    }
}

impl Drop for Writer {
    /// Waits for the pieces that are still to be written. If the folder does not answer, the thread ends by itself.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let is_open = {
            let mut left = lock(&self.tasks.left);
            // The folder may answer again before the pieces are lost. Files that are to be removed cost nothing.
            if left.pieces > 0 {
                left.stuck_at = None;
            }
            left.is_ending = true;
            left.is_open
        };
        self.tasks.changed.notify_all();
        if is_open && self.tasks.wait_for_each(END_WITHIN, Left::is_any) && self.tasks.has_ended_within(END_WITHIN) {
            drop(thread.join());
        } else {
            let folder = self.folder.display();
            tracing::warn!(
                target: "autoplace::store", "{folder}: the folder does not answer; some prompts are not kept there"
            );
        }
    }
}
