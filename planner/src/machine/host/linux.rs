//! The host under Linux: the system's available memory, bounded by every limit on this process, and the cores and
//! caches. The cores decide the number of threads. The caches decide the size of data that does not stay in them.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::cgroup::{self, Groups};
use super::{Host, HostLimit};
use crate::machine::tree::{Notes, Tree, field};

/// The kernel's report on this process.
pub(super) const STATUS: &str = "/proc/self/status";
/// The status line with the allowed processors.
pub(super) const CPUS_ALLOWED: &str = "Cpus_allowed_list:";

/// A limit on this process, and the bytes that it still leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) available: u64,
    pub(super) limit: HostLimit,
}

pub(super) fn detect_under(tree: Tree<'_>, notes: &mut Notes) -> Host {
    let groups = Groups::read(tree, notes);
    let mut host = memory(tree, &groups, notes);
    set_processors(&mut host, tree, &groups, notes);
    host.cpu = cpu(tree, notes);
    host
}

/// Only the memory, from a few small files.
pub(super) fn memory_under(tree: Tree<'_>, notes: &mut Notes) -> Host {
    memory(tree, &Groups::read(tree, notes), notes)
}

/// Only the processors, from a few small files for each processor.
pub(super) fn processors_under(tree: Tree<'_>, notes: &mut Notes) -> Host {
    let mut host = Host::default();
    set_processors(&mut host, tree, &Groups::read(tree, notes), notes);
    host
}

fn set_processors(host: &mut Host, tree: Tree<'_>, groups: &Groups, notes: &mut Notes) {
    (host.physical_cores, host.usable_cores) = cores(tree, groups, notes);
    host.cpu_limit = cgroup::cpu::limit(groups, tree, notes);
}

fn memory(tree: Tree<'_>, groups: &Groups, notes: &mut Notes) -> Host {
    let (total, system_available) = system_memory(tree, notes);
    let mut host = Host::new(total).available(system_available);
    host.limit = if total == 0 { HostLimit::Unknown } else { HostLimit::System };
    let mut bounds = cgroup::memory::bounds(groups, tree, notes);
    bounds.extend(memory_nodes(tree, groups, notes));
    bounds.extend(process_limits(tree, notes));
    for bound in bounds {
        if bound.available < host.available {
            host.available = bound.available;
            host.limit = bound.limit;
        }
    }
    host
}

/// The total and the available bytes of the whole system, from `/proc/meminfo`.
fn system_memory(tree: Tree<'_>, notes: &mut Notes) -> (u64, u64) {
    const MEMINFO: &str = "/proc/meminfo";
    let text = tree.read(MEMINFO, notes);
    let total = text.as_ref().map(|text| field(text, "MemTotal"));
    let (Some(text), Some(Some(total))) = (&text, total) else {
        let what = if text.is_none() { "is missing" } else { "has no MemTotal" };
        let then = "the host's memory is unknown and counts as 0";
        notes.add(MEMINFO, format!("{what}: {then}"));
        return (0, 0);
    };
    let available = field(text, "MemAvailable").unwrap_or_else(|| {
        // This is Linux before 3.14. Its Cached includes tmpfs and shared memory, which cannot be dropped.
        notes.add(MEMINFO, "has no MemAvailable: taken as MemFree + Cached - Shmem");
        let part = |key| field(text, key).unwrap_or(0);
        part("MemFree").saturating_add(part("Cached").saturating_sub(part("Shmem")))
    });
    (total, available.min(total))
}

/// The limits set by `ulimit`, minus the process's current use.
///
/// The limits are read as text and not by `getrlimit`, so that tests can write them; the numbers are the same. The
/// kernel counts all mappings against the address space, and private writable mappings also against the data segment
/// (setrlimit(2)).
fn process_limits(tree: Tree<'_>, notes: &mut Notes) -> Vec<Bound> {
    let Some(limits) = tree.read("/proc/self/limits", notes) else {
        return Vec::new();
    };
    let status = tree.read(STATUS, notes).unwrap_or_default();
    let bound = |row: &str, used, limit: fn(u64) -> HostLimit| {
        // The soft limit comes first, in the row's unit. It is not a number if there is no limit.
        let rest = limits.lines().find_map(|line| line.strip_prefix(row))?;
        let bytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
        let available = bytes.saturating_sub(field(&status, used).unwrap_or(0));
        let limit = limit(bytes);
        Some(Bound { available, limit })
    };
    let of_addresses = |bytes| HostLimit::AddressSpace { bytes };
    let of_data = |bytes| HostLimit::DataSegment { bytes };
    let bounds = [bound("Max address space", "VmSize", of_addresses), bound("Max data size", "VmData", of_data)];
    bounds.into_iter().flatten().collect()
}

/// The memory that is left on the nodes that this process may use; `None` if the process may use all nodes.
///
/// The kernel takes memory only from the nodes of the process's cpuset, and kills the process when these nodes are full
/// (cpuset(7), `cpuset.mems`). A node does not report its available memory, so its free memory and its droppable page
/// cache are added up.
fn memory_nodes(tree: Tree<'_>, groups: &Groups, notes: &mut Notes) -> Option<Bound> {
    let status = tree.read(STATUS, notes).unwrap_or_default();
    let files: [&[&str]; 2] = [&["cpuset.effective_mems", "cpuset.mems"], &["cpuset.mems.effective", "cpuset.mems"]];
    let mut sets = cgroup::cpu::sets(groups, tree, files, notes);
    sets.extend(listed_in(&status, "Mems_allowed_list:"));
    let (mut bytes, mut available, mut is_less) = (0_u64, 0_u64, false);
    let mut nodes = Vec::new();
    for (number, folder) in numbered(tree, "/sys/devices/system/node", "node") {
        let text = fs::read_to_string(folder.join("meminfo")).unwrap_or_default();
        // Lines read `Node 0 MemTotal: 8 kB`.
        let prefix = format!("Node {number} ");
        let text: Vec<&str> = text.lines().map(|line| line.strip_prefix(&prefix).unwrap_or(line)).collect();
        let text = text.join("\n");
        let of = |key| field(&text, key).unwrap_or(0);
        let total = of("MemTotal");
        if !sets.iter().all(|set| is_listed(set, number)) {
            is_less |= total > 0;
        } else if total > 0 {
            nodes.push(number);
            bytes = bytes.saturating_add(total);
            available =
                ["MemFree", "Active(file)", "Inactive(file)"].map(of).into_iter().fold(available, u64::saturating_add);
        }
    }
    nodes.sort_unstable();
    let nodes = nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    (is_less && !nodes.is_empty()).then_some(Bound { available, limit: HostLimit::MemoryNodes { nodes, bytes } })
}

/// The list of numbers in a line of `/proc/self/status`.
fn listed_in(status: &str, name: &str) -> Option<String> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// Whether a list such as `0-3,8` contains this number.
fn is_listed(list: &str, number: u32) -> bool {
    list.trim().split(',').filter_map(range).any(|range| range.contains(&number))
}

/// The number of physical cores that are online, and the number of cores for computing.
///
/// Each (package, cluster, core) counts once, because threads share a core, and ARM's clusters number their cores from
/// 0. A core for computing must be in the process's affinity and in the cpuset of every group around the process. On an
/// Intel processor with two kinds of cores, only the performance cores are counted, as in llama.cpp's tools
/// (`common_cpu_get_num_math`).
fn cores(tree: Tree<'_>, groups: &Groups, notes: &mut Notes) -> (Option<u32>, Option<u32>) {
    let status = tree.read(STATUS, notes).unwrap_or_default();
    let files: [&[&str]; 2] = [&["cpuset.effective_cpus", "cpuset.cpus"], &["cpuset.cpus.effective", "cpuset.cpus"]];
    let mut allowed = cgroup::cpu::sets(groups, tree, files, notes);
    allowed.extend(listed_in(&status, CPUS_ALLOWED));
    let performance = fs::read_to_string(tree.locate("/sys/devices/cpu_core/cpus")).ok();
    let [mut physical, mut usable, mut quick] = [const { Vec::new() }; 3];
    for (number, folder) in processors(tree) {
        let read = |name: &str| number_in(&folder.join("topology").join(name));
        let [Some(package), cluster, Some(core)] = ["physical_package_id", "cluster_id", "core_id"].map(read) else {
            continue;
        };
        let core = (package, cluster, core);
        let is_usable = allowed.iter().all(|list| is_listed(list, number));
        let is_quick = is_usable && performance.as_ref().is_none_or(|list| is_listed(list, number));
        for (cores, is_one) in [(&mut physical, true), (&mut usable, is_usable), (&mut quick, is_quick)] {
            if is_one && !cores.contains(&core) {
                cores.push(core);
            }
        }
    }
    if !quick.is_empty() {
        usable = quick;
    }
    let count = |cores: Vec<_>| u32::try_from(cores.len()).ok().filter(|&count| count > 0);
    (count(physical), count(usable))
}

/// Bytes of all last-level caches together; a package may have several.
pub(super) fn last_level_caches(tree: Tree<'_>) -> Option<u64> {
    // Processors that share a cache list it identically, so each cache is counted once.
    let mut caches: Vec<(i64, String, u64)> = Vec::new();
    for (_, folder) in processors(tree) {
        // An offline processor has no caches.
        let Ok(entries) = fs::read_dir(folder.join("cache")) else { continue };
        for index in entries.flatten() {
            let read = |name: &str| fs::read_to_string(index.path().join(name)).ok();
            let cache = || {
                let level = number_in(&index.path().join("level"))?;
                let kib: u64 = read("size")?.trim().strip_suffix('K')?.parse().ok()?;
                Some((level, read("shared_cpu_list")?.trim().to_owned(), kib.saturating_mul(1024)))
            };
            caches.extend(cache().filter(|cache| !caches.contains(cache)));
        }
    }
    let last = caches.iter().map(|(level, ..)| *level).max()?;
    let sizes = caches.iter().filter(|(level, ..)| *level == last);
    Some(sizes.fold(0, |sum, (.., bytes)| sum.saturating_add(*bytes)))
}

/// The processor's name: `AMD Ryzen 9 7950X 16-Core Processor`. ARM processors report none.
fn cpu(tree: Tree<'_>, notes: &mut Notes) -> Option<String> {
    let text = tree.read("/proc/cpuinfo", notes)?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.replace(char::is_control, " ").split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some(name)
}

/// The numbers and folders of the processors.
fn processors(tree: Tree<'_>) -> Vec<(u32, PathBuf)> {
    numbered(tree, "/sys/devices/system/cpu", "cpu")
}

/// The entries of a folder whose names consist of `name` and a number: their numbers and paths.
fn numbered(tree: Tree<'_>, folder: &str, name: &str) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(tree.locate(folder)) else {
        return Vec::new();
    };
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix(name)?.parse().ok();
    entries.flatten().filter_map(|entry| Some((number(&entry)?, entry.path()))).collect()
}

fn number_in(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Parses `3` or `0-7`.
fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
}
