//! Control groups: the limits of containers, systemd slices and batch jobs.
//!
//! The process's groups (`/proc/self/cgroup`) and the mounted hierarchies (`/proc/self/mountinfo`) flow in. The folders
//! of the process's own group and of its ancestors, up to the top of the visible hierarchy, flow out. The limits of all
//! these groups apply, so the tightest limit may be in the middle.
//!
//! Groups above the root of a cgroup namespace are *not* visible.

pub(super) mod cpu;
pub(super) mod memory;

use std::cmp::Reverse;
use std::path::{Component, Path};

use crate::machine::tree::{Notes, Tree};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The options of a version 1 mount, including its controllers. Version 2 has all controllers in one hierarchy.
    options: Vec<String>,
    /// The group that is mounted: `/`, or a container's own group.
    root: String,
    /// The mount point.
    point: String,
}

/// The groups around this process, in every hierarchy.
#[derive(Debug, Default)]
pub(super) struct Groups {
    memberships: String,
    mounts: Vec<Mount>,
}

impl Groups {
    pub(super) fn read(tree: Tree<'_>, notes: &mut Notes) -> Self {
        let Some(memberships) = tree.read("/proc/self/cgroup", notes) else {
            return Self::default();
        };
        let mounts = tree.read("/proc/self/mountinfo", notes).unwrap_or_default();
        Self { memberships, mounts: mounts.lines().filter_map(Mount::parse).collect() }
    }

    /// The folders with the files of a controller. No notes are made on invisible groups.
    pub(super) fn folder_names(&self, controller: &str) -> impl Iterator<Item = String> {
        self.folders(controller, &mut Notes::default()).into_iter().map(|(_, folder)| folder)
    }

    /// The folders with the files of a controller (`memory`, `cpu`, `cpuset`), the process's own group first.
    ///
    /// On a hybrid system both versions exist, but only one of them has the controller. The folders of the other
    /// version lack the controller's files.
    fn folders(&self, controller: &str, notes: &mut Notes) -> Vec<(Version, String)> {
        let mut all = Vec::new();
        for version in [Version::V2, Version::V1] {
            if let Some(group) = membership(&self.memberships, version, controller) {
                let mounts = self.mounts.iter().filter(|mount| mount.has(version, controller));
                all.extend(folders(&group, mounts, notes).into_iter().map(|folder| (version, folder)));
            }
        }
        all
    }
}

/// The process's group in a hierarchy. Lines read `4:memory:/path` in version 1 and `0::/path` in version 2.
fn membership(text: &str, version: Version, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let found = match version {
            Version::V1 => controllers.split(',').any(|name| name == controller),
            Version::V2 => id == "0" && controllers.is_empty(),
        };
        (found && path.starts_with('/')).then(|| path.to_owned())
    })
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)); `None` unless the line is about a hierarchy of
    /// control groups.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup2" => Version::V2,
            "cgroup" => Version::V1,
            _ => return None,
        };
        let options = after.nth(1).unwrap_or_default().split(',').map(str::to_owned).collect();
        let mut unescaped = || Some(unescape(before.next()?));
        Some(Self { version, options, root: unescaped()?, point: unescaped()? })
    }

    fn has(&self, version: Version, controller: &str) -> bool {
        self.version == version && (version == Version::V2 || self.options.iter().any(|option| option == controller))
    }
}

/// Decodes the kernel's octal escapes of space, tab, newline and backslash (`\040`).
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The folders of the process's group and of its visible ancestors, innermost first.
fn folders<'a>(group: &str, mounts: impl Iterator<Item = &'a Mount> + Clone, notes: &mut Notes) -> Vec<String> {
    let Some(first) = mounts.clone().next() else {
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
    // Of several mounts of one hierarchy, the mount with the longest root is the container's own.
    let best =
        mounts.filter_map(|mount| Some((mount, inside(mount)?))).min_by_key(|(mount, _)| Reverse(mount.root.len()));
    let Some((mount, below)) = best else {
        // If the group belongs to another namespace, it is not below any mount. Then the mounted group is the best
        // guess.
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
