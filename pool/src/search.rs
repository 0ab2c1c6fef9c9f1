//! The cheapest arrangement of the models: for each model a rung of its ladder, or none if it is not loaded.
//!
//! The price of a choice is the seconds that requests wait because of it: the waiting requests, and those that are
//! expected during the next ten minutes. The search returns the arrangement with the lowest sum of prices that fits,
//! and whose steps have an order in which each of them fits.

use autoplace::machine::Machine;

use crate::held::Room;
use crate::ladder::Rung;
use crate::state::{ModelState, PoolState};

/// Maximum number of partial arrangements. When it is reached, the best arrangement so far is taken. If there is none,
/// a second search with the same bound tries the smallest placements first.
const MAX_VISITS: usize = 200_000;

/// A choice for one model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    /// The placement of the model; `None` if it is not loaded.
    pub(crate) rung: Option<Rung>,
    /// Whether this differs from the current placement.
    pub(crate) is_change: bool,
    /// Whether a text of the model must end first.
    pub(crate) waits: bool,
    /// Seconds that requests wait because of this choice.
    pub(crate) price: f64,
}

/// The choices of one model, the cheapest first.
struct Options {
    model: usize,
    choices: Vec<Choice>,
}

/// An arrangement of all models, by their index.
#[derive(Debug, Clone)]
pub(crate) struct Arrangement {
    pub(crate) choices: Vec<Choice>,
    /// The models that change, in an order in which no device ever exceeds its free bytes.
    pub(crate) order: Vec<usize>,
    pub(crate) price: f64,
}

/// The models that must be loaded together with `wanted`: itself, the models in its `beside`, the models in theirs, and
/// so on.
pub(crate) fn together(state: &PoolState, wanted: usize) -> Vec<usize> {
    let mut all = vec![wanted];
    let mut next = 0;
    while next < all.len() {
        let beside = state.models[all[next]].beside.iter().filter_map(|name| state.find(name));
        for model in beside.collect::<Vec<_>>() {
            if !all.contains(&model) {
                all.push(model);
            }
        }
        next += 1;
    }
    all
}

/// The cheapest arrangement with `wanted` loaded; `None` if none fits. If `is_held_off`, no model is unloaded or moved
/// for another.
pub(crate) fn cheapest(state: &PoolState, wanted: Option<usize>, is_held_off: bool) -> Option<Arrangement> {
    let together = wanted.map(|wanted| together(state, wanted)).unwrap_or_default();
    let choices = |model: usize| choices(state, model, wanted, &together, is_held_off);
    cheapest_of(state, (0..state.models.len()).map(choices).collect(), &together)
}

/// The cheapest arrangement of these choices; `None` if none fits. The choices of each model must be in the order of
/// their prices. The models `first` are arranged first.
pub(crate) fn cheapest_of(state: &PoolState, choices: Vec<Vec<Choice>>, first: &[usize]) -> Option<Arrangement> {
    let options = choices.into_iter().enumerate().map(|(model, choices)| Options { model, choices });
    let mut options: Vec<Options> = options.collect();
    // The wanted models come first, then the largest, so that an arrangement that does not fit is dropped early.
    options.sort_by_key(|option| {
        let held = state.models[option.model].loaded.as_ref().map_or(0, |rung| rung.held.total());
        (!first.contains(&option.model), std::cmp::Reverse(held), option.model)
    });
    let cheapest = |options: &Options| options.choices.iter().map(|choice| choice.price).fold(f64::INFINITY, f64::min);
    let least: Vec<f64> = options.iter().map(cheapest).collect();
    let mut to_go = vec![0.0; options.len() + 1];
    for index in (0..options.len()).rev() {
        to_go[index] = to_go[index + 1] + least[index];
    }
    let mut search = Search { state, options, to_go, best: None, visits: 0 };
    search.visit(&mut Vec::new(), &Room::new(&state.machine), 0.0);
    if search.best.is_none() && search.visits > MAX_VISITS {
        for option in &mut search.options {
            option.choices.sort_by_key(|choice| choice.rung.as_ref().map_or(0, |rung| rung.held.total()));
        }
        search.visits = 0;
        search.visit(&mut Vec::new(), &Room::new(&state.machine), 0.0);
    }
    search.best
}

struct Search<'s> {
    state: &'s PoolState,
    options: Vec<Options>,
    /// For each index, the lowest possible price of the options from it on.
    to_go: Vec<f64>,
    best: Option<Arrangement>,
    visits: usize,
}

impl Search<'_> {
    fn visit(&mut self, taken: &mut Vec<usize>, room: &Room, price: f64) {
        self.visits += 1;
        let is_dearer = |best: &Arrangement| price + self.to_go[taken.len()] >= best.price;
        if self.best.as_ref().is_some_and(is_dearer) || self.visits > MAX_VISITS {
            return;
        }
        let Some(options) = self.options.get(taken.len()) else {
            if let Some(arrangement) = self.arrange(taken, price) {
                self.best = Some(arrangement);
            }
            return;
        };
        for index in 0..options.choices.len() {
            let choice = &self.options[taken.len()].choices[index];
            let more = price + choice.price;
            let left = match &choice.rung {
                Some(rung) => room.with(&rung.held),
                None => Some(room.clone()),
            };
            if let Some(left) = left {
                taken.push(index);
                self.visit(taken, &left, more);
                taken.pop();
            }
        }
    }

    /// The arrangement; `None` if a loaded model lacks one of its `beside`, or if its steps have no order in which each
    /// fits.
    fn arrange(&self, taken: &[usize], price: f64) -> Option<Arrangement> {
        let mut choices: Vec<Option<Choice>> = vec![None; taken.len()];
        for (option, &index) in self.options.iter().zip(taken) {
            choices[option.model] = Some(option.choices[index].clone());
        }
        let choices: Vec<Choice> = choices.into_iter().flatten().collect();
        let is_loaded = |name: &String| self.state.find(name).is_some_and(|index| choices[index].rung.is_some());
        let is_whole =
            |(model, choice): (&ModelState, &Choice)| choice.rung.is_none() || model.beside.iter().all(is_loaded);
        if !self.state.models.iter().zip(&choices).all(is_whole) {
            return None;
        }
        let order = order(self.state, &choices)?;
        Some(Arrangement { choices, order, price })
    }
}

/// An order of the changes in which the loaded models fit after each change; models are unloaded and shrunk before
/// others are loaded.
pub(crate) fn order(state: &PoolState, choices: &[Choice]) -> Option<Vec<usize>> {
    let mut now: Vec<Option<&Rung>> = state.models.iter().map(|model| model.loaded.as_ref()).collect();
    let mut left: Vec<usize> = (0..choices.len()).filter(|&index| choices[index].is_change).collect();
    left.sort_by_key(|&index| (choices[index].rung.is_some(), now[index].is_none(), index));
    let mut order = Vec::new();
    while !left.is_empty() {
        let fits = |&index: &usize| {
            let then = now.iter().enumerate().map(|(other, rung)| match other == index {
                true => choices[index].rung.as_ref(),
                false => *rung,
            });
            // If another program has taken memory, a device exceeds its free bytes until the last step that relieves
            // it. So a step that only frees bytes is always allowed.
            let is_less = match (now[index], &choices[index].rung) {
                (Some(now), Some(then)) => then.held.is_within(&now.held),
                (_, rung) => rung.is_none(),
            };
            is_less || fit(&state.machine, then)
        };
        let place = left.iter().position(fits)?;
        let index = left.remove(place);
        now[index] = choices[index].rung.as_ref();
        order.push(index);
    }
    Some(order)
}

/// Whether these rungs fit on the machine together.
pub(crate) fn fit<'r>(machine: &Machine, rungs: impl Iterator<Item = Option<&'r Rung>>) -> bool {
    rungs.flatten().try_fold(Room::new(machine), |room, rung| room.with(&rung.held)).is_some()
}

/// The minimum of the expected number of times that a model is loaded again, if it is unloaded without a need.
const MIN_TURNS: f64 = 0.5;

/// How many times its price an optional move must gain. Requests fluctuate, and an unloaded model that is requested
/// again takes the room back.
fn patience(state: &PoolState) -> f64 {
    let out = state.models.iter().filter(|model| model.loaded.is_none());
    2.0 + out.map(|model| model.demand.turns(state.now).min(1.0)).sum::<f64>()
}

/// The facts from which the prices of one model's choices are computed.
struct Prices<'s> {
    state: &'s PoolState,
    index: usize,
    model: &'s ModelState,
    wanted: Option<usize>,
    /// Seconds of a load of the model.
    load: f64,
    /// Requests that are expected in the next ten minutes, multiplied by the priority.
    expected: f64,
    /// A change must gain this many times its price. The factor is above 1 if nobody needs the change now.
    patience: f64,
}

impl<'s> Prices<'s> {
    fn new(state: &'s PoolState, index: usize, wanted: Option<usize>) -> Self {
        let model = &state.models[index];
        let is_needed = wanted.is_some() || !state.is_within();
        Self {
            state,
            index,
            model,
            wanted,
            load: model.load_seconds(&state.machine),
            expected: model.expected(state.now),
            patience: if is_needed { 1.0 } else { patience(state) },
        }
    }

    /// Predicted seconds of an expected request in this placement. Texts of other models take a share of the
    /// processors. A slower text of this model takes a share from the other texts for longer.
    fn seconds(&self, rung: &Rung) -> f64 {
        let seconds = self.model.demand.seconds(&rung.plan);
        let (all, others) = (self.state.busy(None), self.state.busy(Some(self.index)));
        let queue = self.model.demand.queue_seconds(seconds / (1.0 - others), rung.sequences(), self.state.now);
        seconds / (1.0 - all).powi(2) + queue
    }

    /// Seconds that expected requests take longer than in the fastest placement.
    fn expected_slower(&self, rung: &Rung) -> f64 {
        let fastest = self.model.ladder.rungs().first().map_or(0.0, |fastest| self.seconds(fastest));
        self.expected * (self.seconds(rung) - fastest).max(0.0)
    }

    /// Seconds that the waiting requests and the expected ones take longer than in the fastest placement.
    fn slower(&self, rung: &Rung) -> f64 {
        let fastest = self.model.ladder.rungs().first();
        let of_waiting = fastest.map_or(0.0, |fastest| self.model.seconds_of_waiting(fastest));
        let waiting = (self.model.seconds_of_waiting(rung) - of_waiting).max(0.0);
        self.model.priority * waiting + self.expected_slower(rung)
    }

    /// Seconds until the running texts end.
    fn ends_in(&self) -> f64 {
        if self.model.texts > 0 { self.model.ends_in.as_secs_f64() } else { 0.0 }
    }

    /// The move of the loaded model from `now` to `other`; `None` if running texts would have no place there, or if
    /// they would have to end first and nobody needs the move.
    fn moved(&self, now: &Rung, other: &Rung) -> Option<Choice> {
        let (model, load) = (self.model, self.load);
        let waits = model.texts > 0 && !model.moves;
        // A handle may have several running texts, so their number is not known here.
        if !waits && model.texts > 0 && other.sequences() < now.sequences() {
            return None;
        }
        // The wait may last longer than predicted. Models that make room for this move are unloaded before the wait
        // ends, so perhaps for nothing.
        if waits && self.patience > 1.0 {
            return None;
        }
        // During a move, the running texts wait, and so do requests that arrive.
        let running = f64::from(if waits { 0 } else { model.texts });
        let stalled = 1.0 + running + model.demand.rate(self.state.now) * load;
        let until = if waits { self.ends_in() } else { 0.0 };
        let price = self.patience * stalled * load + until + self.slower(other);
        Some(Choice { rung: Some(other.clone()), is_change: true, waits, price })
    }

    /// The loaded model is unloaded. Two models are loaded again each time that requests alternate between them.
    fn unloaded(&self) -> Choice {
        let (state, model) = (self.state, self.model);
        let turns = model.demand.turns(state.now);
        let swaps = match self.wanted {
            Some(wanted) => {
                let swap = state.reload_seconds(self.index, wanted) + state.reload_seconds(wanted, self.index);
                turns.min(state.models[wanted].demand.turns(state.now)) * swap
            }
            None if self.patience > 1.0 => {
                // It is not known whose memory it takes when it comes back.
                let others = state.models.iter().filter(|other| other.loaded.is_some() && other.name != model.name);
                let longest = others.map(|other| other.load_seconds(&state.machine)).fold(0.0, f64::max);
                self.patience * turns.max(MIN_TURNS) * (self.load + longest)
            }
            None => turns * self.load,
        };
        let bare = Room::new(&state.machine);
        let back = model.ladder.rungs().iter().find(|rung| bare.with(&rung.held).is_some());
        let served = back.map_or(0.0, |rung| self.expected_slower(rung));
        let price = model.priority * swaps + served + self.ends_in();
        Choice { rung: None, is_change: true, waits: model.texts > 0, price }
    }
}

/// The choices of a model with their prices, the cheapest first. Choices with equal prices have this order: stay, move
/// to a rung (the fastest rung first), be unloaded.
fn choices(
    state: &PoolState,
    index: usize,
    wanted: Option<usize>,
    together: &[usize],
    is_held_off: bool,
) -> Vec<Choice> {
    let prices = Prices::new(state, index, wanted);
    let model = prices.model;
    let rungs = model.ladder.rungs();
    let stays = |price: f64| Choice { rung: model.loaded.clone(), is_change: false, waits: false, price };
    let must_be_loaded = together.contains(&index);
    let mut choices = match &model.loaded {
        Some(rung) if is_held_off => vec![stays(prices.slower(rung))],
        Some(rung) => {
            let others = rungs.iter().filter(|other| other.held != rung.held);
            let moves = others.filter_map(|other| prices.moved(rung, other));
            // If nobody needs its room, the model is unloaded only while nobody uses it, so that later it, or other
            // models, can be placed better.
            let is_unused = model.waiting == 0 && (prices.patience <= 1.0 || model.texts == 0);
            let may_leave = is_unused && !model.keep && !must_be_loaded;
            let leaves = may_leave.then(|| prices.unloaded());
            [stays(prices.slower(rung))].into_iter().chain(moves).chain(leaves).collect()
        }
        None if must_be_loaded => {
            let loaded = |rung: &Rung| Choice {
                rung: Some(rung.clone()),
                is_change: true,
                waits: false,
                price: prices.load + prices.slower(rung),
            };
            rungs.iter().map(loaded).collect()
        }
        None => vec![stays(0.0)],
    };
    choices.sort_by(|one, other| one.price.total_cmp(&other.price));
    choices
}
