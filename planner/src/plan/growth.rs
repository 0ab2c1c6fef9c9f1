//! More context than was asked for, as far as that costs no layer.

use crate::memory::{CONTEXT_PADDING as STEP, ContextParams, Estimate, Footprint, Footprints, Uncertainty};
use crate::profile::ModelProfile;

use super::fit::{Chosen, Levels};
use super::probe::with_output;
use super::{Confidence, Error, Probe};

/// As often llama.cpp is asked how much more fits.
const MOST_PROBES: usize = 3;

/// Makes the context as long as the estimate finds room for, up to what the model was trained on.
pub(super) fn grow(profile: &ModelProfile, chosen: &mut Chosen<'_>) -> Result<(), Error> {
    let most = longest(profile, chosen, true, &Footprints::default())?;
    if let Some((params, levels)) = most {
        chosen.params = params;
        chosen.levels = levels;
    }
    Ok(())
}

/// The same, as llama.cpp confirms it.
pub(super) fn grow_probed(profile: &ModelProfile, chosen: &mut Chosen<'_>, probe: &dyn Probe) -> Result<(), Error> {
    // What the accepted placement takes beyond the estimate, a longer context will take too.
    let mut beyond = beyond(profile, chosen, &chosen.params, &chosen.levels)?;
    for _ in 0..MOST_PROBES {
        let Some((params, _)) = longest(profile, chosen, false, &beyond)? else {
            return Ok(());
        };
        let Ok(footprints) = probe.footprints(&chosen.room.gpus, &params, &chosen.split) else {
            return Ok(());
        };
        let footprints = with_output(footprints, estimated(profile, chosen, &params)?.0.output);
        let levels = chosen.room.levels(&footprints, &Uncertainty::default());
        if levels.fit() {
            chosen.params = params;
            chosen.levels = levels;
            chosen.confidence = Confidence::Probed;
            return Ok(());
        }
        beyond = self::beyond(profile, chosen, &params, &levels)?;
    }
    Ok(())
}

/// The longest context for which these layers fit by the estimate and some bytes more; `None` where it is
/// the one there is.
fn longest(
    profile: &ModelProfile,
    chosen: &Chosen<'_>,
    careful: bool,
    beyond: &Footprints,
) -> Result<Option<(ContextParams, Levels)>, Error> {
    let least = chosen.params.n_ctx;
    let most = profile.hparams.n_ctx_train;
    let mut best = None;
    // Multiples of the step above the least, and at the end the most itself.
    let steps = most.saturating_sub(least).div_ceil(STEP);
    let tokens = |step: u32| {
        let steps = (least / STEP).saturating_add(step);
        steps.saturating_mul(STEP).min(most)
    };
    let (mut low, mut high) = (0, steps.saturating_add(1));
    while low + 1 < high {
        let middle = low.midpoint(high);
        let mut params = chosen.params.clone();
        params.n_ctx = tokens(middle);
        let (mut footprints, unsure) = estimated(profile, chosen, &params)?;
        for (footprint, more) in footprints.gpus.iter_mut().zip(&beyond.gpus) {
            footprint.compute = footprint.compute.saturating_add(more.compute);
        }
        footprints.host += beyond.host;
        let unsure = if careful { unsure } else { Uncertainty::default() };
        let levels = chosen.room.levels(&footprints, &unsure);
        if levels.fit() {
            low = middle;
            if params.n_ctx > least {
                best = Some((params, levels));
            }
        } else {
            high = middle;
        }
    }
    Ok(best)
}

/// Bytes beyond the estimate, as `compute`.
fn beyond(
    profile: &ModelProfile,
    chosen: &Chosen<'_>,
    params: &ContextParams,
    levels: &Levels,
) -> Result<Footprints, Error> {
    let (estimate, _) = estimated(profile, chosen, params)?;
    let beyond =
        |theirs: &Footprint, ours: &Footprint| Footprint::new(0, 0, theirs.total().saturating_sub(ours.total()));
    let gpus = levels.gpus.iter().zip(&estimate.gpus);
    let gpus = gpus.map(|(theirs, ours)| beyond(&theirs.footprint, ours));
    let host = beyond(&levels.host.footprint, &estimate.host);
    Ok(Footprints::new(gpus.collect(), host))
}

/// The chosen placement with other parameters.
fn estimated(
    profile: &ModelProfile,
    chosen: &Chosen<'_>,
    params: &ContextParams,
) -> Result<(Footprints, Uncertainty), Error> {
    let estimate = Estimate::new(profile, &chosen.room.gpus, params)?;
    let estimate = estimate.overrides(&chosen.split.overrides)?;
    Ok(estimate.with_uncertainty(&chosen.assignment))
}
