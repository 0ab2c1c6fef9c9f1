//! Control groups: the memory limits of containers, systemd slices and batch jobs.
//!
//! In flows where the process stands (`/proc/self/cgroup`) and where the hierarchies are mounted
//! (`/proc/self/mountinfo`); out flows one [`Bound`] per limit, from the process's own group up to the top of what is
//! visible. A limit anywhere above the process holds for it, so the tightest may sit in the middle.
//!
//! Page cache that the kernel can drop is charged to the group and does not count as used here: a group that has just
//! read a model file looks full and is not (Ollama #15474).
//!
//! What is *not* visible: groups above the root of a cgroup namespace. Version 1 reports their tightest limit
//! (`hierarchical_memory_limit`), version 2 reports nothing.

use std::cmp::Reverse;
use std::path::{Component, Path};

use super::HostLimit;
use super::linux::Bound;
use crate::machine::tree::{Notes, Tree, field};

/// Version 1 writes "no limit" as the largest count of pages: 0x7ffffffffffff000 with pages of 4 KiB, less
/// with larger ones.
const V1_NO_LIMIT: u64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A mounted hierarchy with the memory controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that is mounted: `/`, or a container's own group.
    root: String,
    /// Where it is mounted.
    point: String,
}

/// Every memory limit of control groups around this process, with the bytes each one leaves.
pub(super) fn bounds(tree: Tree<'_>, notes: &mut Notes) -> Vec<Bound> {
    let Some(memberships) = tree.read("/proc/self/cgroup", notes) else {
        return Vec::new();
    };
    let mounts = tree.read("/proc/self/mountinfo", notes).unwrap_or_default();
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let mut bounds = Vec::new();
    // On a hybrid system both are there, and the memory controller is in one of them: the other has no such files.
    for version in [Version::V2, Version::V1] {
        let Some(group) = membership(&memberships, version) else {
            continue;
        };
        for folder in folders(version, &group, &mounts, notes) {
            // A group passes its limit on to those below it: always so since Linux 5.11, unless it said 0 before.
            bounds.extend(bounds_of(version, tree, &folder, notes));
        }
    }
    bounds
}

/// The process's group in a hierarchy. Lines read `4:memory:/path` in version 1 and `0::/path` in version 2.
fn membership(text: &str, version: Version) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let found = match version {
            Version::V1 => controllers.split(',').any(|name| name == "memory"),
            Version::V2 => id == "0" && controllers.is_empty(),
        };
        (found && path.starts_with('/')).then(|| path.to_owned())
    })
}

impl Mount {
    /// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)), where it is a hierarchy of memory.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup2" => Version::V2,
            "cgroup" if after.nth(1)?.split(',').any(|option| option == "memory") => Version::V1,
            _ => return None,
        };
        let mut unescaped = || Some(unescape(before.next()?));
        Some(Self { version, root: unescaped()?, point: unescaped()? })
    }
}

/// Turns the kernel's octal escapes of space, tab, newline and backslash (`\040`) back.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The folders of the process's group and of all groups above it that are visible, innermost first.
fn folders(version: Version, group: &str, mounts: &[Mount], notes: &mut Notes) -> Vec<String> {
    let candidates = mounts.iter().filter(|mount| mount.version == version);
    let Some(first) = candidates.clone().next() else {
        if group != "/" {
            let text = format!("the process is in {group}, but its limits are not visible here");
            notes.add("control groups", text);
        }
        return Vec::new();
    };
    let inside = |mount: &Mount| {
        let below = Path::new(group).strip_prefix(&mount.root).ok()?;
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| below.to_string_lossy().into_owned())
    };
    // Of several mounts of one hierarchy, the one that shows least above the group is the container's own.
    let best =
        candidates.filter_map(|mount| Some((mount, inside(mount)?))).min_by_key(|(mount, _)| Reverse(mount.root.len()));
    let Some((mount, below)) = best else {
        // Seen from another namespace: the group is not below any mount. What is mounted is the best guess.
        let point = &first.point;
        let text = format!("{group} is not below what is mounted at {point}: its limits are read there");
        notes.add("control groups", text);
        return vec![point.clone()];
    };
    let mut folders = vec![mount.point.trim_end_matches('/').to_owned()];
    for part in below.split('/').filter(|part| !part.is_empty()) {
        folders.insert(0, format!("{}/{part}", folders[0]));
    }
    folders
}

/// The limits of one group, with what each leaves.
///
/// Version 2 has `memory.max`, above which the kernel kills, and `memory.high`, above which it slows the group down by
/// reclaiming without end: both end the promise. Version 1 has one limit, and reports the tightest above it where
/// those groups are not visible.
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
    // Version 1's total_ lines count the groups below as well, as the usage does.
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

/// The limit that a file holds, in bytes, with the file's name; `None` for no file and for no limit.
fn limit_in(tree: Tree<'_>, file: String, notes: &mut Notes) -> Option<(u64, String)> {
    let text = tree.read(&file, notes)?;
    let number = text.trim();
    if matches!(number, "max" | "-1") {
        return None;
    }
    let Ok(bytes) = number.parse() else {
        let text = format!("holds {number:?}, which is no limit that is known: not counted");
        notes.add(file, text);
        return None;
    };
    Some((bytes, file))
}

/// The bytes that a group uses. Unreadable counts as nothing used, and is said.
fn usage_in(tree: Tree<'_>, file: &str, notes: &mut Notes) -> u64 {
    let used = tree.read(file, notes).and_then(|text| text.trim().parse().ok());
    used.unwrap_or_else(|| {
        let text = "does not say how much the group uses: its limit is taken whole";
        notes.add(file, text);
        0
    })
}
