//! The processor limits of the groups around this process: processor time (`cpu.max`, `cpu.cfs_quota_us`), and allowed
//! processors and memory nodes (`cpuset`).

use super::{Groups, Version};
use crate::machine::host::CpuLimit;
use crate::machine::tree::{Notes, Tree};

/// The default period of a quota, in microseconds (Documentation/admin-guide/cgroup-v2.rst).
const DEFAULT_PERIOD_US: u64 = 100_000;

/// The tightest quota of processor time; `None` if no group has one.
pub(in super::super) fn limit(groups: &Groups, tree: Tree<'_>, notes: &mut Notes) -> Option<CpuLimit> {
    let mut tightest: Option<CpuLimit> = None;
    // The notes about invisible groups were already made for the memory limits.
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

/// `cpu.max` contains `max 100000`, or a quota and a period in microseconds: `50000 100000`.
fn quota_of_v2(tree: Tree<'_>, folder: &str, notes: &mut Notes) -> Option<CpuLimit> {
    let file = format!("{folder}/cpu.max");
    let text = tree.read(&file, notes)?;
    let mut words = text.split_whitespace();
    let quota = words.next()?;
    if quota == "max" {
        return None;
    }
    let period = words.next().map_or(Some(DEFAULT_PERIOD_US), |word| word.parse().ok());
    quota_of(file, text.trim(), quota.parse().ok(), period, notes)
}

/// The quota of version 1: `cpu.cfs_quota_us` microseconds in each `cpu.cfs_period_us`; -1 means no limit.
fn quota_of_v1(tree: Tree<'_>, folder: &str, notes: &mut Notes) -> Option<CpuLimit> {
    let file = format!("{folder}/cpu.cfs_quota_us");
    let text = tree.read(&file, notes)?;
    if text.trim() == "-1" {
        return None;
    }
    let period = tree.read(&format!("{folder}/cpu.cfs_period_us"), notes);
    let period = period.map_or(Some(DEFAULT_PERIOD_US), |period| period.trim().parse().ok());
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
            notes.add(file, format!("contains {text:?}, which is not a known limit: ignored"));
            None
        }
    }
}

/// The lists in a cpuset file of every group that has one: `["0-3"]`. `v1` and `v2` are names of the file in the two
/// versions. In each group, the first file that exists and is not empty is used. A process may use the intersection of
/// all lists.
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
        // A group with an empty list inherits the list of its parent.
        texts.find(|text| !text.trim().is_empty())
    });
    sets.collect()
}
