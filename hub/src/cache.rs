//! Hugging Face's own cache: names flow in, paths flow out. Its layout and its locks are those of huggingface_hub
//! (`_hf_hub_download_to_cache_dir` in `file_download.py`), so that every tool shares what any has fetched:
//!
//! ```text
//! models--OWNER--NAME/blobs/ETAG                 the bytes, and ETAG.autoplace.part while they arrive here
//! models--OWNER--NAME/snapshots/COMMIT/FILE      a relative link to its blob, or the file itself where links cannot be
//! models--OWNER--NAME/refs/REVISION              the commit that a branch or a tag was, when it was last asked for
//! .locks/models--OWNER--NAME/ETAG.lock           locked (flock) by whoever writes the blob
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

/// A repository's part of a cache.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    cache: PathBuf,
    /// `models--OWNER--NAME`.
    name: String,
}

impl Folder {
    /// `repository` is a checked name, so its folder lies in the cache.
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

    /// Where bytes of a blob arrive, and stay until they are all there. No other tool uses the name: `hf cache prune`
    /// removes every `*.incomplete`, also one that is being written.
    pub(crate) fn arriving(&self, etag: &str) -> PathBuf {
        self.part("blobs").join(format!("{etag}.autoplace.part"))
    }

    /// The same for this fetch alone, where another may be writing to [`arriving`](Self::arriving).
    pub(crate) fn arriving_alone(&self, etag: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Another machine that shares the folder may have a process of the same number.
        let number = RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        self.part("blobs").join(format!("{etag}.{number:016x}.autoplace.part"))
    }

    /// The place of a file in a snapshot.
    pub(crate) fn pointer(&self, commit: &str, file: &str) -> PathBuf {
        self.part("snapshots").join(commit).join(file)
    }

    /// Whether a snapshot has a file in its whole length.
    pub(crate) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        is_of(&self.pointer(commit, &file.name), file.bytes)
    }

    pub(crate) fn has_blob(&self, file: &RemoteFile) -> bool {
        is_of(&self.blob(&file.etag), file.bytes)
    }

    /// The commit that a revision was when it was last asked for.
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

    /// Remembers which commit a revision is (`_cache_commit_hash_for_specific_revision`).
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<(), Error> {
        let path = self.part("refs").join(revision);
        if revision == commit || fs::read_to_string(&path).is_ok_and(|it| it == commit) {
            return Ok(());
        }
        create_parent(&path)?;
        let temporary = beside(&path);
        fs::write(&temporary, commit).map_err(io_error("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(io_error("rename to", &path))
    }

    /// Puts a file, whose blob is whole, into a snapshot (`_create_symlink`).
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<(), Error> {
        let (blob, pointer) = (self.blob(&file.etag), self.pointer(commit, &file.name));
        create_parent(&pointer)?;
        let up = std::iter::repeat_n("..", 2 + file.name.matches('/').count());
        let target: PathBuf = up.chain(["blobs", &file.etag]).collect();
        let temporary = beside(&pointer);
        // Whoever reads the one that is there already must not find none for a moment.
        let linked = symlink(&target, &temporary).and_then(|()| fs::rename(&temporary, &pointer));
        // As on Windows without the right to make links: the file itself, which has no other name then.
        let moved = linked.or_else(|_| {
            let _ = fs::remove_file(&temporary);
            fs::rename(&blob, &pointer)
        });
        match moved {
            // Another process has moved it, or reads it.
            Err(_) if is_of(&pointer, file.bytes) => Ok(()),
            moved => moved.map_err(io_error("move to", &pointer)),
        }
    }

    /// Waits for the lock of a blob, which huggingface_hub takes for the same (`WeakFileLock`); it is free again when
    /// the file is closed. `None` where the file system knows no locks.
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
                // Whoever held it may have removed it: then others lock another file.
                Ok(()) if is_at(&file, &path) => return Ok(Some(file)),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) if cancelled.load(Ordering::Relaxed) => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
            }
        }
    }

    /// Free bytes where the cache is or will be, if the system says.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.cache.ancestors().find(|it| it.exists()).and_then(|it| fs4::available_space(it).ok())
    }
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, action, source }
}

/// A name in the same folder that nobody else has, other threads of this process included.
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

/// Whether there is a file of this length.
pub(crate) fn is_of(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() == bytes)
}

/// Locks a file, which was opened by this path, for this process, and says whether no other process can have it locked
/// too. Some network file systems grant every lock to everybody (Lustre, GPFS), or know none; and what another process
/// has locked may have another name by now.
pub(crate) fn lock_alone(file: &File, path: &Path) -> bool {
    let is_refused = || {
        let second = OpenOptions::new().read(true).append(true).open(path);
        second.is_ok_and(|second| matches!(second.try_lock(), Err(TryLockError::WouldBlock)))
    };
    file.try_lock().is_ok() && is_at(file, path) && is_refused()
}

/// Whether a file is the one that has this name now.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: io::Result<fs::Metadata>| found.ok().and_then(|it| files::id(path, &it));
    let (ours, there) = (id(file.metadata()), id(fs::metadata(path)));
    there.is_some() && ours == there
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
