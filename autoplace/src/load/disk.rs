//! Measures how fast a file is read from its disk. The file is read as the pages of a mapped file are: through the page
//! cache, with the system's own read-ahead. Before the measurement, the parts to be read are removed from the page
//! cache.

use std::path::Path;

use crate::machine::DiskRate;

/// Reads up to 64 MiB of the file in about 300 milliseconds. Before that, the system removes these parts from the page
/// cache. `None` if that is impossible: on systems other than Linux, for a short file, and for a file in memory.
pub fn measure_disk(file: &Path) -> Option<DiskRate> {
    #[cfg(target_os = "linux")]
    return linux::read_rate(file);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        None
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::num::NonZeroU64;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rustix::fs::{Advice, fadvise};

    use crate::machine::{DiskRate, DiskRateSource};

    /// Bytes that are read in one stretch, which is long enough for the read-ahead to take effect.
    const STRETCH: u64 = 16 << 20;
    /// Maximum number of stretches.
    const STRETCHES: u64 = 4;
    /// Bytes per read call.
    const READ: usize = 256 << 10;
    /// No further stretch begins after this time.
    const MAX_TIME: Duration = Duration::from_millis(300);
    /// No disk is as fast as this, so a higher rate means that the parts were in memory.
    const MEMORY: u64 = 30_000_000_000;

    pub(super) fn read_rate(path: &Path) -> Option<DiskRate> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let stretches = (length / STRETCH).min(STRETCHES);
        let apart = length / stretches.max(1);
        let mut buffer = vec![0_u8; READ];
        let (mut bytes, mut took) = (0_u64, Duration::ZERO);
        for stretch in 0..stretches {
            let begin = stretch * apart;
            fadvise(&file, begin, NonZeroU64::new(STRETCH), Advice::DontNeed).ok()?;
            let clock = Instant::now();
            for read in 0..STRETCH / READ as u64 {
                file.read_exact_at(&mut buffer, begin + read * READ as u64).ok()?;
            }
            took += clock.elapsed();
            bytes += STRETCH;
            if took > MAX_TIME {
                break;
            }
        }
        let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
        let rate = u64::try_from(rate).ok().filter(|rate| (1..MEMORY).contains(rate))?;
        Some(DiskRate::new(rate, DiskRateSource::Measured))
    }

    #[cfg(test)]
    mod tests {
        use super::read_rate;

        #[test]
        fn a_file_on_a_disk_has_a_rate_and_a_short_one_has_none() {
            let folder = tempfile::tempdir().unwrap();
            let (long, short) = (folder.path().join("long"), folder.path().join("short"));
            std::fs::write(&long, vec![1_u8; 32 << 20]).unwrap();
            std::fs::write(&short, [1; 4096]).unwrap();
            assert_eq!(read_rate(&short), None);
            assert_eq!(read_rate(&folder.path().join("none")), None);
            // A file system in memory has no rate.
            let rate = read_rate(&long);
            assert!(rate.is_none_or(|rate| rate.bytes_per_second > 0), "{rate:?}");
        }
    }
}
