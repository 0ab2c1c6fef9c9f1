//! Extends the context beyond the requested tokens, as long as every layer can stay in its place.

use crate::memory::{CONTEXT_PADDING as STEP, ContextParams, Estimate, Footprint, Footprints, Uncertainty};
use crate::profile::ModelProfile;

use super::fit::{Chosen, Levels};
use super::halving::least_that;
use super::probe::with_output;
use super::request::Growth;
use super::{Error, Probe};

/// Maximum number of probes for a longer context.
const MAX_PROBES: usize = 3;

/// Estimates the chosen placement with other parameters.
type Estimated<'e> = dyn Fn(&ContextParams) -> Result<(Footprints, Uncertainty), Error> + 'e;

impl Chosen<'_> {
    /// Extends the context as far as `growth` allows. Without a probe, the estimate decides; with a probe, the probe
    /// must confirm the length.
    pub(super) fn grow(
        &mut self,
        profile: &ModelProfile,
        growth: Growth,
        probe: Option<&dyn Probe>,
    ) -> Result<(), Error> {
        let (gpus, assignment) = (&self.room.gpus, &self.assignment);
        let now = Estimate::new(profile, gpus, &self.params)?.overrides(&self.split.overrides)?;
        let estimated = |params: &ContextParams| {
            let estimate = now.with_params(profile, gpus, params)?;
            Ok(estimate.with_uncertainty(assignment))
        };
        // llama.cpp's bytes for the accepted placement exceed the estimate by some bytes. A longer context will need
        // these bytes too.
        let mut beyond = probe.map(|_| beyond_estimate(&estimated, &self.params, &self.levels)).transpose()?;
        for _ in 0..MAX_PROBES {
            let Some((params, mut levels)) = self.longest(growth, &estimated, beyond.as_ref())? else {
                break;
            };
            if let Some(probe) = probe {
                let Ok(footprints) = probe.footprints(&self.room.gpus, &params, &self.split) else {
                    break;
                };
                let footprints = with_output(footprints, estimated(&params)?.0.output);
                levels = self.room.levels(&footprints, &Uncertainty::default());
            }
            if levels.fit() && self.levels.leave(growth.share, &levels) {
                (self.params, self.levels) = (params, levels);
                break;
            }
            beyond = Some(beyond_estimate(&estimated, &params, &levels)?);
        }
        Ok(())
    }

    /// The longest context for which the chosen layers fit by the estimate. Without a probe, the estimate's uncertainty
    /// stays free; with a probe, the bytes by which probes exceeded the estimate are added. `None` if the context
    /// cannot grow.
    fn longest(
        &self,
        growth: Growth,
        estimated: &Estimated<'_>,
        beyond: Option<&Footprints>,
    ) -> Result<Option<(ContextParams, Levels)>, Error> {
        let (least, most) = (self.params.n_ctx, growth.most);
        // The steps are multiples of `STEP` above the minimum, and the last step is the limit itself.
        let steps = if most > least { most.div_ceil(STEP) - least / STEP } else { 0 };
        let after = |step: u32| -> Result<_, Error> {
            let n_ctx = (least / STEP).saturating_add(step).saturating_mul(STEP).min(most);
            let params = ContextParams { n_ctx, ..self.params.clone() };
            let (mut footprints, mut unsure) = estimated(&params)?;
            if let Some(beyond) = beyond {
                for (footprint, more) in footprints.gpus.iter_mut().zip(&beyond.gpus) {
                    *footprint += *more;
                }
                footprints.host += beyond.host;
                unsure = Uncertainty::default();
            }
            Ok((params, self.room.levels(&footprints, &unsure)))
        };
        // A context whose estimate fails counts as short enough, so that the later estimate of this context reports the
        // error.
        let is_too_long =
            |step| after(step).is_ok_and(|(_, levels)| !(levels.fit() && self.levels.leave(growth.share, &levels)));
        match least_that(1, steps.saturating_add(1), is_too_long) - 1 {
            0 => Ok(None),
            step => after(step).map(Some),
        }
    }
}

/// Footprints whose field `compute` contains the bytes by which `levels` exceed the estimate.
fn beyond_estimate(estimated: &Estimated<'_>, params: &ContextParams, levels: &Levels) -> Result<Footprints, Error> {
    let (estimate, _) = estimated(params)?;
    let beyond =
        |theirs: &Footprint, ours: &Footprint| Footprint::new(0, 0, theirs.total().saturating_sub(ours.total()));
    let gpus = levels.gpus.iter().zip(&estimate.gpus).map(|(theirs, ours)| beyond(&theirs.footprint, ours));
    let host = beyond(&levels.host.footprint, &estimate.host);
    Ok(Footprints::new(gpus.collect(), host))
}
