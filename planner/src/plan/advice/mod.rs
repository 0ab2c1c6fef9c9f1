//! What to change where not everything fits: the planner itself tries each change, on the changed model, machine
//! or request, and lists it only if the resulting plan is better.
//!
//! In flows a [`Planner`]; out flows an [`Advice`]: at most one item for each kind of change, in the order of what they
//! cost: what is asked differently, what is closed ([`software`]), another file ([`quantising`]), other hardware
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

/// What would make more of a model fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Advice {
    /// The changes, the cheapest for the user first; empty where everything is on GPUs.
    pub changes: Vec<Change>,
    /// Set where layers on GPUs are not worth it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointless: Option<Pointless>,
    /// The workload of all plans and speeds; where a context is too short for it, [`Workload::typical`]
    /// of that context.
    pub workload: Workload,
}

/// A plan that generates hardly faster than the host alone would. Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "pointless: {n_gpu_layers} of {layers} layers on GPUs generate about {} tok/s, the host alone {}",
    per_second(*tokens_per_second), per_second(*all_on_host)
)]
#[non_exhaustive]
pub struct Pointless {
    /// Layers on GPUs.
    pub n_gpu_layers: u32,
    /// Layers of the model, the output layer counted.
    pub layers: u32,
    /// Of the plan.
    pub tokens_per_second: f64,
    /// With every layer on the host.
    pub all_on_host: f64,
}

/// What a plan must be faster by for its GPU layers, or a change, to be worth it.
const WORTH: f64 = 1.1;

impl Advice {
    /// Advice on a plan that this planner has made, such as a probed one.
    pub fn on(planner: &Planner<'_>, plan: &Plan) -> Self {
        Self::about(planner, Some(plan))
    }

    fn about(planner: &Planner<'_>, plan: Option<&Plan>) -> Self {
        let workload = planner.request.work(&planner.profile);
        let trials = Trials { planner: planner.clone(), workload, before: plan };
        let ways = [software::asking, software::closing, quantising::quantising, cards::other_cards];
        let mut changes: Vec<Change> = match plan.is_some_and(|plan| trials.is_enough(&Outcome::of(plan))) {
            // What has to stay on the host may still be read faster there.
            true => quantising::faster(&trials).into_iter().collect(),
            false => ways.iter().flat_map(|way| way(&trials)).collect(),
        };
        changes.extend(cards::first_card(&trials));
        Self { changes, pointless: plan.and_then(Pointless::of), workload }
    }
}

impl Pointless {
    /// `None` where the plan is worth its layers on GPUs, where all or none are there, and where no speed is known.
    fn of(plan: &Plan) -> Option<Self> {
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
    /// A line per item, and nothing where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointless = self.pointless.iter().map(ToString::to_string);
        let lines: Vec<String> = pointless.chain(self.changes.iter().map(ToString::to_string)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Planner<'_> {
    /// What to change where not everything fits, each change tried by this same planner, by the estimate: some
    /// dozens of plans.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), but for [`Error::DoesNotFit`] and [`Error::Beside`]: on those there is advice.
    pub fn advice(&self) -> Result<Advice, Error> {
        match self.plan() {
            Ok(plan) => Ok(Advice::on(self, &plan)),
            Err(Error::DoesNotFit { .. } | Error::Beside { .. }) => Ok(Advice::about(self, None)),
            Err(error) => Err(error),
        }
    }
}
