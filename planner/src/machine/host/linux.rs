//! Linux: what the system has available, bounded by every limit on this process.

use std::path::Path;

use super::{Host, HostLimit, cgroup, cores};
use crate::machine::note::Notes;
use crate::machine::tree::{Tree, field};

/// One limit on this process, and the bytes that it still leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) available: u64,
    pub(super) limit: HostLimit,
}

pub(super) fn detect_under(root: &Path, notes: &mut Notes) -> Host {
    let tree = Tree::new(root);
    let memory = memory_under(root, notes);
    let cores = cores::cores(tree, notes);
    Host {
        cpu: cores::cpu(tree, notes),
        physical_cores: cores.physical,
        usable_cores: cores.usable,
        ..memory
    }
}

/// Its memory alone: a few small files.
pub(super) fn memory_under(root: &Path, notes: &mut Notes) -> Host {
    let tree = Tree::new(root);
    let (total, system_available) = system_memory(tree, notes);
    let mut host = Host::new(total).available(system_available);
    host.limit = if total == 0 {
        HostLimit::Unknown
    } else {
        HostLimit::System
    };
    let mut bounds = cgroup::bounds(tree, notes);
    bounds.extend(process_limits(tree, notes));
    for bound in bounds {
        if bound.available < host.available {
            host.available = bound.available;
            host.limit = bound.limit;
        }
    }
    host
}

/// Total and available bytes of the whole system, from `/proc/meminfo`.
fn system_memory(tree: Tree<'_>, notes: &mut Notes) -> (u64, u64) {
    const MEMINFO: &str = "/proc/meminfo";
    let text = tree.read(MEMINFO, notes);
    let total = text.as_ref().map(|text| field(text, "MemTotal"));
    let (Some(text), Some(Some(total))) = (&text, total) else {
        let what = if text.is_none() {
            "is missing"
        } else {
            "has no MemTotal"
        };
        let then = "how much memory the host has is unknown, none is counted on";
        notes.add(MEMINFO, format!("{what}: {then}"));
        return (0, 0);
    };
    let available = field(text, "MemAvailable").unwrap_or_else(|| {
        // Linux before 3.14. Cached includes tmpfs and shared memory, which cannot be dropped.
        notes.add(
            MEMINFO,
            "has no MemAvailable: taken as MemFree + Cached - Shmem",
        );
        let part = |key| field(text, key).unwrap_or(0);
        part("MemFree").saturating_add(part("Cached").saturating_sub(part("Shmem")))
    });
    (total, available.min(total))
}

/// The limits that `ulimit` sets, less what the process already uses of them.
///
/// Read as text rather than by `getrlimit`: the same numbers, and a test can write them. The kernel counts mappings of
/// any kind against the address space, and private writable ones against the data segment (setrlimit(2)).
fn process_limits(tree: Tree<'_>, notes: &mut Notes) -> Vec<Bound> {
    let Some(limits) = tree.read("/proc/self/limits", notes) else {
        return Vec::new();
    };
    let status = tree.read("/proc/self/status", notes).unwrap_or_default();
    let bound = |row, used, limit: fn(u64) -> HostLimit| {
        let bytes = soft_limit(&limits, row)?;
        let available = bytes.saturating_sub(field(&status, used).unwrap_or(0));
        let limit = limit(bytes);
        Some(Bound { available, limit })
    };
    let of_addresses = |bytes| HostLimit::AddressSpace { bytes };
    let of_data = |bytes| HostLimit::DataSegment { bytes };
    let bounds = [
        bound("Max address space", "VmSize", of_addresses),
        bound("Max data size", "VmData", of_data),
    ];
    bounds.into_iter().flatten().collect()
}

/// The soft limit of one row of `/proc/self/limits`, in its unit; `None` when unlimited.
fn soft_limit(limits: &str, row: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(row))?;
    rest.split_whitespace().next()?.parse().ok()
}
