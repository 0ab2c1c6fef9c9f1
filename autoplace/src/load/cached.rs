//! How much of a file is in the page cache, and therefore need not be read from the disk.

use std::path::Path;

/// The share of a file's pages that are in the page cache, 0.0 to 1.0, from a sample of 256 pages. Reads nothing from
/// the disk. `None` on systems other than Linux, and for file systems that do not report this.
pub(super) fn cached_share(file: &Path) -> Option<f64> {
    #[cfg(all(target_os = "linux", not(target_env = "uclibc")))]
    return linux::cached_share(file);
    #[cfg(not(all(target_os = "linux", not(target_env = "uclibc"))))]
    {
        let _ = file;
        None
    }
}

#[cfg(all(target_os = "linux", not(target_env = "uclibc")))]
mod linux {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::path::Path;

    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    /// Number of sampled pages, evenly spread.
    const SAMPLES: u64 = 256;

    pub(super) fn cached_share(path: &Path) -> Option<f64> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let samples = SAMPLES.min(length.div_ceil(4096)).max(1);
        let (mut cached, mut byte) = (0, [0_u8]);
        for sample in 0..samples {
            let at = u64::try_from(u128::from(length) * u128::from(sample) / u128::from(samples)).unwrap_or(u64::MAX);
            match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) {
                Ok(_) => cached += 1,
                Err(Errno::AGAIN) => {}
                // The file system does not support the flag.
                Err(_) => return None,
            }
        }
        Some(f64::from(cached) / samples as f64)
    }

    #[cfg(test)]
    mod tests {
        use super::cached_share;

        #[test]
        fn a_file_that_was_just_written_is_in_the_page_cache() {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("file");
            std::fs::write(&file, vec![1_u8; 4 << 20]).unwrap();
            assert!(cached_share(&file).is_none_or(|share| share > 0.9), "{:?}", cached_share(&file));
            assert_eq!(cached_share(&folder.path().join("none")), None);
        }
    }
}
