//! A reader that ends when its time is up.

use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symphonia::core::io::MediaSource;

use crate::Error;

/// The number of bytes that a decoder may read before the clock is read again.
const BETWEEN_LOOKS: usize = 4 << 10;

/// The time that a decoder has left.
///
/// Every decoder can handle a file that ends at any byte, but not every decoder passes on an error from its reader. So
/// when the time is up, the reader reports the end of the file. After that, [`Deadline::check`] says whether the time
/// was up.
#[derive(Clone)]
pub(crate) struct Deadline {
    limit: Duration,
    started: Instant,
    passed: Arc<AtomicBool>,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { limit, started: Instant::now(), passed: Arc::default() }
    }

    /// Whether the time is up, now or at an earlier call.
    fn has_passed(&self) -> bool {
        if self.started.elapsed() >= self.limit {
            self.passed.store(true, Ordering::Relaxed);
        }
        self.passed.load(Ordering::Relaxed)
    }

    /// Fails if the time is up.
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        if self.has_passed() {
            return Err(Error::TooSlow { name: name.to_owned(), limit: self.limit });
        }
        Ok(())
    }
}

/// A reader that reports the end of the file when the time is up.
pub(crate) struct Timed<R> {
    inner: R,
    bytes: u64,
    deadline: Deadline,
    until_look: usize,
}

impl<R> Timed<R> {
    /// `bytes` is the length of the file.
    pub(crate) fn new(inner: R, bytes: u64, deadline: &Deadline) -> Self {
        Self { inner, bytes, deadline: deadline.clone(), until_look: 0 }
    }

    /// How many bytes may be read before the clock is read again; 0 when the time is up.
    fn allowance(&mut self) -> usize {
        if self.until_look == 0 && !self.deadline.has_passed() {
            self.until_look = BETWEEN_LOOKS;
        }
        self.until_look
    }
}

impl<R: Read> Read for Timed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.allowance());
        let read = self.inner.read(&mut buffer[..most])?;
        self.until_look -= read;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Timed<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let most = self.allowance();
        let bytes = self.inner.fill_buf()?;
        Ok(&bytes[..bytes.len().min(most)])
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        self.until_look = self.until_look.saturating_sub(amount);
    }
}

impl<R: Seek> Seek for Timed<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl<R: Read + Seek + Send + Sync> MediaSource for Timed<R> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_ends_when_its_time_is_up_and_says_so() {
        let bytes = [7; 3 * BETWEEN_LOOKS];
        let deadline = Deadline::after(Duration::MAX);
        let mut read = Vec::new();
        Timed::new(bytes.as_slice(), 0, &deadline).read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
        deadline.check("a").unwrap();

        let deadline = Deadline::after(Duration::ZERO);
        let mut reader = Timed::new(bytes.as_slice(), 0, &deadline);
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 0);
        assert_eq!(reader.fill_buf().unwrap(), b"");
        let error = deadline.check("a").unwrap_err();
        assert_eq!(error.to_string(), "a: decoding was stopped: it took longer than 0ns");
    }
}
