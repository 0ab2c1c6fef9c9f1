//! Closing programs that hold a GPU's memory.

use std::collections::BTreeMap;

use super::trials::Trials;
use super::{Change, ChangeKind};

/// So many of the largest are thought of: what holds less than the eighth is a desktop's window.
const MOST: usize = 8;

pub(super) fn changes(trials: &Trials<'_>) -> Vec<Change> {
    let mut programs = programs(trials);
    programs.truncate(MOST);
    let all: Vec<ChangeKind> = programs.iter().flatten().cloned().collect();
    let Some(largest) = programs.first() else {
        return Vec::new();
    };
    // The smallest that is enough, the largest if it does as much as all together, else those.
    let mut alone = programs.iter().rev();
    let enough = alone.find_map(|program| trials.first_that_fits(1, &|_| program.clone()));
    let change = enough.or_else(|| {
        let together = trials.worthwhile(all)?;
        let largest = trials
            .worthwhile(largest.clone())
            .filter(|largest| largest.effect == together.effect);
        Some(largest.unwrap_or(together))
    });
    change.into_iter().collect()
}

/// What closing each program frees, one change per GPU of which it holds memory: the largest holder first.
fn programs(trials: &Trials<'_>) -> Vec<Vec<ChangeKind>> {
    let mut by_pid: BTreeMap<u32, (u64, Vec<ChangeKind>)> = BTreeMap::new();
    for (index, gpu) in trials.scene.machine.gpus.iter().enumerate() {
        for process in gpu.processes.iter().flatten() {
            let Some(bytes) = process.bytes.filter(|&bytes| bytes > 0) else {
                continue;
            };
            let (sum, changes) = by_pid.entry(process.pid).or_default();
            *sum = sum.saturating_add(bytes);
            changes.push(ChangeKind::CloseProcess {
                name: process.name.clone(),
                pid: process.pid,
                gpu: index,
                gpu_name: gpu.name.clone(),
                bytes,
            });
        }
    }
    let mut programs: Vec<_> = by_pid.into_values().collect();
    programs.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    programs.into_iter().map(|(_, changes)| changes).collect()
}
