//! How fast the host's memory is read, measured: threads that stream over more than the caches hold, for a moment.
//!
//! Layers on the host are bound by this, and no file of the system tells it: what memory could do depends on slots,
//! channels and settings, what it does is seen in a tenth of a second. Of several looks the best counts, as in STREAM:
//! what another program reads meanwhile is not this memory's fault.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a look takes.
const WINDOW: Duration = Duration::from_millis(25);

const WINDOWS: usize = 4;

/// Read between two looks at the clock.
const STRIDE: usize = 1 << 20;

const MIB: u64 = 1 << 20;

/// Bytes to read over and over so that hardly any come from a cache: four times the caches, and no more than a GiB
/// where twice is enough.
pub(super) fn buffer_size(caches: u64) -> u64 {
    let enough = caches.saturating_mul(2);
    let good = caches.saturating_mul(4).min(1024 * MIB);
    good.max(enough).max(64 * MIB)
}

/// Bytes per second that so many threads read together from so many bytes of their own memory. `None` where there is no
/// memory or no thread to be had.
///
/// Reading is checking that text is ASCII: a function of the standard library, compiled with all optimisations even
/// where this crate is not, so that a debug build does not measure itself.
pub(super) fn read_rate(threads: usize, bytes: u64) -> Option<u64> {
    let share = usize::try_from(bytes).ok()?.checked_div(threads)?;
    if share < STRIDE {
        return None;
    }
    let ready = AtomicUsize::new(0);
    let begin: OnceLock<Instant> = OnceLock::new();
    let read = || {
        let buffer = filled(share);
        ready.fetch_add(1, Ordering::Release);
        let begin = loop {
            match begin.get() {
                Some(begin) => break *begin,
                None => thread::yield_now(),
            }
        };
        Some(bytes_by_window(&buffer?, begin))
    };
    let all: Option<Vec<[u64; WINDOWS]>> = thread::scope(|scope| {
        let readers: Vec<_> =
            (0..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, read).ok()).collect();
        // The pages are there before anybody starts.
        while ready.load(Ordering::Acquire) < readers.len() {
            thread::sleep(Duration::from_micros(200));
        }
        begin.get_or_init(Instant::now);
        let complete = readers.len() == threads;
        let all = readers.into_iter().map(|reader| reader.join().ok()?);
        all.collect::<Option<_>>().filter(|_| complete)
    });
    let all = all?;
    let sum = |window: usize| all.iter().map(|bytes| bytes[window]).sum::<u64>();
    let best = (0..WINDOWS).map(sum).max()?;
    let rate = u128::from(best) * 1_000_000_000 / WINDOW.as_nanos();
    u64::try_from(rate).ok().filter(|&rate| rate > 0)
}

/// Memory that is written, and therefore there.
fn filled(bytes: usize) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).ok()?;
    buffer.resize(bytes, b'a');
    Some(buffer)
}

/// Reads a buffer again and again from this moment on. A stride counts for the window in which it ends.
fn bytes_by_window(buffer: &[u8], begin: Instant) -> [u64; WINDOWS] {
    let mut bytes = [0; WINDOWS];
    for stride in buffer.chunks_exact(STRIDE).cycle() {
        black_box(std::str::from_utf8(black_box(stride)).is_ok());
        let window = begin.elapsed().as_nanos() / WINDOW.as_nanos();
        let window = usize::try_from(window).unwrap_or(WINDOWS);
        let Some(bytes) = bytes.get_mut(window) else {
            break;
        };
        *bytes += STRIDE as u64;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{MIB, buffer_size, read_rate};

    #[test]
    fn the_buffer_is_always_larger_than_the_caches() {
        for (caches, expected) in [(0, 64), (8, 64), (32, 128), (256, 1024), (1152, 2304)] {
            assert_eq!(buffer_size(caches * MIB), expected * MIB, "{caches}");
        }
        assert_eq!(buffer_size(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_is_read_takes_time_and_what_cannot_be_had_is_no_rate() {
        // On a busy machine no reader may have had its turn in a tenth of a second.
        assert!((0..1000).any(|_| read_rate(2, 8 * MIB).is_some()));
        assert_eq!(read_rate(0, 8 * MIB), None);
        assert_eq!(read_rate(64, 8 * MIB), None);
        assert_eq!(read_rate(2, u64::MAX), None);
    }
}
