//! The cheapest arrangement for the next request, chosen before the request comes.
//!
//! In: what usually follows the last request, and how soon. Out: the arrangement in which the next two requests are
//! expected to wait least, if it is worth its loads.

use crate::ladder::Rung;
use crate::search::{Arrangement, Choice, cheapest_of};
use crate::state::{ModelState, PoolState};
use crate::succession::exposed;

/// If the chance that a model is requested next is below this, the model is not loaded in advance.
const UNLIKELY: f64 = 0.05;

/// A model is loaded for the next request only in a placement that takes at most this many times as long as the model's
/// fastest one. A slower placement would stay for the requests after the next two, about which nothing is known here.
const NEARLY: f64 = 1.25;

/// A second of loading counts as this many seconds of waiting, because others may want the disk or the card.
const DISTURBANCE: f64 = 0.05;

/// The minimum gain of an arrangement in seconds: this share of the time of its loads, and at least [`MIN_SECONDS`].
const MIN_SHARE: f64 = 0.1;
const MIN_SECONDS: f64 = 0.1;

/// The expectations about the next two requests.
struct Outlook<'s> {
    state: &'s PoolState,
    last: &'s str,
    /// Seconds since the last request.
    elapsed: f64,
}

impl<'s> Outlook<'s> {
    fn new(state: &'s PoolState) -> Option<Self> {
        let (last, at) = state.succession.last()?;
        Some(Self { state, last, elapsed: state.now.saturating_sub(at).as_secs_f64() })
    }

    fn name(&self, index: usize) -> &str {
        &self.state.models[index].name
    }

    /// The probability that the next request is for this model.
    fn chance(&self, index: usize) -> f64 {
        self.state.succession.chance(self.last, self.name(index))
    }

    /// Expected seconds until the next request, if it is for this model. A request that is late may come at any moment.
    fn gap(&self, index: usize) -> f64 {
        let mean = self.state.succession.gap(self.last, self.name(index)).unwrap_or(0.0);
        (mean - self.elapsed).max(mean / 4.0)
    }

    /// Expected seconds that the request after the next one waits because this model is not loaded then. The model is
    /// loaded as soon as the next text has ended.
    fn later(&self, index: usize, load: f64) -> f64 {
        let state = self.state;
        let after = |next: usize| {
            let (from, to) = (self.name(next), self.name(index));
            let chance = self.chance(next) * state.succession.chance(from, to);
            let text = state.models[next].fastest_seconds();
            chance * exposed(load, state.succession.gap(from, to).unwrap_or(0.0) - text)
        };
        (0..state.models.len()).filter(|&next| next != index).map(after).sum()
    }

    /// The choices of a model, the cheapest first. If staying as it is costs as much as another choice, staying comes
    /// first.
    fn choices(&self, index: usize) -> Vec<Choice> {
        let model = &self.state.models[index];
        let chance = self.chance(index);
        let load = model.load_seconds(&self.state.machine);
        // The wait in the queue counts too, as in `PoolPlan::decide`: it is longer if fewer texts run at once.
        let seconds = |rung: &Rung| {
            let seconds = model.demand.seconds(&rung.plan);
            seconds + model.demand.queue_seconds(seconds, rung.sequences(), self.state.now)
        };
        let fastest = model.ladder.rungs().iter().map(seconds).fold(f64::INFINITY, f64::min);
        let slower = |seconds: f64| model.priority * chance * (seconds - fastest).max(0.0);
        let out = model.priority * (chance * load + self.later(index, load));
        let hidden = model.priority * chance * exposed(load, self.gap(index)) + DISTURBANCE * load;
        let stays = match &model.loaded {
            Some(rung) => slower(seconds(rung)),
            None => out,
        };
        let stays = Choice { rung: model.loaded.clone(), is_change: false, waits: false, price: stays };
        let mut choices = vec![stays];
        if model.texts > 0 || model.waiting > 0 {
            return choices;
        }
        // A model with others in its `beside` can only be loaded together with them, so it is not loaded here.
        if chance >= UNLIKELY && model.may_be_loaded && model.beside.is_empty() {
            for rung in model.ladder.rungs() {
                let seconds = seconds(rung);
                // A model that is loaded for many texts at once is not moved to a rung for fewer: `PoolPlan::decide`
                // has weighed how many are needed.
                let is_no_choice = |loaded: &Rung| loaded.held == rung.held || rung.sequences() < loaded.sequences();
                if model.loaded.as_ref().is_some_and(is_no_choice) || seconds > NEARLY * fastest {
                    continue;
                }
                let price = hidden + slower(seconds);
                choices.push(Choice { rung: Some(rung.clone()), is_change: true, waits: false, price });
            }
        }
        let is_beside = |other: &ModelState| other.loaded.is_some() && other.beside.contains(&model.name);
        if model.loaded.is_some() && !model.keep && !self.state.models.iter().any(is_beside) {
            choices.push(Choice { rung: None, is_change: true, waits: false, price: out });
        }
        choices.sort_by(|one, other| one.price.total_cmp(&other.price));
        choices
    }
}

/// The arrangement in which the next two requests are expected to wait least; `None` if the present one is as good, or
/// if it is not known which model usually follows.
pub(crate) fn for_the_next(state: &PoolState) -> Option<Arrangement> {
    let outlook = Outlook::new(state)?;
    let choices: Vec<Vec<Choice>> = (0..state.models.len()).map(|index| outlook.choices(index)).collect();
    let stays = choices.iter().flatten().filter(|choice| !choice.is_change).map(|choice| choice.price);
    let stays: f64 = stays.sum();
    let best = cheapest_of(state, choices, &[])?;
    let loaded = best.order.iter().filter(|&&index| best.choices[index].rung.is_some());
    let loads: f64 = loaded.map(|&index| state.models[index].load_seconds(&state.machine)).sum();
    let is_worth = stays - best.price >= (MIN_SHARE * loads).max(MIN_SECONDS);
    (is_worth && loads > 0.0).then_some(best)
}

impl PoolState {
    /// Expected seconds that a request for the model `index` waits for a load, if it follows a request for the model
    /// `after`. If requests for `index` usually follow those for `after`, the pool loads the model in advance.
    pub(crate) fn reload_seconds(&self, index: usize, after: usize) -> f64 {
        let load = self.models[index].load_seconds(&self.machine);
        if !self.limits.anticipate {
            return load;
        }
        let (from, to) = (&self.models[after].name, &self.models[index].name);
        let chance = self.succession.chance(from, to);
        let gap = self.succession.gap(from, to).unwrap_or(0.0) - self.models[after].fastest_seconds();
        chance * exposed(load, gap) + (1.0 - chance) * load
    }
}
