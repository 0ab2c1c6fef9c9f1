//! A bounded window that moves over a source, and the only code that turns file bytes into numbers.

use std::fmt::Display;
use std::io::{self, ErrorKind};

use super::error::Error;
use super::source::Source;

/// The window's size. Large enough that a system call costs little per byte, small enough to stay in a core's cache.
pub(super) const WINDOW: usize = 256 * 1024;

/// The longest string that llama.cpp reads (`GGUF_MAX_STRING_LENGTH`, ggml/src/gguf.cpp), in bytes.
pub(super) const MAX_STRING: u64 = 1 << 30;

/// Reads forward from one offset of a source to another.
pub(super) struct Cursor<'s> {
    source: &'s Source,
    window: Vec<u8>,
    /// The source offset of `window[0]`.
    base: u64,
    /// Where in the window the next byte is.
    pos: usize,
    /// The source offset that nothing is read from.
    end: u64,
}

/// What went wrong, before anybody has said what was being read. [`Fault::about`] makes it an [`Error`].
#[derive(Debug)]
pub(super) enum Fault {
    /// `needed` bytes at `at`, but only `available` before the end.
    Truncated {
        at: u64,
        needed: u64,
        available: u64,
    },
    /// A length field at `at` over the limit.
    TooLong { at: u64, length: u64, limit: u64 },
    /// The system could not read.
    Io {
        at: u64,
        needed: u64,
        source: io::Error,
    },
}

impl Fault {
    /// The error for this fault in the reading of `what` from `source`.
    #[cold]
    pub(super) fn about(self, source: &Source, what: impl Display) -> Error {
        let path = source.path_buf();
        let what = what.to_string();
        match self {
            Fault::Truncated {
                at,
                needed,
                available,
            } => Error::Truncated {
                path,
                at,
                what,
                needed,
                available,
            },
            Fault::TooLong { at, length, limit } => Error::TooLong {
                path,
                at,
                what,
                length,
                limit,
            },
            Fault::Io { at, needed, source } => Error::Read {
                path,
                at,
                needed,
                source,
            },
        }
    }
}

impl<'s> Cursor<'s> {
    /// A cursor over the whole source, as far as it can be read.
    pub(super) fn new(source: &'s Source) -> Cursor<'s> {
        Cursor::over(source, 0, source.held())
    }

    /// A cursor from `start` to `end`; the caller has checked that `start <= end <= source.held()`.
    pub(super) fn over(source: &'s Source, start: u64, end: u64) -> Cursor<'s> {
        Cursor {
            source,
            window: Vec::new(),
            base: start,
            pos: 0,
            end: end.max(start),
        }
    }

    pub(super) fn source(&self) -> &'s Source {
        self.source
    }

    /// The source offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.base + self.pos as u64
    }

    /// How many bytes are left before the end.
    pub(super) fn remaining(&self) -> u64 {
        self.end - self.at()
    }

    /// The next `n` bytes (at most [`WINDOW`]), which stay the next ones.
    #[inline]
    fn peek(&mut self, n: usize) -> Result<&[u8], Fault> {
        if self.window.len() - self.pos < n {
            self.fill(n)?;
        }
        Ok(&self.window[self.pos..self.pos + n])
    }

    /// Moves the window so that it begins at the next byte and holds at least `n` (at most [`WINDOW`]) bytes.
    #[cold]
    fn fill(&mut self, n: usize) -> Result<(), Fault> {
        debug_assert!(n <= WINDOW);
        let at = self.at();
        let available = self.remaining();
        self.require(n as u64)?;
        let size = available.min(WINDOW as u64) as usize;
        self.base = at;
        self.pos = 0;
        self.window.resize(size, 0);
        let mut filled = 0;
        while filled < n {
            let read = self
                .source
                .read_at(&mut self.window[filled..], at + filled as u64);
            match read {
                Ok(0) => return Err(self.lost(at, n, ErrorKind::UnexpectedEof.into())),
                Ok(read) => filled += read,
                Err(source) => return Err(self.lost(at, n, source)),
            }
        }
        self.window.truncate(filled);
        Ok(())
    }

    /// The fault of a read that should have succeeded: the file has shrunk, or the disk is ill.
    fn lost(&mut self, at: u64, n: usize, source: io::Error) -> Fault {
        self.window.clear();
        Fault::Io {
            at,
            needed: n as u64,
            source,
        }
    }

    /// Errs unless `n` bytes are left.
    #[inline]
    pub(super) fn require(&self, n: u64) -> Result<(), Fault> {
        let available = self.remaining();
        if n <= available {
            return Ok(());
        }
        Err(Fault::Truncated {
            at: self.at(),
            needed: n,
            available,
        })
    }

    /// The next `N` bytes.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut out = [0; N];
        out.copy_from_slice(self.peek(N)?);
        self.pos += N;
        Ok(out)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    /// Passes over `n` bytes, without reading those outside the window.
    #[inline]
    pub(super) fn skip(&mut self, n: u64) -> Result<(), Fault> {
        let ahead = self.window.len() - self.pos;
        if n <= ahead as u64 {
            self.pos += n as usize;
            return Ok(());
        }
        self.require(n)?;
        self.base = self.at() + n;
        self.pos = 0;
        self.window.clear();
        Ok(())
    }

    /// The length of a string, checked against what is left. The string itself comes next.
    #[inline]
    pub(super) fn string_len(&mut self) -> Result<u64, Fault> {
        let length = self.u64()?;
        if length > MAX_STRING {
            return Err(Fault::TooLong {
                at: self.at() - 8,
                length,
                limit: MAX_STRING,
            });
        }
        self.require(length)?;
        Ok(length)
    }

    /// Passes over `count` strings, checking every length. An error tells which string it is.
    pub(super) fn skip_strings(&mut self, count: u64) -> Result<(), (u64, Fault)> {
        for index in 0..count {
            let skipped = self.string_len().and_then(|length| self.skip(length));
            skipped.map_err(|fault| (index, fault))?;
        }
        Ok(())
    }

    /// Appends the next `n` bytes to `out`, window by window: `out` grows by no more than what was really read.
    pub(super) fn append(&mut self, n: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.require(n)?;
        let mut left = n;
        while left > 0 {
            let step = left.min(WINDOW as u64) as usize;
            out.extend_from_slice(self.peek(step)?);
            self.pos += step;
            left -= step as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(len: usize) -> Source {
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        Source::memory("<test>", bytes.into(), len as u64)
    }

    #[test]
    fn numbers_that_straddle_the_window_are_read_whole() {
        let source = source(WINDOW * 2);
        let mut cursor = Cursor::new(&source);
        cursor.u32().unwrap();
        cursor.skip(WINDOW as u64 - 6).unwrap();
        let at = cursor.at() as usize;
        let expected: [u8; 8] = std::array::from_fn(|i| ((at + i) % 251) as u8);
        assert_eq!(cursor.array::<8>().unwrap(), expected);
    }

    #[test]
    fn a_read_past_the_end_says_what_was_needed_and_what_there_was() {
        let source = source(10);
        let mut cursor = Cursor::new(&source);
        cursor.skip(7).unwrap();
        let fault = cursor.u64().unwrap_err();
        assert!(
            matches!(
                fault,
                Fault::Truncated {
                    at: 7,
                    needed: 8,
                    available: 3
                }
            ),
            "{fault:?}"
        );
        assert!(cursor.skip(u64::MAX).is_err());
        assert_eq!(cursor.at(), 7);
    }

    #[test]
    fn bytes_longer_than_the_window_are_appended_whole() {
        let source = source(WINDOW * 3);
        let mut cursor = Cursor::new(&source);
        cursor.skip(1).unwrap();
        let mut out = Vec::new();
        cursor.append(WINDOW as u64 * 2 + 5, &mut out).unwrap();
        assert_eq!(out.len(), WINDOW * 2 + 5);
        assert!(
            out.iter()
                .enumerate()
                .all(|(i, &b)| b == ((i + 1) % 251) as u8)
        );
    }
}
