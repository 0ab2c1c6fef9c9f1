//! The host: its memory, and the limit that really holds for this process.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::note::{Note, Notes};

mod cgroup;
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;
mod tree;

/// The computer's main memory, as far as this process may use it.
///
/// Swap does not count: weights in swap are read back for every token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Host {
    /// Bytes of physical memory.
    pub total: u64,
    /// Bytes that this process can take now without being killed, refused or swapped: `system_available` and every limit
    /// on the process, whichever is least.
    pub available: u64,
    /// Bytes that the system as a whole has available, before any limit on this process. Page cache that the system can
    /// drop counts as available.
    pub system_available: u64,
    /// What decides `available`.
    pub limit: HostLimit,
    /// Physical cores, without hyper-threads, where the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_cores: Option<u32>,
}

/// What decides how much of the host's memory this process can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "bound", rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostLimit {
    /// Somebody wrote the number down: a hypothetical machine.
    Stated,
    /// What the system says is available; no limit on the process is tighter.
    System,
    /// A control group around the process: a container, a systemd slice, a batch job.
    Cgroup {
        /// The file that holds the limit: `/sys/fs/cgroup/user.slice/memory.max`.
        file: String,
        /// The limit in bytes, of which others in the group may use a part.
        bytes: u64,
    },
    /// The limit on the process's address space (`ulimit -v`, `RLIMIT_AS`).
    AddressSpace {
        /// The limit in bytes, of which the process already uses a part.
        bytes: u64,
    },
    /// The limit on the process's data segment (`ulimit -d`, `RLIMIT_DATA`), which since Linux 4.7 counts private writable mappings too.
    DataSegment {
        /// The limit in bytes, of which the process already uses a part.
        bytes: u64,
    },
    /// Nothing could be read. `available` is 0: nothing is promised that was not seen.
    Unknown,
}

impl Host {
    /// This computer, with notes on what could not be seen.
    ///
    /// On Linux it is [`detect_under`](Self::detect_under) the real root. Elsewhere the `sysinfo` crate answers and no limit on
    /// the process is known; that path has been compiled for Windows and macOS and not been run there.
    #[must_use]
    pub fn detect() -> (Self, Vec<Note>) {
        #[cfg(target_os = "linux")]
        return Self::detect_under(Path::new("/"));
        #[cfg(not(target_os = "linux"))]
        return other::detect();
    }

    /// The Linux computer that `{root}/proc` and `{root}/sys` describe, with notes on what could not be seen.
    ///
    /// What `/proc/meminfo` calls available, bounded by the memory limit of every control group around the process (both
    /// versions, from the process's own group to the top of what is mounted) and by its limits on address space and data
    /// segment. Page cache that can be dropped counts as free throughout.
    #[must_use]
    pub fn detect_under(root: &Path) -> (Self, Vec<Note>) {
        let mut notes = Notes::default();
        let host = linux::detect_under(root, &mut notes);
        (host, notes.into_vec())
    }

    /// A host with so many bytes of memory, all of them available.
    #[must_use]
    pub const fn new(total: u64) -> Self {
        Self {
            total,
            available: total,
            system_available: total,
            limit: HostLimit::Stated,
            physical_cores: None,
        }
    }

    /// Sets the bytes available; more than its total counts as its total.
    #[must_use]
    pub const fn available(mut self, bytes: u64) -> Self {
        self.available = if bytes < self.total {
            bytes
        } else {
            self.total
        };
        self.system_available = self.available;
        self
    }

    /// Sets the number of physical cores.
    #[must_use]
    pub const fn physical_cores(mut self, cores: u32) -> Self {
        self.physical_cores = Some(cores);
        self
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "host: {} free of {}",
            Bytes(self.available),
            Bytes(self.total)
        )?;
        match &self.limit {
            HostLimit::Stated | HostLimit::System => Ok(()),
            limit => write!(
                f,
                " ({limit}; the system has {} free)",
                Bytes(self.system_available)
            ),
        }
    }
}

impl fmt::Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stated => f.write_str("as stated"),
            Self::System => f.write_str("what the system has available"),
            Self::Cgroup { file, bytes } => write!(f, "limited to {} by {file}", Bytes(*bytes)),
            Self::AddressSpace { bytes } => {
                write!(f, "address space limited to {} (ulimit -v)", Bytes(*bytes))
            }
            Self::DataSegment { bytes } => {
                write!(f, "data limited to {} (ulimit -d)", Bytes(*bytes))
            }
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Host, HostLimit};
    use crate::machine::bytes::gib;

    #[test]
    fn a_stated_host_has_all_of_its_memory_until_told_otherwise() {
        let host = Host::new(gib(64));
        assert_eq!(
            (host.available, host.system_available, &host.limit),
            (gib(64), gib(64), &HostLimit::Stated)
        );
        let busy = host.available(gib(40)).physical_cores(12);
        assert_eq!(
            (busy.available, busy.system_available, busy.physical_cores),
            (gib(40), gib(40), Some(12))
        );
        assert_eq!(busy.to_string(), "host: 40.0 GiB free of 64.0 GiB");
    }

    #[test]
    fn more_available_than_total_counts_as_total() {
        assert_eq!(Host::new(gib(8)).available(gib(9)).available, gib(8));
    }
}
