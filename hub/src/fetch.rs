//! Fetches the files of a model into the cache. In a snapshot, a file is complete and verified, or it is not there at
//! all.
//!
//! Each file arrives in one stream. Its part file is always a beginning of the file. So if the process is killed, no
//! bytes are lost. A part file is renamed to a blob only if no other process has written to it, and if its hash is the
//! hub's. If a model is split, [`AT_ONCE`] of its files arrive at the same time. Only when all files have arrived are
//! they put into the snapshot.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use sha1::Digest as _;
use sha2::digest::DynDigest;

use crate::cache::{Folder, create_parent, io_error, is_at, is_of, lock_alone};
use crate::error::Error;
use crate::http::{Failure, Http, broken, cut};
use crate::remote::Remote;
use crate::repository::{Candidate, RemoteFile};

/// Number of files that arrive at the same time.
const AT_ONCE: usize = 4;

/// Maximum number of bytes in one request. If a file has more than 50 GB, the storage of Hugging Face's hub sends only
/// ranges of it (`MAX_HTTP_DOWNLOAD_SIZE` in huggingface_hub's `constants.py`).
const MAX_REQUEST: u64 = 16 << 30;

/// How often progress is reported, and how often it is checked whether the fetch was cancelled.
const REPORT: Duration = Duration::from_millis(100);

/// The data that all threads of a fetch share.
struct Fetch<'a> {
    http: &'a Http,
    folder: &'a Folder,
    candidate: &'a Candidate,
    done: AtomicU64,
    cancelled: AtomicBool,
}

/// Fetches those files of a model that are not in the cache. Returns the path of the first file.
pub(crate) fn fetch(
    http: Option<&Http>,
    folder: &Folder,
    candidate: &Candidate,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<PathBuf, Error> {
    let commit = &candidate.place.commit;
    let absent: Vec<&RemoteFile> = candidate.files.iter().filter(|file| !folder.has(commit, file)).collect();
    if let Some(http) = http {
        let missing: Vec<&RemoteFile> = absent.iter().copied().filter(|file| !folder.has_blob(file)).collect();
        check_space(folder, candidate, &missing)?;
        let lacking = absent.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
        let done = candidate.bytes().saturating_sub(lacking);
        let (done, cancelled) = (AtomicU64::new(done), AtomicBool::new(false));
        // Another tool may have written a blob that exists already. So the blob is read once, and its hash is checked.
        Fetch { http, folder, candidate, done, cancelled }.all(&absent, progress)?;
        // The first file is linked last, because a reader opens it and then expects the others. If a file was moved
        // into the snapshot meanwhile, there is no blob to which a link could point. So it is skipped.
        let mut unlinked = absent.iter().rev().filter(|file| !folder.has(commit, file));
        unlinked.try_for_each(|file| folder.link(commit, file))?;
        folder.remember(&candidate.place.revision, commit)?;
    } else if let Some(file) = absent.first() {
        let what = candidate.shown(&file.name);
        return Err(Error::Offline { what, cache: folder.cache().to_owned() });
    }
    Ok(folder.pointer(commit, &candidate.files[0].name))
}

fn check_space(folder: &Folder, candidate: &Candidate, missing: &[&RemoteFile]) -> Result<(), Error> {
    let there = |file: &RemoteFile| fs::metadata(folder.arriving(&file.etag)).map_or(0, |part| part.len());
    let needed = missing.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes.saturating_sub(there(file))));
    match folder.free_bytes() {
        Some(free) if free < needed => {
            let file = candidate.shown(candidate.name());
            Err(Error::Space { folder: folder.cache().to_owned(), file, needed, free })
        }
        _ => Ok(()),
    }
}

impl Fetch<'_> {
    /// Fetches all files, a few of them at a time. Returns the error that occurred first.
    fn all(&self, missing: &[&RemoteFile], progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), Error> {
        let total = self.candidate.bytes();
        let waiting = Mutex::new(missing.iter());
        let next = || waiting.lock().ok().and_then(|mut waiting| waiting.next().copied());
        let mut result = Ok(());
        std::thread::scope(|scope| {
            let (sender, results) = mpsc::channel();
            for _ in 0..AT_ONCE.min(missing.len()) {
                let sender = sender.clone();
                scope.spawn(move || {
                    while let Some(file) = next() {
                        // Sending cannot fail, because the receiver lives longer than all senders.
                        let _ = sender.send(self.one(file));
                    }
                });
            }
            drop(sender);
            loop {
                match results.recv_timeout(REPORT) {
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(Err(error)) if result.is_ok() => {
                        self.cancelled.store(true, Relaxed);
                        result = Err(error);
                    }
                    _ => {}
                }
                if progress(self.done.load(Relaxed), total).is_break() {
                    self.cancelled.store(true, Relaxed);
                }
            }
        });
        result
    }

    /// Fetches one file, which becomes its blob.
    fn one(&self, file: &RemoteFile) -> Result<(), Error> {
        let _lock = self.folder.lock(&file.etag, &self.cancelled)?;
        self.check_cancelled(file)?;
        let blob = self.folder.blob(&file.etag);
        let pointer = self.folder.pointer(&self.candidate.place.commit, &file.name);
        let there = [(self.folder.has_blob(file), &blob), (is_of(&pointer, file.bytes), &pointer)];
        if let Some((_, path)) = there.into_iter().find(|(is_there, _)| *is_there) {
            // Another process has written the file: just now, or earlier.
            if self.hash_at(path, file)? == file.etag {
                self.done.fetch_add(file.bytes, Relaxed);
                return Ok(());
            }
            if path == &pointer {
                fs::remove_file(path).map_err(io_error("remove", path))?;
            }
        }
        create_parent(&blob)?;
        let mut part = Part::open(self.folder, file)?;
        self.done.fetch_add(part.at, Relaxed);
        self.check_cancelled(file)?;
        let resumed = part.at > 0;
        self.receive(&mut part, file)?;
        let mut found = part.hex()?;
        if found != file.etag && resumed {
            // The bytes that an earlier fetch left may be damaged, for example because the power failed.
            self.done.fetch_sub(part.at, Relaxed);
            part.restart(file)?;
            self.receive(&mut part, file)?;
            found = part.hex()?;
        }
        if found != file.etag {
            part.remove()?;
            let file_name = self.candidate.shown(&file.name);
            return Err(Error::Hash { file: file_name, wanted: file.etag.clone(), found });
        }
        part.become_blob(self.folder, file, &blob)
    }

    /// The hash of a file that exists.
    fn hash_at(&self, path: &Path, file: &RemoteFile) -> Result<String, Error> {
        let mut there = File::open(path).map_err(io_error("open", path))?;
        let (mut hash, mut buffer) = (hash_of(file), vec![0; 256 << 10]);
        loop {
            self.check_cancelled(file)?;
            let read = there.read(&mut buffer).map_err(io_error("read", path))?;
            if read == 0 {
                return Ok(hex(&mut *hash));
            }
            hash.update(&buffer[..read]);
        }
    }

    /// Downloads the missing bytes of a file.
    fn receive(&self, part: &mut Part, file: &RemoteFile) -> Result<(), Error> {
        let mut remote = Remote::new(self.http, &self.candidate.place, file);
        let url = remote.shown();
        let mut buffer = vec![0; 256 << 10];
        self.http.patiently(&self.cancelled, |progress| {
            while part.at < file.bytes {
                self.check_cancelled(file)?;
                let end = file.bytes.min(part.at + MAX_REQUEST);
                let mut body = remote.open(&(part.at..end))?;
                while part.at < end {
                    self.check_cancelled(file)?;
                    let read = body.read(&mut buffer).map_err(|error| broken(&url, &error))?;
                    if read == 0 {
                        return Err(cut(&url));
                    }
                    part.append(&buffer[..read])?;
                    self.done.fetch_add(read as u64, Relaxed);
                    *progress = true;
                }
            }
            Ok(())
        })
    }

    fn check_cancelled(&self, file: &RemoteFile) -> Result<(), Error> {
        if !self.cancelled.load(Relaxed) {
            return Ok(());
        }
        let name = self.candidate.shown(&file.name);
        Err(Error::Cancelled { file: name, done: self.done.load(Relaxed), total: self.candidate.bytes() })
    }
}

/// The part of a file that has arrived on the disk, and the hash of that part. No other process writes to it.
struct Part {
    path: PathBuf,
    file: File,
    hash: Box<dyn DynDigest>,
    at: u64,
    /// Whether the file has a name that only this fetch knows. If so, no later fetch can resume it.
    is_alone: bool,
}

impl Part {
    /// Resumes the part file of an earlier fetch, if it is certain that no other process is writing to it. If it is
    /// not, begins a new part file.
    fn open(folder: &Folder, of: &RemoteFile) -> Result<Self, Error> {
        let path = folder.arriving(&of.etag);
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = file.map_err(io_error("open", &path))?;
        if !lock_alone(&file, &path) {
            return Self::alone(folder, of);
        }
        let mut part = Self { path, file, hash: hash_of(of), at: 0, is_alone: false };
        let mut buffer = vec![0; 256 << 10];
        while part.at <= of.bytes {
            let n = part.file.read(&mut buffer).map_err(io_error("read", &part.path))?;
            if n == 0 {
                return Ok(part);
            }
            part.hash.update(&buffer[..n]);
            part.at += n as u64;
        }
        part.restart(of)?;
        Ok(part)
    }

    /// Begins a part file whose name only this fetch knows.
    fn alone(folder: &Folder, of: &RemoteFile) -> Result<Self, Error> {
        let path = folder.arriving_alone(&of.etag);
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(&path);
        let file = file.map_err(io_error("create", &path))?;
        Ok(Self { path, file, hash: hash_of(of), at: 0, is_alone: true })
    }

    fn restart(&mut self, of: &RemoteFile) -> Result<(), Error> {
        self.file.set_len(0).map_err(io_error("write", &self.path))?;
        (self.hash, self.at) = (hash_of(of), 0);
        Ok(())
    }

    /// The hash of all bytes that have arrived. It can be computed only once.
    fn hex(&mut self) -> Result<String, Error> {
        let bytes = self.file.metadata().map_err(io_error("read", &self.path))?.len();
        Ok(match bytes == self.at {
            true => hex(&mut *self.hash),
            false => "unknown, because another program has written to the file".to_owned(),
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(io_error("write", &self.path))?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Renames the complete part file to its blob. The caller must have compared its hash with the hub's.
    fn become_blob(mut self, folder: &Folder, of: &RemoteFile, blob: &Path) -> Result<(), Error> {
        if !is_at(&self.file, &self.path) {
            // Another process has removed the part file during the download. As long as the file is open, its bytes
            // still exist.
            self = self.copied(folder, of)?;
        }
        self.file.sync_all().map_err(io_error("write", &self.path))?;
        // Before the rename, no other process may open the file by its old name.
        fs::rename(&self.path, blob).map_err(io_error("rename to", blob))?;
        self.is_alone = false;
        sync_folder(blob);
        Ok(())
    }

    /// Copies the bytes of a part file that was removed to a new part file.
    fn copied(mut self, folder: &Folder, of: &RemoteFile) -> Result<Self, Error> {
        let mut copy = Self::alone(folder, of)?;
        self.file.rewind().map_err(io_error("read", &self.path))?;
        std::io::copy(&mut self.file, &mut copy.file).map_err(io_error("write", &copy.path))?;
        copy.at = self.at;
        Ok(copy)
    }

    fn remove(mut self) -> Result<(), Error> {
        self.is_alone = false;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(io_error("remove", &self.path)),
        }
    }
}

impl Drop for Part {
    /// No later fetch can resume a file whose name only this fetch knows, so it is removed.
    fn drop(&mut self) {
        if self.is_alone {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn hex(hash: &mut dyn DynDigest) -> String {
    hash.finalize_reset().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The kind of hash that the hub uses for a file: sha256. For a file that is stored in git itself, it is git's hash of
/// a blob.
fn hash_of(file: &RemoteFile) -> Box<dyn DynDigest> {
    if file.etag.len() == 64 {
        return Box::new(sha2::Sha256::default());
    }
    Box::new(sha1::Sha1::new_with_prefix(format!("blob {}\0", file.bytes)))
}

/// Syncs the folder, so that the new name is not lost if the power fails. On some systems a folder cannot be opened;
/// these sync it by themselves.
fn sync_folder(file: &Path) {
    if let Some(folder) = file.parent().and_then(|parent| File::open(parent).ok()) {
        let _ = folder.sync_all();
    }
}
