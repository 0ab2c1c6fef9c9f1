//! The processor limits of the groups around this process: how much time on processors a group gets (`cpu.max`,
//! `cpu.cfs_quota_us`), and the processors and memory nodes that it may use (`cpuset`).

use super::{Groups, Version};
use crate::machine::host::CpuLimit;
use crate::machine::tree::{Notes, Tree};

/// The period of a quota where its file does not say one, in microseconds (Documentation/admin-guide/cgroup-v2.rst).
const PERIOD: u64 = 100_000;

/// The tightest quota of processor time; `None` where no group has one.
pub(in super::super) fn limit(groups: &Groups, tree: Tree<'_>, notes: &mut Notes) -> Option<CpuLimit> {
    let mut tightest: Option<CpuLimit> = None;
    // What cannot be seen of the groups is said with their memory.
    for (version, folder) in groups.folders("cpu", &mut Notes::default()) {
        let limit = match version {
            Version::V1 => quota_of_v1(tree, &folder, notes),
            Version::V2 => quota_of_v2(tree, &folder, notes),
        };
        tightest = match (tightest, limit) {
            (Some(known), Some(limit)) if known.is_at_most(&limit) => Some(known),
            (known, limit) => limit.or(known),
        };
    }
    tightest
}

/// `cpu.max`: `max 100000`, or the microseconds of each period, `50000 100000`.
fn quota_of_v2(tree: Tree<'_>, folder: &str, notes: &mut Notes) -> Option<CpuLimit> {
    let file = format!("{folder}/cpu.max");
    let text = tree.read(&file, notes)?;
    let mut words = text.split_whitespace();
    let quota = words.next()?;
    if quota == "max" {
        return None;
    }
    let period = words.next().map_or(Some(PERIOD), |word| word.parse().ok());
    quota_of(file, text.trim(), quota.parse().ok(), period, notes)
}

/// `cpu.cfs_quota_us` of each `cpu.cfs_period_us`; -1 is no limit.
fn quota_of_v1(tree: Tree<'_>, folder: &str, notes: &mut Notes) -> Option<CpuLimit> {
    let file = format!("{folder}/cpu.cfs_quota_us");
    let text = tree.read(&file, notes)?;
    if text.trim() == "-1" {
        return None;
    }
    let period = tree.read(&format!("{folder}/cpu.cfs_period_us"), notes);
    let period = period.map_or(Some(PERIOD), |period| period.trim().parse().ok());
    quota_of(file, text.trim(), text.trim().parse().ok(), period, notes)
}

fn quota_of(
    file: String,
    text: &str,
    quota_us: Option<u64>,
    period_us: Option<u64>,
    notes: &mut Notes,
) -> Option<CpuLimit> {
    match (quota_us, period_us) {
        (Some(quota_us @ 1..), Some(period_us @ 1..)) => {
            Some(CpuLimit { file: file.replace(char::is_control, " "), quota_us, period_us })
        }
        _ => {
            notes.add(file, format!("holds {text:?}, which is no limit that is known: not counted"));
            None
        }
    }
}

/// The lists of a cpuset's file, of every group that has one: `["0-3"]`. `files` are its names in versions 1 and 2; the
/// first that is there and not empty counts. A process may use what is in all of them.
pub(in super::super) fn sets(
    groups: &Groups,
    tree: Tree<'_>,
    [v1, v2]: [&[&str]; 2],
    notes: &mut Notes,
) -> Vec<String> {
    let folders = groups.folders("cpuset", &mut Notes::default());
    let sets = folders.iter().filter_map(|(version, folder)| {
        let names = if *version == Version::V1 { v1 } else { v2 };
        let mut texts = names.iter().filter_map(|name| tree.read(&format!("{folder}/{name}"), notes));
        // A group whose list is empty has that of the group above.
        texts.find(|text| !text.trim().is_empty())
    });
    sets.collect()
}
