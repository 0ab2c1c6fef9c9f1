//! Hugging Face's own cache. In: names of files. Out: their paths. The layout of the folders and the locks are those of
//! huggingface_hub (`_hf_hub_download_to_cache_dir` in `file_download.py`), so both tools can use each other's
//! downloads:
//!
//! ```text
//! models--OWNER--NAME/blobs/ETAG                 the bytes; ETAG.autoplace.part until they are complete
//! models--OWNER--NAME/snapshots/COMMIT/FILE      a relative link to the blob (the file itself without links)
//! models--OWNER--NAME/refs/REVISION              the commit of a branch or tag at the last request
//! models--OWNER--NAME/.no_exist/COMMIT/FILE      empty: the commit has no such file
//! .locks/models--OWNER--NAME/ETAG.lock           locked (flock) by the process that writes the blob
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
#[cfg(unix)]
use std::os::unix::fs::symlink;
#[cfg(windows)]
use std::os::windows::fs::symlink_file as symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::local::files;
use crate::repository::{RemoteFile, files_below, is_hex};

/// The folder of one repository in a cache.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    cache: PathBuf,
    /// The folder's name, `models--OWNER--NAME`.
    name: String,
}

impl Folder {
    /// The folder of a repository. `repository` must be a name that was checked, so that its folder cannot lie outside
    /// the cache.
    pub(crate) fn new(cache: &Path, repository: &str) -> Self {
        Self { cache: cache.to_owned(), name: format!("models--{}", repository.replace('/', "--")) }
    }

    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    fn part(&self, part: &str) -> PathBuf {
        self.cache.join(&self.name).join(part)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.part("blobs").join(etag)
    }

    /// The part file: it gets the bytes of a blob until the blob is complete. Its name is not the one that
    /// huggingface_hub would choose, because `hf cache prune` removes every `*.incomplete` file, even while it is being
    /// written.
    pub(crate) fn arriving(&self, etag: &str) -> PathBuf {
        self.part("blobs").join(format!("{etag}.autoplace.part"))
    }

    /// A part file that only this fetch uses. It is needed if another process may be writing to
    /// [`arriving`](Self::arriving).
    pub(crate) fn arriving_alone(&self, etag: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Another machine may use the same folder, and may have a process with the same id.
        let number = RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        self.part("blobs").join(format!("{etag}.{number:016x}.autoplace.part"))
    }

    /// The path of a file in a snapshot.
    pub(crate) fn pointer(&self, commit: &str, file: &str) -> PathBuf {
        self.part("snapshots").join(commit).join(file)
    }

    /// Whether the file is in a snapshot and has its full length.
    pub(crate) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        is_of(&self.pointer(commit, &file.name), file.bytes)
    }

    pub(crate) fn has_blob(&self, file: &RemoteFile) -> bool {
        is_of(&self.blob(&file.etag), file.bytes)
    }

    /// The commit to which a revision pointed at the last request.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if self.part("snapshots").join(revision).is_dir() {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.part("refs").join(revision)).ok()?;
        let commit = commit.trim();
        is_hex(commit, 40).then(|| commit.to_owned())
    }

    /// The files of a snapshot and their lengths.
    pub(crate) fn files(&self, commit: &str) -> Vec<(String, u64)> {
        files_below(&self.part("snapshots").join(commit), "")
    }

    /// Stores the commit to which a revision points (`_cache_commit_hash_for_specific_revision`).
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<(), Error> {
        let path = self.part("refs").join(revision);
        if revision == commit || fs::read_to_string(&path).is_ok_and(|stored| stored == commit) {
            return Ok(());
        }
        create_parent(&path)?;
        let temporary = beside(&path);
        fs::write(&temporary, commit).map_err(io_error("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(io_error("rename to", &path))
    }

    /// Whether the hub has answered that there is no such file at this commit.
    pub(crate) fn lacks(&self, commit: &str, file: &str) -> bool {
        self.part(".no_exist").join(commit).join(file).is_file()
    }

    /// Stores that there is no such file at this commit (`_get_metadata_or_catch_error`).
    pub(crate) fn remember_lacking(&self, commit: &str, file: &str) -> Result<(), Error> {
        let path = self.part(".no_exist").join(commit).join(file);
        create_parent(&path)?;
        fs::write(&path, []).map_err(io_error("write", &path))
    }

    /// Puts a file into a snapshot. The file's blob must be complete (`_create_symlink`).
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<(), Error> {
        let (blob, pointer) = (self.blob(&file.etag), self.pointer(commit, &file.name));
        create_parent(&pointer)?;
        let up = std::iter::repeat_n("..", 2 + file.name.matches('/').count());
        let target: PathBuf = up.chain(["blobs", &file.etag]).collect();
        let temporary = beside(&pointer);
        // Renaming replaces an existing file in one step, so that the file is never missing for a reader.
        let linked = symlink(&target, &temporary).and_then(|()| fs::rename(&temporary, &pointer));
        // If links may not be created, as on Windows, the file itself is moved into the snapshot.
        let moved = linked.or_else(|_| {
            let _ = fs::remove_file(&temporary);
            fs::rename(&blob, &pointer)
        });
        match moved {
            // Moving fails if another process has already moved the file, or has opened it.
            Err(_) if is_of(&pointer, file.bytes) => Ok(()),
            moved => moved.map_err(io_error("move to", &pointer)),
        }
    }

    /// Waits for the lock of a blob. huggingface_hub uses the same lock (`WeakFileLock`). When the file is closed, the
    /// lock is released. `None` if the wait was cancelled, or if the file system has no locks.
    pub(crate) fn lock(&self, etag: &str, cancelled: &AtomicBool) -> Result<Option<File>, Error> {
        let path = self.cache.join(".locks").join(&self.name).join(format!("{etag}.lock"));
        create_parent(&path)?;
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o664);
            let file = options.open(&path).map_err(io_error("open", &path))?;
            match file.try_lock() {
                // The process that had the lock before may have removed the file. In that case other processes lock a
                // new file.
                Ok(()) if is_at(&file, &path) => return Ok(Some(file)),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) if cancelled.load(Ordering::Relaxed) => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
            }
        }
    }

    /// Free bytes on the disk of the cache's folder. If there is no such folder yet, on the disk of its nearest
    /// existing parent. `None` if the system does not report them.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.cache
            .ancestors()
            .find(|ancestor| ancestor.exists())
            .and_then(|ancestor| fs4::available_space(ancestor).ok())
    }
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, action, source }
}

/// A name in the same folder that no other thread and no other process uses.
fn beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

pub(crate) fn create_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(io_error("create", parent))
}

/// Whether there is a file of this length at the path.
pub(crate) fn is_of(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == bytes)
}

/// Locks a file for this process. Returns whether the lock keeps other processes away. `path` must be the path with
/// which the file was opened. In two cases the lock keeps nobody away: some network file systems have no locks or grant
/// every lock to everybody (Lustre, GPFS), and another process may have renamed the file meanwhile.
pub(crate) fn lock_alone(file: &File, path: &Path) -> bool {
    let is_refused = || {
        let second = OpenOptions::new().read(true).append(true).open(path);
        second.is_ok_and(|second| matches!(second.try_lock(), Err(TryLockError::WouldBlock)))
    };
    file.try_lock().is_ok() && is_at(file, path) && is_refused()
}

/// Whether this file is still the one at the path.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: io::Result<fs::Metadata>| found.ok().and_then(|metadata| files::id(path, &metadata));
    let (ours, there) = (id(file.metadata()), id(fs::metadata(path)));
    there.is_some() && ours == there
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
