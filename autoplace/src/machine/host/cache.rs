//! What was measured of this machine, kept for the next time: one line per machine, since a home directory may be on several.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use super::Host;
use crate::machine::bandwidth::Bandwidth;
use crate::machine::date::Date;

/// The first line. The number changes with the meaning of the others.
const HEADER: &str = "autoplace host bandwidth 1";

const FILE: &str = "host-bandwidth";

/// More machines than this are forgotten, the oldest line first.
const MACHINES: usize = 64;

/// The measured bandwidth of host memory, in a file of the user's cache folder.
///
/// A machine is known by its processor, its cores, those that the process may use, and its memory in GiB. A file that cannot be read, written or
/// understood is as good as none, and is said to `tracing` at debug level: measuring again is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthCache {
    folder: Option<PathBuf>,
}

impl BandwidthCache {
    /// The one in the user's cache folder: `$XDG_CACHE_HOME/autoplace` or `~/.cache/autoplace`, `~/Library/Caches/autoplace` on macOS,
    /// `%LOCALAPPDATA%\autoplace` on Windows. Where the user has no home it keeps nothing.
    #[must_use]
    pub fn user() -> Self {
        let strategy = etcetera::base_strategy::choose_native_strategy();
        let folder = strategy.map(|dirs| dirs.cache_dir().join("autoplace"));
        Self {
            folder: folder.ok(),
        }
    }

    /// The one in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Some(folder.into()),
        }
    }

    /// What was measured of this machine.
    #[must_use]
    pub fn get(&self, host: &Host) -> Option<Bandwidth> {
        let folder = self.folder.as_deref()?;
        let key = key(host);
        let found = entries(folder).into_iter().find(|entry| entry.key == key)?;
        Some(Bandwidth::measured(found.bytes_per_second, found.date))
    }

    /// Keeps a measurement of this machine, instead of an earlier one. What was not measured is not kept.
    pub fn put(&self, host: &Host, bandwidth: Bandwidth) {
        let (Some(folder), Some(date), true) = (
            self.folder.as_deref(),
            bandwidth.date,
            bandwidth.is_measured(),
        ) else {
            return;
        };
        let key = key(host);
        let mut entries = entries(folder);
        entries.retain(|entry| entry.key != key);
        entries.push(Entry {
            date,
            bytes_per_second: bandwidth.bytes_per_second,
            key,
        });
        let first = entries.len().saturating_sub(MACHINES);
        if let Err(error) = write(folder, &entries[first..]) {
            tracing::debug!(%error, folder = %folder.display(), "the bandwidth is not kept");
        }
    }
}

struct Entry {
    date: Date,
    bytes_per_second: u64,
    key: String,
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let date = parts.next()?.parse().ok()?;
        let bytes_per_second = parts.next()?.parse().ok().filter(|&bytes| bytes > 0)?;
        let key = parts.next()?.to_owned();
        Some(Self {
            date,
            bytes_per_second,
            key,
        })
    }
}

/// What tells one machine from another.
fn key(host: &Host) -> String {
    let cpu = host.cpu.as_deref().unwrap_or("unknown processor");
    let count = |cores: Option<u32>| cores.map_or_else(|| "?".to_owned(), |n| n.to_string());
    // The kernel's own part of the memory, and with it the total, changes from version to version.
    let gib = host.total.saturating_add(1 << 29) >> 30;
    let key = format!(
        "{cpu}, {} of {} cores, {gib} GiB",
        count(host.usable_cores),
        count(host.physical_cores)
    );
    key.replace(char::is_control, " ")
}

fn entries(folder: &Path) -> Vec<Entry> {
    let text = match fs::read_to_string(folder.join(FILE)) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::debug!(%error, folder = %folder.display(), "no bandwidth is read from here");
            }
            return Vec::new();
        }
    };
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        tracing::debug!(folder = %folder.display(), "the file of bandwidths is not of this version");
        return Vec::new();
    }
    lines.filter_map(Entry::parse).collect()
}

/// Written beside and moved into its place: a reader finds the old file or the new one.
fn write(folder: &Path, entries: &[Entry]) -> io::Result<()> {
    let mut text = format!("{HEADER}\n");
    for entry in entries {
        let Entry {
            date,
            bytes_per_second,
            key,
        } = entry;
        text.push_str(&format!("{date} {bytes_per_second} {key}\n"));
    }
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!("{FILE}.{}", std::process::id()));
    fs::write(&beside, text)?;
    fs::rename(&beside, folder.join(FILE)).inspect_err(|_| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
    })
}
