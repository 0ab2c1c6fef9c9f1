//! The source of a header's bytes: a file that is read at given offsets, or memory. Only this module decodes numbers.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;

/// The longest accepted file, in bytes: its length must fit in an `off_t`.
const MAX_FILE: u64 = i64::MAX as u64;

/// Bytes of one read. They are so many that a system call costs little per byte, and so few that they fit into a core's
/// cache.
const WINDOW: u64 = 256 * 1024;

/// The longest string that llama.cpp reads, in bytes (`GGUF_MAX_STRING_LENGTH`, ggml/src/gguf.cpp).
const MAX_STRING: u64 = 1 << 30;

/// The bytes of one file. Clones are cheap; the file stays open as long as a clone exists.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) path: Arc<Path>,
    bytes: Bytes,
    /// The length of the whole file, at most [`MAX_FILE`], so that offsets into two files can be added.
    pub(crate) len: u64,
}

#[derive(Clone)]
enum Bytes {
    /// A file, with its metadata when it was opened.
    File(Arc<File>, Metadata),
    /// The beginning of a file whose tensor data is elsewhere; it may have fewer bytes than `len`.
    Memory(Arc<[u8]>),
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source, Error> {
        let failed = |source| Error::Open { path: path.to_owned(), source };
        // This is checked before the file is opened, because opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        Ok(Source {
            path: path.into(),
            len: metadata.len().min(MAX_FILE),
            bytes: Bytes::File(Arc::new(file), metadata),
        })
    }

    /// The beginning of a file of `len` bytes, in memory.
    pub(crate) fn memory(path: &str, bytes: Arc<[u8]>, len: u64) -> Source {
        Source {
            path: Path::new(path).into(),
            len: len.max(bytes.len() as u64).min(MAX_FILE),
            bytes: Bytes::Memory(bytes),
        }
    }

    pub(crate) fn path_buf(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// The number of bytes that can be read: the length of the whole file, or of the part in memory.
    pub(crate) fn held(&self) -> u64 {
        match &self.bytes {
            Bytes::File(_, metadata) => metadata.len(),
            Bytes::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Reads at most `buf.len()` bytes at `offset`, fewer at the end of the file.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.bytes {
            #[cfg(unix)]
            Bytes::File(file, _) => std::os::unix::fs::FileExt::read_at(&**file, buf, offset),
            #[cfg(windows)]
            Bytes::File(file, _) => std::os::windows::fs::FileExt::seek_read(&**file, buf, offset),
            #[cfg(not(any(unix, windows)))]
            Bytes::File(..) => Err(io::ErrorKind::Unsupported.into()),
            Bytes::Memory(bytes) => {
                let rest = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
                let n = rest.len().min(buf.len());
                buf[..n].copy_from_slice(&rest[..n]);
                Ok(n)
            }
        }
    }

    /// Fails if the file is no longer the file whose header was read. It is called before each later read.
    pub(crate) fn check_unchanged(&self) -> Result<(), Error> {
        let Bytes::File(file, was) = &self.bytes else {
            return Ok(());
        };
        check_unchanged(&self.path, was, file.metadata())
    }

    /// The file's metadata when it was opened; `None` in memory.
    pub(crate) fn opened(&self) -> Option<&Metadata> {
        if let Bytes::File(_, metadata) = &self.bytes { Some(metadata) } else { None }
    }

    /// The error for an invalid value at byte `at`.
    #[cold]
    pub(crate) fn malformed(&self, at: u64, problem: fmt::Arguments<'_>) -> Error {
        Error::Malformed { path: self.path_buf(), at, problem: problem.to_string() }
    }

    #[cold]
    pub(crate) fn too_long(&self, at: u64, what: fmt::Arguments<'_>, length: u64, limit: u64) -> Error {
        let problem = format_args!("{what} has a length of {length}, but at most {limit} is allowed");
        self.malformed(at, problem)
    }

    #[cold]
    pub(crate) fn not_utf8(&self, at: u64, what: fmt::Arguments<'_>, text: &[u8]) -> Error {
        let text = text.escape_ascii();
        self.malformed(at, format_args!("{what} is not UTF-8: \"{text}\""))
    }
}

/// Fails unless `was` and `is` belong to the same unchanged file.
pub(crate) fn check_unchanged(path: &Path, was: &Metadata, is: io::Result<Metadata>) -> Result<(), Error> {
    let is = is.map_err(|source| Error::Open { path: path.to_owned(), source })?;
    #[cfg(unix)]
    let inode = |file: &Metadata| (file.dev(), file.ino());
    #[cfg(not(unix))]
    let inode = |_: &Metadata| ();
    // A new file may get the inode of a deleted one.
    let born = |file: &Metadata| (inode(file), file.created().ok());
    let identity = |file: &Metadata| (born(file), file.len(), file.modified().ok());
    if identity(was) == identity(&is) {
        return Ok(());
    }
    Err(Error::Changed { path: path.to_owned(), was: was.len(), is: is.len() })
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.len)
    }
}

/// Reads forward through a range of a source. The argument `what` of its methods names the item for errors.
pub(crate) struct Cursor<'s> {
    reader: BufReader<Stretch<'s>>,
}

/// The bytes of a source from `at` to `end`.
struct Stretch<'s> {
    source: &'s Source,
    at: u64,
    end: u64,
}

impl Read for Stretch<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let wanted = (self.end - self.at).min(buf.len() as u64) as usize;
        let read = self.source.read_at(&mut buf[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl<'s> Cursor<'s> {
    /// A cursor over the whole readable source.
    pub(crate) fn new(source: &'s Source) -> Cursor<'s> {
        Cursor::over(source, 0, source.held())
    }

    /// A cursor from `at` to `end`; the caller has checked that `at <= end <= source.held()`.
    pub(crate) fn over(source: &'s Source, at: u64, end: u64) -> Cursor<'s> {
        let window = (end - at).min(WINDOW) as usize;
        Cursor { reader: BufReader::with_capacity(window, Stretch { source, at, end }) }
    }

    pub(crate) fn source(&self) -> &'s Source {
        self.reader.get_ref().source
    }

    /// The source offset of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.reader.get_ref().at - self.reader.buffer().len() as u64
    }

    /// Bytes left before the end.
    pub(crate) fn remaining(&self) -> u64 {
        self.reader.get_ref().end - self.at()
    }

    /// Fails unless `n` bytes are left.
    #[inline]
    pub(crate) fn require(&self, n: u64, what: fmt::Arguments<'_>) -> Result<(), Error> {
        if n <= self.remaining() {
            return Ok(());
        }
        Err(Error::Truncated {
            path: self.source().path_buf(),
            at: self.at(),
            what: what.to_string(),
            needed: n,
            available: self.remaining(),
        })
    }

    /// The next `n` bytes (at most 8), padded with zeros.
    #[inline]
    pub(crate) fn padded(&mut self, n: u64, what: fmt::Arguments<'_>) -> Result<[u8; 8], Error> {
        self.require(n, what)?;
        let mut out = [0; 8];
        self.read_exact(&mut out[..n as usize])?;
        Ok(out)
    }

    #[inline]
    pub(crate) fn u32(&mut self, what: fmt::Arguments<'_>) -> Result<u32, Error> {
        Ok(u64::from_le_bytes(self.padded(4, what)?) as u32)
    }

    #[inline]
    pub(crate) fn u64(&mut self, what: fmt::Arguments<'_>) -> Result<u64, Error> {
        self.padded(8, what).map(u64::from_le_bytes)
    }

    /// Reads the next `n` bytes into `out`, replacing its content.
    pub(crate) fn bytes(&mut self, n: u64, out: &mut Vec<u8>, what: fmt::Arguments<'_>) -> Result<(), Error> {
        self.require(n, what)?;
        out.clear();
        out.resize(n as usize, 0);
        self.read_exact(out)
    }

    /// Reads bytes that end before the known end. A failure means that the file has shrunk or the disk is faulty.
    #[inline]
    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), Error> {
        let at = self.at();
        self.reader.read_exact(out).map_err(|source| Error::Read {
            path: self.source().path_buf(),
            at,
            needed: out.len() as u64,
            source,
        })
    }

    /// Skips `n` bytes, without reading those outside the window.
    #[inline]
    pub(crate) fn skip(&mut self, n: u64, what: fmt::Arguments<'_>) -> Result<(), Error> {
        self.require(n, what)?;
        let buffered = n.min(self.reader.buffer().len() as u64);
        self.reader.consume(buffered as usize);
        self.reader.get_mut().at += n - buffered;
        Ok(())
    }

    /// Skips up to `most` strings that lie completely in the window, and returns their number.
    pub(crate) fn skip_strings(&mut self, most: u64) -> u64 {
        let window = self.reader.buffer();
        let (mut passed, mut rest) = (0, window);
        while passed < most
            && let Some((length, after)) = rest.split_first_chunk()
            && let Ok(length) = usize::try_from(u64::from_le_bytes(*length))
            && let Some(behind) = after.get(length..)
        {
            rest = behind;
            passed += 1;
        }
        let bytes = window.len() - rest.len();
        self.reader.consume(bytes);
        passed
    }

    /// Reads the length of a string and checks it against the remaining bytes. The string itself follows.
    #[inline]
    pub(crate) fn string_len(&mut self, what: fmt::Arguments<'_>) -> Result<u64, Error> {
        let at = self.at();
        let length = self.u64(what)?;
        if length > MAX_STRING {
            return Err(self.source().too_long(at, what, length, MAX_STRING));
        }
        self.require(length, what)?;
        Ok(length)
    }
}
