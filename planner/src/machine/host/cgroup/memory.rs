//! The memory limits of the groups around this process: folders flow in, and one [`Bound`] for each limit flows out.
//!
//! Page cache that the kernel can drop is charged to the group but does not count as used here: a group that has just
//! read a model file only looks full (Ollama #15474).
//!
//! For groups above the root of a cgroup namespace, version 1 reports the tightest limit (`hierarchical_memory_limit`),
//! and version 2 reports nothing.

use super::super::HostLimit;
use super::super::linux::Bound;
use super::{Groups, Version};
use crate::machine::tree::{Notes, Tree, field};

/// In version 1, "no limit" is the largest number of whole pages, in bytes: 0x7ffffffffffff000 with pages of 4 KiB, and
/// less with larger pages.
const V1_NO_LIMIT: u64 = 1 << 62;

/// Every memory limit of the control groups around this process, with the bytes that it leaves.
pub(in super::super) fn bounds(groups: &Groups, tree: Tree<'_>, notes: &mut Notes) -> Vec<Bound> {
    let folders = groups.folders("memory", notes);
    // A group's limit also applies to the groups below it. Before Linux 5.11, this could be switched off
    // (`memory.use_hierarchy`).
    folders.iter().flat_map(|(version, folder)| bounds_of(*version, tree, folder, notes)).collect()
}

/// The limits of one group, with the bytes that each leaves.
///
/// In version 2, the kernel kills processes of a group above `memory.max`, and above `memory.high` it slows the group
/// down, because it reclaims memory all the time; both count as limits. Version 1 has one limit, and also reports the
/// tightest limit of the invisible ancestors.
fn bounds_of(version: Version, tree: Tree<'_>, folder: &str, notes: &mut Notes) -> Vec<Bound> {
    let (files, usage): (&[_], _) = match version {
        Version::V1 => (&["memory.limit_in_bytes"], "memory.usage_in_bytes"),
        Version::V2 => (&["memory.max", "memory.high"], "memory.current"),
    };
    let own = files.iter().filter_map(|name| limit_in(tree, format!("{folder}/{name}"), notes));
    let own = own.min_by_key(|(bytes, _)| *bytes);
    if own.is_none() && version == Version::V2 {
        return Vec::new();
    }
    let stat_file = format!("{folder}/memory.stat");
    let stat = tree.read(&stat_file, notes).unwrap_or_default();
    let above = field(&stat, "hierarchical_memory_limit").map(|bytes| (bytes, stat_file));
    let mut limits = own.into_iter().chain(above).filter(|(bytes, _)| *bytes < V1_NO_LIMIT).peekable();
    if limits.peek().is_none() {
        return Vec::new();
    }
    // The total_ lines of version 1 include the groups below this one, as the usage does.
    let cache = match stat_sum(&stat, ["total_inactive_file", "total_active_file"]) {
        0 => stat_sum(&stat, ["inactive_file", "active_file"]),
        cache => cache,
    };
    let held = usage_in(tree, &format!("{folder}/{usage}"), notes).saturating_sub(cache);
    let bound = |(bytes, file): (u64, String)| Bound {
        available: bytes.saturating_sub(held),
        limit: HostLimit::Cgroup { file: file.replace(char::is_control, " "), bytes },
    };
    limits.map(bound).collect()
}

fn stat_sum(stat: &str, keys: [&str; 2]) -> u64 {
    keys.iter().filter_map(|key| field(stat, key)).fold(0, u64::saturating_add)
}

/// The limit in a file, in bytes, with the file's name; `None` if there is no such file or no limit.
fn limit_in(tree: Tree<'_>, file: String, notes: &mut Notes) -> Option<(u64, String)> {
    let text = tree.read(&file, notes)?;
    let number = text.trim();
    if matches!(number, "max" | "-1") {
        return None;
    }
    let Ok(bytes) = number.parse() else {
        let text = format!("contains {number:?}, which is not a known limit: ignored");
        notes.add(file, text);
        return None;
    };
    Some((bytes, file))
}

/// The bytes that a group uses. If they cannot be read, 0 is returned and a note is added.
fn usage_in(tree: Tree<'_>, file: &str, notes: &mut Notes) -> u64 {
    let used = tree.read(file, notes).and_then(|text| text.trim().parse().ok());
    used.unwrap_or_else(|| {
        let text = "does not state the group's memory use: the whole limit counts as available";
        notes.add(file, text);
        0
    })
}
