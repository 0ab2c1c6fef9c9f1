//! Where the bytes of a header come from: a file, read at given positions, or memory.

use std::fmt::{self, Display};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::error::Error;

/// The longest file: its length must fit in an `off_t`.
pub(super) const MAX_FILE: u64 = i64::MAX as u64;

/// One file's bytes. Cheap to clone; a file stays open as long as a clone lives.
#[derive(Clone)]
pub(super) struct Source {
    path: Arc<Path>,
    bytes: Bytes,
    /// The length of the whole file, at most [`MAX_FILE`], so that offsets into two files can be added.
    len: u64,
}

#[derive(Clone)]
enum Bytes {
    File(Arc<File>, Stamp),
    /// May be fewer than `len`: the beginning of a file whose tensor data is elsewhere.
    Memory(Arc<[u8]>),
}

/// What must stay the same for a file to count as unchanged.
#[derive(Clone, Copy, PartialEq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            len: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Source, Error> {
        let failed = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        // Before opening: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(failed)?;
        let stamp = Stamp::of(&file.metadata().map_err(failed)?);
        Ok(Source {
            path: path.into(),
            bytes: Bytes::File(Arc::new(file), stamp),
            len: stamp.len.min(MAX_FILE),
        })
    }

    /// Bytes in memory that are the beginning of a file of `len` bytes.
    pub(super) fn memory(path: &str, bytes: Arc<[u8]>, len: u64) -> Source {
        Source {
            path: Path::new(path).into(),
            len: len.max(bytes.len() as u64).min(MAX_FILE),
            bytes: Bytes::Memory(bytes),
        }
    }

    pub(super) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub(super) fn path_buf(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// The length of the whole file, in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// How many bytes from the beginning can be read: the whole file, or what is in memory of it.
    pub(super) fn held(&self) -> u64 {
        match &self.bytes {
            Bytes::File(_, stamp) => stamp.len,
            Bytes::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Reads at most `buf.len()` bytes at `offset`, fewer at the end of the file.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.bytes {
            Bytes::File(file, _) => read_file_at(file, buf, offset),
            Bytes::Memory(bytes) => {
                let rest = usize::try_from(offset)
                    .ok()
                    .and_then(|from| bytes.get(from..))
                    .unwrap_or_default();
                let n = rest.len().min(buf.len());
                buf[..n].copy_from_slice(&rest[..n]);
                Ok(n)
            }
        }
    }

    /// Errs if the file is not the one whose header was read; asked before anything is read from it again.
    pub(super) fn check_unchanged(&self) -> Result<(), Error> {
        let Bytes::File(file, was) = &self.bytes else {
            return Ok(());
        };
        let metadata = file.metadata().map_err(|source| Error::Open {
            path: self.path_buf(),
            source,
        })?;
        let is = Stamp::of(&metadata);
        if is == *was {
            return Ok(());
        }
        Err(Error::Changed {
            path: self.path_buf(),
            was: was.len,
            is: is.len,
        })
    }

    /// What stands at byte `at` cannot be.
    #[cold]
    pub(super) fn malformed(&self, at: u64, problem: impl Display) -> Error {
        Error::Malformed {
            path: self.path_buf(),
            at,
            problem: problem.to_string(),
        }
    }

    #[cold]
    pub(super) fn too_long(&self, at: u64, what: impl Display, length: u64, limit: u64) -> Error {
        let problem =
            format_args!("{what} has a length of {length}, but at most {limit} is allowed");
        self.malformed(at, problem)
    }

    #[cold]
    pub(super) fn not_utf8(&self, at: u64, what: impl Display, text: &[u8]) -> Error {
        let text = text.escape_ascii();
        self.malformed(at, format_args!("{what} is not UTF-8: \"{text}\""))
    }
}

/// Two sources are equal if they are the same opened file or the same memory.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        match (&self.bytes, &other.bytes) {
            (Bytes::File(a, _), Bytes::File(b, _)) => Arc::ptr_eq(a, b),
            (Bytes::Memory(a), Bytes::Memory(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.len)
    }
}

#[cfg(unix)]
fn read_file_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
fn read_file_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

#[cfg(not(any(unix, windows)))]
fn read_file_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
