//! The least that requests can be expected to wait under a rule that knows the probabilities of all requests, but not
//! which one comes next.
//!
//! In: the draws of a trace (the moments at which chance decides what is requested), with the probabilities that follow
//! from the earlier requests. Out: a bound, which is the sum over the draws. Just before each draw, some models are
//! loaded, or being loaded, and these fit on the machine together. The bound takes the models and rungs with which the
//! drawn requests are expected to wait least, whatever is loaded at the draw before. So a load before a draw costs
//! nothing. A model that is missing at its draw is loaded after it.

use autoplace::machine::Machine;
use autoplace_pool::Rung;
use test_support::random_weights::Dice;

use super::sim::{self, Caching, TracedModel, Wish};

/// The prompts and replies of a model are represented by this number of its requests.
const SAMPLES: usize = 20;

/// A moment at which it is drawn what is requested next.
#[derive(Debug, Clone)]
pub(super) struct Draw {
    pub(super) at: f64,
    outcomes: Vec<Outcome>,
}

/// What may be drawn, with its probability. Times are seconds after the draw.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    chance: f64,
    /// The model that is requested.
    model: usize,
    at: f64,
    /// What follows for certain.
    then: Option<Next>,
}

/// A request that follows an outcome for certain.
#[derive(Debug, Clone, Copy)]
struct Next {
    model: usize,
    at: f64,
    /// The time of another request for this model, and its probability. This request waits at least until the text
    /// before it has ended.
    another: Option<(f64, f64)>,
}

impl Draw {
    /// One request, for a model that is drawn with these probabilities.
    pub(super) fn of_models(at: f64, chances: &[f64]) -> Self {
        let outcome = |(model, &chance)| Outcome { chance, model, at: 0.0, then: None };
        Self { at, outcomes: chances.iter().enumerate().map(outcome).collect() }
    }

    /// The agent's draw: with the probability `summary`, the summary's model is requested, and the coder
    /// `later` seconds after the time `coder`, when it would be requested otherwise. With the probability `embedder`,
    /// the embedder is requested. `another` is the time of the coder's request after that, without a second summary.
    pub(super) fn of_agent(at: f64, [coder, later, another]: [f64; 3], [summary, embedder]: [f64; 2]) -> Self {
        let rest = 1.0 - summary;
        let next = Next { model: 0, at: coder + later, another: Some((another + later, rest)) };
        let outcomes = vec![
            Outcome { chance: summary, model: 2, at: 0.0, then: Some(next) },
            // The coder's second request after a summary is already counted in `another`.
            Outcome { chance: rest * rest, model: 0, at: coder, then: None },
            Outcome { chance: rest * embedder, model: 1, at: 0.0, then: None },
        ];
        Self { at, outcomes }
    }
}

/// A text of a rung: its seconds, and by how many it is slower than in the fastest rung.
#[derive(Debug, Clone, Copy)]
struct Time {
    seconds: f64,
    slower: f64,
}

/// The loads and texts of a model.
struct Times<'m> {
    load: f64,
    rungs: &'m [Rung],
    /// For each sample, the times of all rungs.
    samples: Vec<Vec<Time>>,
}

impl<'m> Times<'m> {
    fn new(machine: &Machine, model: &'m TracedModel, wishes: &[&Wish], caching: Caching) -> Self {
        let rungs = model.ladder.rungs();
        let mut dice = Dice::new(1);
        let samples = (0..SAMPLES).filter(|_| !wishes.is_empty()).map(|_| wishes[dice.below(wishes.len())]);
        let times = |wish: &Wish| {
            let alone = model.alone(wish);
            let time = |rung: &Rung| Time {
                seconds: sim::seconds(rung, wish),
                slower: (sim::seconds(rung, wish) - alone).max(0.0),
            };
            rungs.iter().map(time).collect()
        };
        let load = sim::seconds_of_load(machine, &rungs[0], caching == Caching::Pages);
        Self { load, rungs, samples: samples.map(times).collect() }
    }

    fn mean(&self, of: impl Fn(&[Time]) -> f64) -> f64 {
        self.samples.iter().map(|times| of(times)).sum::<f64>() / self.samples.len().max(1) as f64
    }
}

/// The bound of a trace with these draws.
pub(super) fn least(
    (machine, models, wishes): (&Machine, &[TracedModel], &[Wish]),
    draws: &[Draw],
    caching: Caching,
) -> f64 {
    let of = |model: usize| wishes.iter().filter(|wish| wish.model == model).collect::<Vec<_>>();
    let times = models.iter().enumerate().map(|(index, model)| Times::new(machine, model, &of(index), caching));
    let times: Vec<Times> = times.collect();
    // Many draws are alike.
    let mut known: Vec<(String, f64)> = Vec::new();
    let mut sum = 0.0;
    for draw in draws {
        // The text of the last request keeps its model loaded, and another text of this model waits for its end.
        let last = wishes.iter().rev().find(|wish| wish.at < draw.at);
        let left = last.map_or(0.0, |last| last.at + models[last.model].alone(last) - draw.at);
        let running = last.filter(|_| left > 0.0).map(|last| last.model);
        let is_queued = |outcome: &&Outcome| running == Some(outcome.model) && outcome.at == 0.0;
        let queued: f64 = draw.outcomes.iter().filter(is_queued).map(|outcome| outcome.chance * left).sum();
        let alike = format!("{:?} {running:?}", draw.outcomes);
        let least = known.iter().find(|(other, _)| *other == alike).map(|(_, least)| *least);
        let least = least.unwrap_or_else(|| {
            let mut search = Search { machine, times: &times, draw, set: vec![None; times.len()], best: f64::INFINITY };
            search.visit(&search.models(running), running, 0.0);
            known.push((alike, search.best));
            search.best
        });
        sum += least + queued;
    }
    sum
}

/// Searches for the models and rungs with the lowest price.
struct Search<'s> {
    machine: &'s Machine,
    times: &'s [Times<'s>],
    draw: &'s Draw,
    /// For each model, the rung in which it is loaded.
    set: Vec<Option<usize>>,
    best: f64,
}

impl Search<'_> {
    /// The models that matter: the running one first, then the likely ones.
    fn models(&self, running: Option<usize>) -> Vec<usize> {
        let chance = |model: usize| {
            let of = self.draw.outcomes.iter().filter(|outcome| outcome.model == model);
            of.map(|outcome| outcome.chance).sum::<f64>()
        };
        let mut models: Vec<usize> =
            (0..self.times.len()).filter(|&model| chance(model) > 0.0 || running == Some(model)).collect();
        models.sort_by(|&one, &other| {
            let is_running = |model| running == Some(model);
            is_running(other).cmp(&is_running(one)).then(chance(other).total_cmp(&chance(one)))
        });
        models
    }

    /// Tries all choices for these models. `price` is the price of the single requests of the models before.
    fn visit(&mut self, models: &[usize], running: Option<usize>, price: f64) {
        if price >= self.best {
            return;
        }
        let Some((&model, rest)) = models.split_first() else {
            let pairs = self.draw.outcomes.iter().filter_map(|outcome| Some((outcome, outcome.then?)));
            let pairs: f64 = pairs.map(|(outcome, next)| outcome.chance * self.pair(outcome, next)).sum();
            self.best = self.best.min(price + pairs);
            return;
        };
        for choice in (0..self.times[model].rungs.len()).map(Some).chain([None]) {
            if choice.is_none() && running == Some(model) {
                continue;
            }
            self.set[model] = choice;
            let set = self.set.iter().zip(self.times);
            let rungs: Vec<&Rung> = set.filter_map(|(rung, times)| Some(&times.rungs[(*rung)?])).collect();
            if sim::fit(self.machine, &rungs) {
                self.visit(rest, running, price + self.single(model));
            }
            self.set[model] = None;
        }
    }

    /// The price of the requests for a model after which nothing follows for certain.
    fn single(&self, model: usize) -> f64 {
        let times = &self.times[model];
        let single = |outcome: &&Outcome| outcome.model == model && outcome.then.is_none();
        let price = |outcome: &Outcome| {
            let loaded = (times.load - outcome.at).max(0.0);
            let waits = self.set[model].map_or(loaded, |rung| times.mean(|times| times[rung].slower.min(loaded)));
            outcome.chance * waits
        };
        self.draw.outcomes.iter().filter(single).map(price).sum()
    }

    /// The seconds that two requests wait, and a third one ([`Next::another`]) for the second model. The first model is
    /// used in any rung. The second model is used beside the first one, or after the first text has ended.
    fn pair(&self, outcome: &Outcome, next: Next) -> f64 {
        let (first, second) = (&self.times[outcome.model], &self.times[next.model]);
        let samples = first.samples.iter().zip(&second.samples).map(|(firsts, seconds)| {
            let mut least = f64::INFINITY;
            for (rung, time) in firsts.iter().enumerate() {
                let is_there = self.set[outcome.model] == Some(rung);
                let load = if is_there { 0.0 } else { first.load };
                let price = |load: f64, begins: f64, then: &Time| {
                    let waits = begins.max(0.0) + then.slower;
                    let another = next.another.map_or(0.0, |(at, chance)| {
                        let ends = next.at + waits + then.seconds - then.slower;
                        chance * (ends - at).max(0.0)
                    });
                    load + time.slower + waits + another
                };
                // The second model is loaded in its fastest rung after the first text.
                least = least.min(price(load, load + time.seconds + second.load - next.at, &seconds[0]));
                for (other, then) in seconds.iter().enumerate() {
                    if !sim::fit(self.machine, &[&first.rungs[rung], &second.rungs[other]]) {
                        continue;
                    }
                    if self.set[next.model] == Some(other) {
                        least = least.min(price(load, 0.0, then));
                    } else {
                        // One disk reads both files. Which one comes first?
                        least = least.min(price(load, load + second.load - next.at, then));
                        let late = if is_there { 0.0 } else { second.load + first.load };
                        least = least.min(price(late, second.load - next.at, then));
                    }
                }
            }
            least
        });
        samples.sum::<f64>() / first.samples.len().max(1) as f64
    }
}
