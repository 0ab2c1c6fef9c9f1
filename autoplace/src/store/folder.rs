//! The folder of a store, with a file for each piece. A file is written under another name first, and is checked when
//! it is read.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use super::found::Id;
use super::piece::Header;
use crate::private::{create, is_of, of_file};

/// The store that has locked this file writes to the folder. Other stores only read there.
const LOCK: &str = "lock";
const PIECE: &str = "piece";
/// The ending of a file that is being written.
const UNFINISHED: &str = "unfinished";

/// A folder of pieces.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The locked file; empty while another process, or another store of this process, writes to the folder.
    lock: OnceLock<File>,
}

impl Folder {
    /// Creates the folder if it is missing, and checks that it belongs to this user alone.
    pub(super) fn create(path: &Path) -> io::Result<()> {
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(|error| of_file(above, &error))?;
        }
        private(path)
    }

    /// Opens a folder, and reads the headers of its pieces. Calls `reads` after each file. The process that holds the
    /// folder's lock also removes unfinished and damaged files.
    pub(super) fn open(path: &Path, reads: &dyn Fn()) -> io::Result<(Self, Vec<Header>)> {
        Self::create(path)?;
        let folder = Self { path: path.to_owned(), lock: OnceLock::new() };
        let found = match folder.try_lock()? {
            Ok(lock) => folder.scan_as_writer(lock, |folder| folder.scan(true, reads))?,
            Err(error) => {
                tracing::warn!(
                    target: "autoplace::store",
                    "another process writes to {}, so this store only reads the folder for now ({error})", path.display()
                );
                folder.scan(false, reads)?
            }
        };
        Ok((folder, found))
    }

    /// Locks the folder's file, or returns why it cannot be locked.
    fn try_lock(&self) -> io::Result<Result<File, TryLockError>> {
        let file = self.path.join(LOCK);
        let file = private_file(File::options().read(true).write(true).create(true).truncate(false), &file)
            .map_err(|error| of_file(&file, &error))?;
        Ok(file.try_lock().map(|()| file))
    }

    /// Becomes the folder's writer if there is no other writer any more. Calls `reads` after each file. Returns the
    /// headers of the pieces in the folder; `None` if there is another writer.
    pub(super) fn take_over(&self, reads: &dyn Fn()) -> io::Result<Option<Vec<Header>>> {
        let Ok(lock) = self.try_lock()? else { return Ok(None) };
        tracing::info!(target: "autoplace::store", "no other process writes to {} any more", self.path.display());
        self.scan_as_writer(lock, |folder| folder.scan(true, reads)).map(Some)
    }

    /// Scans the folder with `scan`, and becomes its writer if the scan succeeds. After a failure, the folder is
    /// unlocked, so that any store can try again.
    fn scan_as_writer(
        &self,
        lock: File,
        scan: impl FnOnce(&Self) -> io::Result<Vec<Header>>,
    ) -> io::Result<Vec<Header>> {
        match scan(self) {
            Ok(found) => {
                drop(self.lock.set(lock));
                Ok(found)
            }
            Err(error) => {
                drop(lock.unlock());
                Err(error)
            }
        }
    }

    /// Whether this store writes to the folder.
    pub(super) fn is_ours(&self) -> bool {
        self.lock.get().is_some()
    }

    /// Reads the headers of all pieces. The writer also removes unfinished and damaged files.
    fn scan(&self, is_writer: bool, reads: &dyn Fn()) -> io::Result<Vec<Header>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(|error| of_file(&self.path, &error))? {
            let Ok(entry) = entry else { continue };
            let file = entry.path();
            let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            // Files of other programs are left alone.
            if ending != PIECE && ending != UNFINISHED {
                continue;
            }
            let header = if ending == UNFINISHED { Err(io::Error::other("unfinished")) } else { header_of(&file) };
            let header = header.and_then(|header| match self.file(header.id) == file {
                true => Ok(header),
                false => Err(damaged("another piece's name")),
            });
            match header {
                Ok(header) => found.push(header),
                Err(error) => {
                    tracing::debug!(target: "autoplace::store", "{} is not used: {error}", file.display());
                    if is_writer {
                        delete(&file);
                    }
                }
            }
            reads();
        }
        Ok(found)
    }

    fn file(&self, id: Id) -> PathBuf {
        self.path.join(format!("{id:032x}.{PIECE}"))
    }

    /// Writes a piece. A failure leaves nothing behind.
    pub(super) fn write(&self, header: &Header, data: &[u8]) -> io::Result<()> {
        let file = self.file(header.id);
        let unfinished = file.with_extension(UNFINISHED);
        let write = || {
            let mut options = File::options();
            let mut to = private_file(options.write(true).create(true).truncate(true), &unfinished)?;
            to.write_all(&header.encode())?;
            to.write_all(data)?;
            to.write_all(&header.checksum(data))?;
            drop(to);
            fs::rename(&unfinished, &file)
        };
        write().inspect_err(|_| drop(fs::remove_file(&unfinished))).map_err(|error| of_file(&file, &error))
    }

    /// The file of a piece.
    pub(super) fn piece(&self, id: Id) -> PieceFile {
        PieceFile { path: self.file(id), is_ours: self.is_ours() }
    }

    /// Removes a piece, if this store writes to the folder.
    pub(super) fn remove(&self, id: Id) {
        if self.is_ours() {
            delete(&self.file(id));
        }
    }
}

/// The file of a piece. It is read without the folder, so that a disk that does not answer holds no lock.
#[derive(Debug)]
pub(super) struct PieceFile {
    path: PathBuf,
    /// Whether this store writes to the folder.
    is_ours: bool,
}

impl PieceFile {
    /// Reads the data of the piece.
    pub(super) fn read(&self, header: &Header) -> io::Result<Vec<u8>> {
        let read = || {
            let mut file = File::open(&self.path)?;
            let found = read_header(&mut file)?;
            if found != (Header { modified: None, ..header.clone() }) {
                return Err(damaged("the header is another piece's"));
            }
            let bytes = usize::try_from(header.data_bytes).map_err(|_| damaged("the data is too long"))?;
            let mut data = Vec::new();
            data.try_reserve_exact(bytes)?;
            (&mut file).take(header.data_bytes).read_to_end(&mut data)?;
            let mut checksum = Vec::new();
            file.take(17).read_to_end(&mut checksum)?;
            if data.len() != bytes || checksum != header.checksum(&data) {
                return Err(damaged("the checksum of its data is wrong"));
            }
            Ok(data)
        };
        let data = read().map_err(|error| of_file(&self.path, &error))?;
        if self.is_ours {
            // The time of the file tells the next process when the piece was used.
            let file = File::options().write(true).open(&self.path);
            drop(file.and_then(|file| file.set_modified(SystemTime::now())));
        }
        Ok(data)
    }
}

fn delete(file: &Path) {
    if let Err(error) = fs::remove_file(file)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::debug!(target: "autoplace::store", "{} cannot be removed: {error}", file.display());
    }
}

impl Drop for Folder {
    /// Unlocks explicitly, because a child process that is being started holds a copy of the handle until it runs.
    fn drop(&mut self) {
        if let Some(lock) = self.lock.get() {
            drop(lock.unlock());
        }
    }
}

fn header_of(path: &Path) -> io::Result<Header> {
    let there = fs::symlink_metadata(path)?;
    if !there.is_file() {
        return Err(damaged("not a regular file"));
    }
    let mut header = read_header(&mut File::open(path)?)?;
    if there.len() != header.file_bytes() {
        return Err(damaged("the length is wrong"));
    }
    header.modified = there.modified().ok();
    Ok(header)
}

fn read_header(file: &mut File) -> io::Result<Header> {
    let mut bytes = vec![0; Header::PREFIX];
    file.read_exact(&mut bytes)?;
    let length = Header::length(&bytes).map_err(damaged)?;
    bytes.resize(length, 0);
    file.read_exact(&mut bytes[Header::PREFIX..])?;
    Header::decode(&bytes).map_err(damaged)
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

/// Creates the folder for this user alone. Refuses a folder that another user owns or can use, because that user could
/// read the texts, or forge computed states.
fn private(folder: &Path) -> io::Result<()> {
    create(folder)?;
    let there = fs::metadata(folder).map_err(|error| of_file(folder, &error))?;
    if !there.is_dir() {
        return Err(of_file(folder, &io::Error::new(ErrorKind::NotADirectory, "not a folder")));
    }
    if !is_of(&there, llama_sys::user_id(), 0o077) {
        let reason = "others can use this folder; prompts are stored only where this user alone can (chmod 700)";
        return Err(of_file(folder, &io::Error::new(ErrorKind::PermissionDenied, reason)));
    }
    Ok(())
}

fn private_file(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::Folder;

    #[test]
    fn a_folder_whose_scan_failed_is_taken_over_by_the_next_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let (writer, _) = Folder::open(&path, &|| ()).unwrap();
        let (next, _) = Folder::open(&path, &|| ()).unwrap();
        assert!(!next.is_ours());
        drop(writer);
        let lock = next.try_lock().unwrap().unwrap();
        next.scan_as_writer(lock, |_| Err(io::Error::other("no more files"))).unwrap_err();
        assert!(!next.is_ours());
        assert_eq!(next.take_over(&|| ()).unwrap(), Some(Vec::new()));
        assert!(next.is_ours());
    }
}
