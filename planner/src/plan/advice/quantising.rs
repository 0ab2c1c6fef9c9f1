//! A smaller quantisation of the same model.

use crate::profile::{ModelProfile, Quantisation};

use super::trials::Trials;
use super::{Change, ChangeKind};

pub(super) fn changes(trials: &Trials<'_>) -> Vec<Change> {
    let profile = &trials.scene.profile;
    let now = loaded_bytes(profile);
    let mut smaller: Vec<(u64, ChangeKind)> = Quantisation::ALL
        .into_iter()
        .map(|to| (to, profile.quantised(to)))
        .filter_map(|(to, other)| {
            let bytes = loaded_bytes(&other);
            let file_bytes = other.file_bytes;
            let change = ChangeKind::Quantisation { to, file_bytes };
            (bytes < now).then_some((bytes, change))
        })
        .collect();
    // Rows that are no whole blocks take other types, and the order of the names is not that of the bytes.
    smaller.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
    let least = trials.least(smaller.len(), &|index| vec![smaller[index].1.clone()]);
    least.into_iter().collect()
}

fn loaded_bytes(profile: &ModelProfile) -> u64 {
    let each = profile.weights.loaded().map(|weight| weight.bytes);
    each.fold(0, u64::saturating_add)
}
