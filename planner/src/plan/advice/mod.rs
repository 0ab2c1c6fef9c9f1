//! What to change where not everything fits: each change is tried by the planner itself, on the changed model, machine
//! or request, and only listed where the plan that comes of it is better.
//!
//! In flows a [`Planner`]; out flows an [`Advice`]: at most one item for each kind of change, in the order of what they
//! cost: what is asked differently, what is closed, another file ([`software`]).

mod change;
mod software;
mod trials;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Error, Plan, Planner, Workload};

pub use change::{Change, ChangeKind, Effect, Outcome};
use trials::Trials;

/// What would make more of a model fit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Advice {
    /// The changes, the cheapest for the user first; empty where everything fits.
    pub changes: Vec<Change>,
    /// What all plans are made for, and all speeds are of; where a context is too short for it, [`Workload::typical`]
    /// of that context.
    pub workload: Workload,
}

/// What a plan must be faster by for a change to be worth it.
const WORTH: f64 = 1.1;

impl Advice {
    /// Advice on a plan that this planner has made, such as a probed one.
    pub fn on(planner: &Planner<'_>, plan: &Plan) -> Self {
        Self::about(planner, Some(plan))
    }

    fn about(planner: &Planner<'_>, plan: Option<&Plan>) -> Self {
        let planner = Planner::new(&planner.profile, &planner.machine).request(planner.request.clone());
        let workload = planner.request.work(&planner.profile);
        let trials = Trials { planner, workload, before: plan };
        let ways = [software::asking, software::closing, software::quantising];
        let changes = match trials.is_enough_already() {
            true => Vec::new(),
            false => ways.iter().flat_map(|way| way(&trials)).collect(),
        };
        Self { changes, workload }
    }
}

impl fmt::Display for Advice {
    /// A line per item, and nothing where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.changes.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Planner<'_> {
    /// What to change where not everything fits, each change tried by this same planner, by the estimate: some
    /// dozens of plans.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), but for [`Error::DoesNotFit`], which is what there is advice on.
    pub fn advice(&self) -> Result<Advice, Error> {
        match self.plan() {
            Ok(plan) => Ok(Advice::on(self, &plan)),
            Err(Error::DoesNotFit { .. }) => Ok(Advice::about(self, None)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
