//! The host: its memory and processors, and the limits that apply to this process.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ParseError;
use super::bandwidth::{Bandwidth, BandwidthSource};
use super::bytes::{Bytes, gib, mib};
use super::catalogue::{self, CatalogueError};
use super::disk::{DiskRate, DiskRateSource};
use super::measured::MeasuredRates;
use super::tree::{Note, Notes, Tree};

mod cgroup;
mod cpu_limit;
mod cpu_watch;
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

pub use cpu_limit::CpuLimit;
pub use cpu_watch::CpuWatch;

/// The main memory and the processors of the computer, as far as this process may use them.
///
/// Swap does not count: weights in swap are read back for every token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Host {
    /// Bytes of physical memory.
    pub total: u64,
    /// Bytes that this process can take now without being killed, refused or swapped: the minimum of `system_available`
    /// and of every limit on the process.
    pub available: u64,
    /// Bytes that the whole system has available, before limits on this process. Page cache that the system can drop
    /// counts as available.
    pub system_available: u64,
    /// The limit that determines `available`.
    pub limit: HostLimit,
    /// The processor's name, if reported: `AMD Ryzen 9 7950X 16-Core Processor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The number of physical cores, without hyper-threads, if reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_cores: Option<u32>,
    /// The number of physical cores for computing, if reported: the cores on which this process may run (`taskset`, a
    /// container's cpuset or a batch job may exclude some). On Intel's and Apple's processors with two kinds of cores,
    /// only performance cores count: all threads wait for each other after every operation, so one efficiency core
    /// would delay the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable_cores: Option<u32>,
    /// The limit on processor time, if a control group around this process has one (a container started with `--cpus`,
    /// a batch job). If there are more threads than the limit keeps busy, threads wait for each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<CpuLimit>,
    /// The read bandwidth of the memory if all cores read, if stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// The read rate of the model's disk, if measured or stated. The rate matters for a model that does not fit in
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskRate>,
    /// Rates of ggml's operations on the processor, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<MeasuredRates>,
}

/// The limit that determines how much of the host's memory this process can take.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "bound", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are the limit, in bytes, and the file that holds it.
pub enum HostLimit {
    /// A stated number, for a hypothetical machine.
    #[default]
    #[error("as stated")]
    Stated,
    /// The system's available memory, because no limit on the process is tighter.
    #[error("what the system has available")]
    System,
    /// A control group around the process (a container, a systemd slice, a batch job). Other processes of the group may
    /// use a part of it.
    #[error("limited to {} by {file}", Bytes(*bytes))]
    Cgroup { file: String, bytes: u64 },
    /// The memory nodes that the process may use (`cpuset.mems`, `numactl --membind`), with their total bytes.
    #[error("limited to {} of memory nodes {nodes}", Bytes(*bytes))]
    MemoryNodes { nodes: String, bytes: u64 },
    /// The limit on the process's address space (`ulimit -v`, `RLIMIT_AS`). The process already uses a part of it.
    #[error("address space limited to {} (ulimit -v)", Bytes(*bytes))]
    AddressSpace { bytes: u64 },
    /// The limit on the process's data segment (`ulimit -d`, `RLIMIT_DATA`). Since Linux 4.7 it includes private
    /// writable mappings.
    #[error("data limited to {} (ulimit -d)", Bytes(*bytes))]
    DataSegment { bytes: u64 },
    /// Nothing could be read. `available` is 0.
    #[error("unknown")]
    Unknown,
}

impl HostLimit {
    /// Bytes that the limit allows this process in total, including bytes in use; `None` if no limit is lower than the
    /// physical memory.
    pub const fn bytes(&self) -> Option<u64> {
        match self {
            Self::Cgroup { bytes, .. }
            | Self::MemoryNodes { bytes, .. }
            | Self::AddressSpace { bytes }
            | Self::DataSegment { bytes } => Some(*bytes),
            Self::Stated | Self::System | Self::Unknown => None,
        }
    }
}

impl Host {
    /// This computer, with notes on sources that could not be read.
    ///
    /// On Linux, this is [`detect_under`](Self::detect_under) with the real root. On other systems the `sysinfo` crate
    /// reports memory and processors, and limits on the process are unknown; the code for other systems compiles for
    /// Windows and macOS, and has run under Wine, but on no real Windows or macOS.
    pub fn detect() -> (Self, Vec<Note>) {
        #[cfg(target_os = "linux")]
        return Self::detect_under(Path::new("/"));
        #[cfg(not(target_os = "linux"))]
        return other::detect();
    }

    /// The current memory of this computer, without its processors.
    pub fn detect_memory() -> Self {
        #[cfg(target_os = "linux")]
        return linux::memory_under(Tree(Path::new("/")), &mut Notes::default());
        #[cfg(not(target_os = "linux"))]
        return other::detect().0;
    }

    /// The processors that this process may use now: cores, and the limit on processor time. The memory of the returned
    /// host is 0.
    pub fn detect_processors() -> Self {
        #[cfg(target_os = "linux")]
        return linux::processors_under(Tree(Path::new("/")), &mut Notes::default());
        #[cfg(not(target_os = "linux"))]
        return other::detect().0;
    }

    /// The Linux computer that `{root}/proc` and `{root}/sys` describe, with notes on sources that could not be read.
    ///
    /// The available memory is the number in `/proc/meminfo`, limited by the memory limits of all control groups around
    /// the process (both versions, from the process's own group to the top of the mounted hierarchy), by the process's
    /// memory nodes, and by its limits on address space and data segment. Page cache that can be dropped counts as free
    /// everywhere. The groups also limit the processors: their time (`cpu.max`, `cpu.cfs_quota_us`) and their number
    /// (`cpuset`).
    pub fn detect_under(root: &Path) -> (Self, Vec<Note>) {
        let mut notes = Notes::default();
        let host = linux::detect_under(Tree(root), &mut notes);
        (host, notes.0)
    }

    /// A host with `total` bytes of memory, all available.
    pub fn new(total: u64) -> Self {
        Self { total, available: total, system_available: total, ..Self::default() }
    }

    /// A hypothetical computer with `total` bytes, found by the name of its processor or its common name: `Ryzen 9
    /// 7950X`, `M3 Max`, `EPYC 9654`, `DGX Spark`, `Strix Halo`.
    ///
    /// The host has the processor's cores and the memory that the processor's maker specifies, with a module in each
    /// channel. [`memory`](Self::memory) computes the bandwidths of other memories.
    ///
    /// ```
    /// use autoplace_planner::machine::{Host, bytes::gib};
    /// let host = Host::named("Ryzen 9 7950X", gib(64)).unwrap();
    /// assert_eq!(host.physical_cores, Some(16));
    /// assert_eq!(host.bandwidth.unwrap().to_string(), "83 GB/s by its data sheet");
    /// ```
    ///
    /// # Errors
    ///
    /// [`CatalogueError::UnknownHost`] if no processor has this name, or more than one. The message lists similar
    /// names.
    pub fn named(name: &str, total: u64) -> Result<Self, CatalogueError> {
        catalogue::host(name, total)
    }

    /// The peak bandwidth of a memory, by its notation: `DDR5-5600 x2` (channels of 64 bits), `LPDDR5X-8000 256-bit`,
    /// or `DDR4` for two channels at the most common speed.
    ///
    /// ```
    /// use autoplace_planner::machine::Host;
    /// assert_eq!(Host::memory("DDR5-4800 x12").unwrap().bytes_per_second, 460_800_000_000);
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParseError`] for any other text. The message explains the notation.
    pub fn memory(notation: &str) -> Result<Bandwidth, ParseError> {
        catalogue::memory(notation)
    }

    /// Sets the available bytes, at most the total.
    pub fn available(mut self, bytes: u64) -> Self {
        self.available = bytes.min(self.total);
        self.system_available = self.available;
        self
    }

    /// Bytes that this process could take if no other program used memory: the physical memory or, if it is lower, the
    /// limit that decides `available`.
    pub fn usable_total(&self) -> u64 {
        self.limit.bytes().map_or(self.total, |bytes| bytes.min(self.total))
    }

    /// The number of threads for computing: one for each usable core, but no more than the limit on processor time
    /// keeps busy. `None` if the system does not report its cores.
    ///
    /// A fractional limit is rounded up: with one and a half cores, two threads are faster than one.
    pub fn compute_threads(&self) -> Option<u32> {
        let cores = self.usable_cores.or(self.physical_cores);
        let limit = self.cpu_limit.as_ref().map(CpuLimit::threads);
        cores.into_iter().chain(limit).min().map(|threads| threads.max(1))
    }

    /// The share of the time that `threads` threads may compute under the limit on processor time; 1 without a limit.
    pub fn share_of_time(&self, threads: u32) -> f64 {
        self.cpu_limit.as_ref().map_or(1.0, |limit| (limit.cpus() / f64::from(threads.max(1))).min(1.0))
    }

    /// Whether the Linux that `{root}/proc` describes runs inside Windows (WSL 1 or 2). The version of Microsoft's
    /// kernels shows this, and so does the release, unless somebody else built the kernel.
    pub(super) fn is_wsl(root: &Path) -> bool {
        let tree = Tree(root);
        let says_so = |file| {
            let text = tree.read(file, &mut Notes::default()).unwrap_or_default();
            text.to_ascii_lowercase().contains("microsoft")
        };
        says_so("/proc/sys/kernel/osrelease") || says_so("/proc/version")
    }

    /// Sets the number of physical cores.
    pub fn physical_cores(mut self, cores: u32) -> Self {
        self.physical_cores = Some(cores);
        self
    }

    /// Sets the limit on processor time.
    pub fn cpu_limit(mut self, limit: CpuLimit) -> Self {
        self.cpu_limit = Some(limit);
        self
    }

    /// Sets the memory's bandwidth in bytes per second, as a stated figure.
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.bandwidth = Some(Bandwidth::new(bytes_per_second, BandwidthSource::Stated));
        self
    }

    /// Sets the disk's read rate in bytes per second, as a stated figure.
    pub fn disk(mut self, bytes_per_second: u64) -> Self {
        self.disk = Some(DiskRate::new(bytes_per_second, DiskRateSource::Stated));
        self
    }

    /// The size, in bytes, of a buffer that is so much larger than this computer's caches that repeated reads of the
    /// buffer hardly hit the caches.
    pub fn beyond_caches() -> u64 {
        // If the system does not report its caches (systems other than Linux), they count as large.
        buffer_size(linux::last_level_caches(Tree(Path::new("/"))).unwrap_or(64 << 20))
    }
}

/// Four times the size of the caches, limited to the range from 64 MiB to 1 GiB, but always at least twice the size of
/// the caches.
fn buffer_size(caches: u64) -> u64 {
    let enough = caches.saturating_mul(2);
    caches.saturating_mul(4).min(gib(1)).max(enough).max(mib(64))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (available, total) = (Bytes(self.available), Bytes(self.total));
        write!(f, "host: {available} free of {total}")?;
        match &self.limit {
            HostLimit::Stated | HostLimit::System => Ok(()),
            limit => {
                let system = Bytes(self.system_available);
                write!(f, " ({limit}; the system has {system} free)")
            }
        }?;
        match &self.cpu_limit {
            Some(limit) => write!(f, "; {limit}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Host, HostLimit, Tree, buffer_size, linux};
    use crate::machine::bytes::{gib, mib};

    #[test]
    fn the_buffer_is_always_larger_than_the_caches() {
        for (caches, expected) in [(0, 64), (8, 64), (32, 128), (256, 1024), (1152, 2304)] {
            assert_eq!(buffer_size(mib(caches)), mib(expected), "{caches}");
        }
        assert_eq!(buffer_size(u64::MAX), u64::MAX);
    }

    #[test]
    fn an_offline_processor_does_not_hide_the_caches_of_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let cpus = folder.path().join("sys/devices/system/cpu");
        for cpu in 0..8 {
            fs::create_dir_all(cpus.join(format!("cpu{cpu}"))).unwrap();
        }
        for (cpu, shared) in [(3, "0-3"), (5, "5"), (6, "0-3")] {
            for (index, level, size) in [(0, 1, "32K"), (1, 3, "2048K")] {
                let cache = cpus.join(format!("cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&cache).unwrap();
                for (file, text) in [("level", &*format!("{level}")), ("size", size), ("shared_cpu_list", shared)] {
                    fs::write(cache.join(file), text).unwrap();
                }
            }
        }
        assert_eq!(linux::last_level_caches(Tree(folder.path())), Some(mib(4)));
    }

    #[test]
    fn a_stated_host_has_all_of_its_memory_until_set_otherwise() {
        let host = Host::new(gib(64));
        assert_eq!((host.available, host.system_available), (gib(64), gib(64)));
        assert_eq!(host.limit, HostLimit::Stated);
        let busy = host.available(gib(40));
        assert_eq!((busy.available, busy.system_available), (gib(40), gib(40)));
        assert_eq!(busy.to_string(), "host: 40.0 GiB free of 64.0 GiB");
        assert_eq!(Host::new(gib(8)).available(gib(9)).available, gib(8));
    }
}
