//! Advice for a model that does not fully fit. The planner tries each change on the changed model, machine or request,
//! and lists it only if the resulting plan is better.
//!
//! A [`Planner`] flows in, an [`Advice`] flows out: at most one item for each kind of change, in the order of the
//! user's cost: a smaller request, programs to close ([`software`]), another file ([`quantising`]), other hardware
//! ([`cards`]).

mod cards;
mod change;
mod quantising;
mod software;
mod trials;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Error, Plan, Planner, Workload};

use change::per_second;
pub use change::{Change, ChangeKind, Effect, Outcome};
use trials::Trials;

/// Changes that would make more of a model fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Advice {
    /// The changes, the cheapest for the user first; empty if everything is on GPUs.
    pub changes: Vec<Change>,
    /// Set if the layers on GPUs gain almost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointless: Option<OffloadNotWorthwhile>,
    /// The workload of all plans and speeds. In a context too short for it, [`Workload::typical`] of that context
    /// applies.
    pub workload: Workload,
    /// Whether the plan without a change lacks nothing.
    #[serde(skip)]
    lacks_nothing: bool,
}

/// Offloading gains almost nothing: the plan generates hardly faster than the host alone. Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "pointless: {n_gpu_layers} of {layers} layers on GPUs generate about {} tok/s, the host alone {}",
    per_second(*tokens_per_second), per_second(*all_on_host)
)]
#[non_exhaustive]
pub struct OffloadNotWorthwhile {
    /// Layers on GPUs.
    pub n_gpu_layers: u32,
    /// All layers of the model, the output layer included.
    pub layers: u32,
    /// The plan's speed.
    pub tokens_per_second: f64,
    /// The speed with every layer on the host.
    pub all_on_host: f64,
}

/// The least speed-up, as a factor, that justifies GPU layers or a change.
const WORTH: f64 = 1.1;

impl Advice {
    /// Advice on a plan that this planner has made, by estimate or probe.
    pub fn on(planner: &Planner<'_>, plan: &Plan) -> Self {
        Self::about(planner, Some(plan))
    }

    fn about(planner: &Planner<'_>, plan: Option<&Plan>) -> Self {
        let workload = planner.request.work(&planner.profile);
        let trials = Trials { planner: planner.clone(), workload, before: plan };
        let ways = [software::asking, software::closing, quantising::quantising, cards::other_cards];
        let lacks_nothing = plan.is_some_and(|plan| trials.is_enough(&Outcome::from(plan)));
        let mut changes: Vec<Change> = match lacks_nothing {
            // Weights that must stay on the host may be faster to read in another quantisation.
            true => quantising::faster(&trials).into_iter().collect(),
            false => ways.iter().flat_map(|way| way(&trials)).collect(),
        };
        changes.extend(cards::first_card(&trials));
        Self { changes, pointless: plan.and_then(OffloadNotWorthwhile::check), workload, lacks_nothing }
    }

    /// Whether there is nothing to change: everything that was asked for fits, and no change would be faster.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.pointless.is_none() && self.lacks_nothing
    }
}

impl OffloadNotWorthwhile {
    /// `None` if the GPU layers are worth it, if all layers or none are on GPUs, or if no speed is known.
    fn check(plan: &Plan) -> Option<Self> {
        let speed = plan.speed.as_ref()?;
        let (tokens_per_second, all_on_host) = (speed.tokens_per_second, speed.all_on_host);
        let on_both = plan.n_gpu_layers > 0 && !plan.full_offload;
        (on_both && tokens_per_second <= all_on_host * WORTH).then_some(Self {
            n_gpu_layers: plan.n_gpu_layers,
            layers: plan.layers(),
            tokens_per_second,
            all_on_host,
        })
    }
}

impl fmt::Display for Advice {
    /// One line for each item; without items, one line that says why there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() && self.pointless.is_none() {
            return f.write_str(match self.lacks_nothing {
                true => "nothing to change: everything that was asked for fits",
                false => "no change that was tried puts more of the model on GPUs",
            });
        }
        let pointless = self.pointless.iter().map(ToString::to_string);
        let lines: Vec<String> = pointless.chain(self.changes.iter().map(ToString::to_string)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Planner<'_> {
    /// Changes to try if not everything fits. The planner estimates each change: some dozens of plans.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), except [`Error::DoesNotFit`] and [`Error::Beside`], which are the occasion for
    /// advice.
    pub fn advice(&self) -> Result<Advice, Error> {
        match self.plan() {
            Ok(plan) => Ok(Advice::on(self, &plan)),
            Err(Error::DoesNotFit { .. } | Error::Beside { .. }) => Ok(Advice::about(self, None)),
            Err(error) => Err(error),
        }
    }
}
