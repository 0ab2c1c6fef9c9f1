//! What was measured of this machine's memory, kept for the next time.

use std::path::PathBuf;

use super::Host;
use crate::machine::bandwidth::Bandwidth;
use crate::machine::cache::CacheFile;

const FILE: &str = "host-bandwidth";
const HEADER: &str = "autoplace host bandwidth 1";

/// The measured bandwidth of host memory, in a file of the user's cache folder.
///
/// A machine is known by its processor, its cores, those that the process may use, and its memory in GiB. A file
/// that cannot be read, written or understood is as good as none, and is said to `tracing` at debug level:
/// measuring again is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthCache {
    file: CacheFile<1>,
}

impl BandwidthCache {
    /// The one in the user's cache folder: `$XDG_CACHE_HOME/autoplace` or `~/.cache/autoplace`,
    /// `~/Library/Caches/autoplace` on macOS, `%LOCALAPPDATA%\autoplace` on Windows. Where the user has no home
    /// it keeps nothing.
    #[must_use]
    pub fn user() -> Self {
        Self {
            file: CacheFile::user(FILE, HEADER),
        }
    }

    /// The one in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            file: CacheFile::at(folder.into(), FILE, HEADER),
        }
    }

    /// What was measured of this machine.
    #[must_use]
    pub fn get(&self, host: &Host) -> Option<Bandwidth> {
        let (date, [bytes_per_second]) = self.file.get(&key(host))?;
        (bytes_per_second > 0).then(|| Bandwidth::measured(bytes_per_second, date))
    }

    /// Keeps a measurement of this machine, instead of an earlier one. What was not measured is not kept.
    pub fn put(&self, host: &Host, bandwidth: Bandwidth) {
        if let (Some(date), true) = (bandwidth.date, bandwidth.is_measured()) {
            self.file
                .put(&key(host), date, [bandwidth.bytes_per_second]);
        }
    }
}

/// What tells one machine from another.
pub(in crate::machine) fn key(host: &Host) -> String {
    let cpu = host.cpu.as_deref().unwrap_or("unknown processor");
    let count = |cores: Option<u32>| cores.map_or_else(|| "?".to_owned(), |n| n.to_string());
    // The kernel's own part of the memory, and with it the total, changes from version to version.
    let gib = host.total.saturating_add(1 << 29) >> 30;
    format!(
        "{cpu}, {} of {} cores, {gib} GiB",
        count(host.usable_cores),
        count(host.physical_cores)
    )
}
