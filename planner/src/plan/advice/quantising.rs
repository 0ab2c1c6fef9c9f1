//! Advice on another quantisation of the model: a smaller quantisation with which more of the model is on GPUs, or a
//! larger quantisation that the host reads faster.
//!
//! The time of the host's part comes from the rates measured for each type, because a type with fewer bits often costs
//! more time in decoding than it saves in reading. If rates of the host were measured, a quantisation with an
//! unmeasured type is never advised for its speed; [`Planner::unmeasured`] lists the types to measure first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::gguf::TensorType;
use crate::machine::MeasuredRates;
use crate::plan::Planner;
use crate::profile::{ModelProfile, Quantisation, Weight};

use super::list::WORTH;
use super::trials::Trials;
use super::{Change, ChangeKind, Effect};

/// The model in another quantisation, as a change.
struct Candidate {
    bytes: u64,
    profile: ModelProfile,
    change: Vec<ChangeKind>,
}

/// Bytes of all loaded weights.
fn loaded(profile: &ModelProfile) -> u64 {
    Weight::sum(profile.weights.loaded())
}

/// All other quantisations, the largest first. They are sorted by bytes and not by name, because in a model whose rows
/// are not whole blocks the names can suggest another order.
fn candidates(model: &ModelProfile) -> Vec<Candidate> {
    let others = Quantisation::ALL.into_iter().filter(|to| model.file_type != Some(to.name()));
    let mut all: Vec<Candidate> = others
        .map(|to| {
            let profile = model.quantised(to);
            let change = vec![ChangeKind::Quantisation { to, file_bytes: profile.file_bytes }];
            Candidate { bytes: loaded(&profile), profile, change }
        })
        .collect();
    all.sort_by_key(|candidate| Reverse(candidate.bytes));
    all
}

/// Whether the host's rate was measured for all of the model's types; `None` if no rate was measured.
fn are_measured(rates: Option<&MeasuredRates>, profile: &ModelProfile) -> Option<bool> {
    let rates = rates.filter(|rates| !rates.weights.is_empty())?;
    Some(profile.weights.matrix_types().into_iter().all(|kind| rates.has_weights(kind)))
}

/// A smaller quantisation that puts more of the model on GPUs. If a part stays on the host, also a larger quantisation
/// that the host reads faster.
pub(super) fn quantising(trials: &Trials<'_>) -> Vec<Change> {
    let smaller = smaller(trials);
    match smaller {
        Some(change) if change.effect == Effect::Fits => vec![change],
        smaller => smaller.into_iter().chain(faster(trials)).collect(),
    }
}

fn smaller(trials: &Trials<'_>) -> Option<Change> {
    let profile = &trials.planner.profile;
    let now = loaded(profile);
    let all: Vec<Candidate> = candidates(profile).into_iter().filter(|candidate| candidate.bytes < now).collect();
    let changes =
        |all: &[Candidate]| -> Vec<Vec<ChangeKind>> { all.iter().map(|candidate| candidate.change.clone()).collect() };
    if trials.before.is_none() {
        return trials.least(&changes(&all));
    }
    // If the model is entirely on GPUs, the host's rates do not matter.
    trials.first_that_fits(&changes(&all)).or_else(|| {
        let rates = trials.planner.machine.host.rates.as_ref();
        let mut known = all.iter().filter(|candidate| are_measured(rates, &candidate.profile) != Some(false));
        known.find_map(|candidate| trials.worthwhile(&candidate.change))
    })
}

/// A larger quantisation that gains enough speed for its bytes, if all of the host's rates for it were measured. Among
/// the quantisations that are about as fast as the fastest one, the largest is chosen, because its answers are best.
pub(super) fn faster(trials: &Trials<'_>) -> Option<Change> {
    trials.before.filter(|plan| !plan.full_offload)?;
    let (profile, rates) = (&trials.planner.profile, trials.planner.machine.host.rates.as_ref());
    let now = loaded(profile);
    if are_measured(rates, profile) != Some(true) {
        return None;
    }
    let larger = candidates(profile).into_iter().filter(|candidate| candidate.bytes > now);
    let known = larger.filter(|candidate| are_measured(rates, &candidate.profile) == Some(true));
    let changes: Vec<Change> = known.filter_map(|candidate| trials.attempt(&candidate.change)).collect();
    let speed = |change: &Change| change.speedup.unwrap_or_default();
    let fastest = changes.iter().map(speed).fold(WORTH, f64::max);
    let good = changes.into_iter().find(|change| speed(change) >= WORTH && speed(change) * WORTH >= fastest);
    good.map(|change| Change { effect: Effect::Faster, ..change })
}

impl Planner<'_> {
    /// Matrix types whose rates on the host must be measured before advice on quantisations: the types in this model
    /// and in its other quantisations. The flag marks matrices of experts. The list is empty once all rates are known.
    pub fn unmeasured(&self) -> Vec<(TensorType, bool)> {
        let others = Quantisation::ALL.into_iter().map(|to| self.profile.quantised(to));
        let types: BTreeSet<_> = [self.profile.clone().into_owned()]
            .into_iter()
            .chain(others)
            .flat_map(|profile| profile.weights.matrix_types())
            .collect();
        let rates = self.machine.host.rates.as_ref();
        types.into_iter().filter(|&kind| !rates.is_some_and(|rates| rates.has_weights(kind))).collect()
    }
}
