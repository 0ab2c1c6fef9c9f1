//! Advice for a model that does not fully fit. The planner makes a trial plan for each change of the model, the machine
//! or the request. The change is listed only if the trial plan is better.
//!
//! A [`Planner`] flows in, an [`Advice`] flows out. Its items are sorted by their cost for the user, the cheapest
//! first: a smaller request, programs to close ([`software`]), another file ([`quantising`]), other hardware
//! ([`cards`]).

mod cards;
mod change;
mod list;
mod quantising;
mod software;
mod trials;

use super::{Error, Plan, Planner};

pub use change::{Change, ChangeKind, Effect, Outcome};
pub use list::{Advice, OffloadNotWorthwhile};
use trials::Trials;

impl Advice {
    /// Makes the advice on a plan that this planner has made, by estimate or probe.
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
}

impl Planner<'_> {
    /// Changes to try if not everything fits. For this, the planner makes some dozens of plans by the estimate.
    ///
    /// # Errors
    ///
    /// The errors of [`plan`](Self::plan), except [`Error::DoesNotFit`] and [`Error::Beside`], for which advice is
    /// made.
    pub fn advice(&self) -> Result<Advice, Error> {
        match self.plan() {
            Ok(plan) => Ok(Advice::on(self, &plan)),
            Err(Error::DoesNotFit { .. } | Error::Beside { .. }) => Ok(Advice::about(self, None)),
            Err(error) => Err(error),
        }
    }

    /// Adds [advice](Error::advice) to the error, if a change may help. For this, the planner makes some dozens of
    /// plans by the estimate.
    #[must_use]
    pub fn advised(&self, mut error: Error) -> Error {
        if let Some(advice @ None) = error.advice_mut() {
            *advice = self.advice().ok().map(Box::new);
        }
        error
    }
}
