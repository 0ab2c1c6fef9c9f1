//! How fast a file is read from its disk: parts of it are read past the page cache, which may hold them already.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// `O_DIRECT` (Linux, asm-generic/fcntl.h, and its exceptions).
const O_DIRECT: i32 = if cfg!(any(target_arch = "aarch64", target_arch = "arm", target_arch = "powerpc64")) {
    0o200_000
} else {
    0o40_000
};
/// What direct reads begin at multiples of: the largest sector of common disks, and a page.
const ALIGNMENT: usize = 4096;
/// One read.
const CHUNK: usize = 4 << 20;
/// Reads at most, 64 MiB in all.
const READS: u64 = 16;
/// After so long no further read begins.
const LONGEST: Duration = Duration::from_millis(300);

/// Bytes per second; `None` where the file cannot be read past the cache (a file in memory), or is too short to tell.
pub(super) fn read_rate(file: &Path) -> Option<u64> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(O_DIRECT).open(file).ok()?;
    let chunk = CHUNK as u64;
    let chunks = file.metadata().ok()?.len() / chunk;
    let mut memory = vec![0_u8; CHUNK + ALIGNMENT];
    let begin = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = memory.get_mut(begin..begin + CHUNK)?;
    let mut bytes = 0_u64;
    let clock = Instant::now();
    for read in 0..READS.min(chunks) {
        // All over the file.
        let place = chunks / READS.min(chunks) * read;
        bytes += file.read_at(buffer, place * chunk).ok()? as u64;
        if clock.elapsed() > LONGEST {
            break;
        }
    }
    let rate = u128::from(bytes) * 1_000_000_000 / clock.elapsed().as_nanos().max(1);
    u64::try_from(rate).ok().filter(|&rate| rate > 0)
}
