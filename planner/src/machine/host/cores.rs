//! Cores and caches of a Linux machine: how many threads can read at once, and what is too large to stay in a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::machine::note::Notes;
use crate::machine::tree::Tree;

/// Cores, as far as the system tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cores {
    /// Physical cores of the processors that are online.
    pub(super) physical: Option<u32>,
    /// Those of them that this process may run on.
    pub(super) usable: Option<u32>,
}

/// Distinct (package, core) pairs of the processors that are online: hyper-threads of one core count once. Usable are
/// those with a processor that is in the process's affinity, which control groups (cpuset) narrow too.
pub(super) fn cores(tree: Tree<'_>, notes: &mut Notes) -> Cores {
    let status = tree.read("/proc/self/status", notes).unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed: Option<Vec<_>> =
        list.map(|list| list.trim().split(',').filter_map(range).collect());
    let mut physical = BTreeSet::new();
    let mut usable = BTreeSet::new();
    for (number, folder) in processors(tree) {
        let read = |name: &str| number_in(&folder.join("topology").join(name));
        let (Some(package), Some(core)) = (read("physical_package_id"), read("core_id")) else {
            continue;
        };
        physical.insert((package, core));
        let is_allowed =
            |ranges: &Vec<RangeInclusive<u32>>| ranges.iter().any(|range| range.contains(&number));
        if allowed.as_ref().is_none_or(is_allowed) {
            usable.insert((package, core));
        }
    }
    let count = |cores: &BTreeSet<_>| u32::try_from(cores.len()).ok().filter(|&count| count > 0);
    Cores {
        physical: count(&physical),
        usable: count(&usable),
    }
}

/// Bytes of all last-level caches together: a package may have several.
pub(super) fn last_level_caches(tree: Tree<'_>) -> Option<u64> {
    // By the processors that share it, each cache once.
    let mut caches: BTreeMap<(i64, String), u64> = BTreeMap::new();
    for (_, folder) in processors(tree) {
        for index in fs::read_dir(folder.join("cache")).ok()?.flatten() {
            let read = |name: &str| fs::read_to_string(index.path().join(name)).ok();
            let level = number_in(&index.path().join("level"));
            let (Some(level), Some(size), Some(sharers)) =
                (level, read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            let Some(kib) = size.trim().strip_suffix('K').and_then(|n| n.parse().ok()) else {
                continue;
            };
            let bytes = 1024_u64.saturating_mul(kib);
            caches.insert((level, sharers.trim().to_owned()), bytes);
        }
    }
    let last = caches.keys().map(|(level, _)| *level).max()?;
    let sizes = caches.iter().filter(|((level, _), _)| *level == last);
    Some(sizes.fold(0, |sum, (_, &bytes)| sum.saturating_add(bytes)))
}

/// The processor's name: `AMD Ryzen 9 7950X 16-Core Processor`. ARM's do not tell.
pub(super) fn cpu(tree: Tree<'_>, notes: &mut Notes) -> Option<String> {
    let text = tree.read("/proc/cpuinfo", notes)?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.replace(char::is_control, " ");
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty()).then_some(name)
}

/// The numbers and folders of the processors.
fn processors(tree: Tree<'_>) -> Vec<(u32, std::path::PathBuf)> {
    let Ok(entries) = fs::read_dir(tree.locate("/sys/devices/system/cpu")) else {
        return Vec::new();
    };
    let number = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("cpu")?.parse().ok()
    };
    entries
        .flatten()
        .filter_map(|entry| Some((number(&entry)?, entry.path())))
        .collect()
}

fn number_in(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `3` or `0-7`.
fn range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
}
