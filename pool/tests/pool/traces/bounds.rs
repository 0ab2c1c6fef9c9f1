//! Two bounds: the waiting that no rule can undercut, and the waiting under fixed placements that are chosen with
//! knowledge of the whole trace.

use autoplace::machine::Machine;
use autoplace_pool::Rung;

use super::sim::{self, Action, Caching, Report, Rule, System, TracedModel, Wish};

/// The knowledge that a rule has of the requests that are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foresight {
    /// The whole trace, so that each load is over in time, if there is time.
    All,
    /// Nothing: each load begins when a request for its model has come.
    Nothing,
}

/// The least seconds that requests wait under a rule that begins their texts in the order of their arrival.
///
/// No rule can undercut this sum, because the computation is optimistic. It only considers pairs of requests that
/// follow each other. If the placements of their models fit beside each other, the second request only waits for the
/// first load of its model. Otherwise its model is loaded, or re-placed, when the text of the first request has ended.
/// That text ends as early as if the first request had not waited. Texts at the same time do not slow each other down.
/// The rungs are chosen so that the sum is least. Each byte that is read counts as `price` seconds.
pub(super) fn in_order(
    trace: (&Machine, &[TracedModel], &[Wish]),
    caching: Caching,
    foresight: Foresight,
    price: f64,
) -> f64 {
    let (machine, models, wishes) = trace;
    let mut is_read = vec![false; models.len()];
    // For each rung of the last request's model, the least sum so far if it was served there.
    let mut sums: Vec<f64> = Vec::new();
    for (index, wish) in wishes.iter().enumerate() {
        let rungs = models[wish.model].ladder.rungs();
        let load = sim::seconds_of_load(machine, &rungs[0], caching == Caching::Pages && is_read[wish.model]);
        let read = price * rungs[0].plan.model.file_bytes as f64;
        let before = index.checked_sub(1).map(|index| &wishes[index]);
        let first = match (is_read[wish.model], foresight) {
            (true, _) => 0.0,
            (false, Foresight::All) => (load - wish.at).max(0.0) + read,
            (false, Foresight::Nothing) => load + read,
        };
        is_read[wish.model] = true;
        let delay = |from: &Rung, to: &Rung, before: &Wish| {
            let over = before.at + models[before.model].alone(before);
            let is_same = before.model == wish.model;
            if is_same && from.held == to.held {
                return if to.sequences() > 1 { 0.0 } else { (over - wish.at).max(0.0) };
            }
            if !is_same && sim::fit(machine, &[from, to]) {
                return first;
            }
            let begins = if foresight == Foresight::All { over } else { over.max(wish.at) };
            (begins + load - wish.at).max(0.0) + read
        };
        let least = |to: &Rung| match before {
            None => first,
            Some(before) => {
                let from = models[before.model].ladder.rungs().iter().zip(&sums);
                from.map(|(from, sum)| sum + delay(from, to, before)).fold(f64::INFINITY, f64::min)
            }
        };
        let alone = models[wish.model].alone(wish);
        let slower = |to: &Rung| (sim::seconds(to, wish) - alone).max(0.0);
        sums = rungs.iter().map(|to| least(to) + slower(to)).collect();
    }
    sums.into_iter().fold(f64::INFINITY, f64::min)
}

/// The least bytes that a rule reads which begins texts in the order of their arrival, and whose requests wait for no
/// more than `waited` seconds, if nothing is cached.
///
/// Whatever a byte costs, the waiting and the price of the bytes together are at least the sum of [`in_order`]. What
/// `waited` leaves of this sum is the price of the bytes.
pub(super) fn least_bytes(trace: (&Machine, &[TracedModel], &[Wish]), waited: f64) -> f64 {
    // The seconds that a disk takes for a byte lie in the middle of these prices.
    let prices = (0..60).map(|step| 1e-12 * 1.25_f64.powi(step));
    let least = |price: f64| (in_order(trace, Caching::Nothing, Foresight::All, price) - waited) / price;
    prices.map(least).fold(0.0, f64::max)
}

/// Loads each model at its first request, at a rung that never changes.
#[derive(Debug, Clone)]
struct Fixed {
    rungs: Vec<Rung>,
    /// Whether models that compute at the same time slow each other down.
    is_shared: bool,
}

impl Rule for Fixed {
    fn next(&mut self, system: &System) -> Action {
        let place = system.queue.iter().position(|&wish| {
            let model = system.wishes[wish].model;
            system.is_ready(model) && system.has_slot(model)
        });
        if let Some(place) = place {
            return Action::Begin(place);
        }
        let is_missing = |wish: &&usize| system.loaded[system.wishes[**wish].model].is_none();
        let missing = system.queue.iter().find(is_missing).map(|&wish| system.wishes[wish].model);
        match missing.filter(|_| !system.is_reading()) {
            Some(model) => Action::Load(model, self.rungs[model].clone()),
            None => Action::Wait(None),
        }
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// The report of a machine that has room for all models at once, each at its fastest rung, and on which models do not
/// slow each other down. A rule that begins the texts of each model in their order waits at least as long, and reads at
/// least as much.
pub(super) fn with_room_for_all((machine, models, wishes): (&Machine, &[TracedModel], &[Wish])) -> Report {
    let mut machine = machine.clone();
    machine.gpus.iter_mut().for_each(|gpu| gpu.free *= 100);
    machine.host.available *= 100;
    let rungs = models.iter().map(|model| model.ladder.rungs()[0].clone()).collect();
    sim::run((&machine, models, wishes), Caching::Nothing, &mut Fixed { rungs, is_shared: false })
}

/// The report of the fixed placements that make requests wait least. All models are loaded at the same time; `None` if
/// they do not fit together. For up to three models, all combinations are tried. For more models, one rung after
/// another is changed as long as that helps.
pub(super) fn best_fixed(trace: (&Machine, &[TracedModel], &[Wish])) -> Option<Report> {
    let (machine, models, wishes) = trace;
    let rung = |model: usize, index: usize| &models[model].ladder.rungs()[index];
    let fits = |indices: &[usize]| {
        let rungs: Vec<&Rung> = indices.iter().enumerate().map(|(model, &index)| rung(model, index)).collect();
        sim::fit(machine, &rungs)
    };
    let report = |indices: &[usize]| {
        let rungs = indices.iter().enumerate().map(|(model, &index)| rung(model, index).clone()).collect();
        sim::run(trace, Caching::Nothing, &mut Fixed { rungs, is_shared: true })
    };
    let mut best: Option<(Vec<usize>, Report)> = None;
    // The additional seconds of all texts together in this rung, compared with the fastest rung, without any waits.
    let extra = |model: usize, index: usize| -> f64 {
        let of = wishes.iter().filter(|wish| wish.model == model);
        of.map(|wish| sim::seconds(rung(model, index), wish) - sim::seconds(rung(model, 0), wish)).sum()
    };
    let counts: Vec<usize> = models.iter().map(|model| model.ladder.rungs().len()).collect();
    let extras: Vec<Vec<f64>> = counts
        .iter()
        .enumerate()
        .map(|(model, &count)| (0..count).map(|index| extra(model, index)).collect())
        .collect();
    let consider = |indices: &[usize], best: &mut Option<(Vec<usize>, Report)>| {
        let least: f64 = indices.iter().enumerate().map(|(model, &index)| extras[model][index]).sum();
        if !fits(indices) || best.as_ref().is_some_and(|(_, known)| least >= known.waited) {
            return false;
        }
        let report = report(indices);
        let is_better = best.as_ref().is_none_or(|(_, known)| report.waited < known.waited);
        if is_better {
            *best = Some((indices.to_vec(), report));
        }
        is_better
    };
    if models.len() <= 3 {
        let mut indices = vec![0; models.len()];
        loop {
            consider(&indices, &mut best);
            let Some(place) = (0..indices.len()).find(|&model| indices[model] + 1 < counts[model]) else { break };
            indices[..place].fill(0);
            indices[place] += 1;
        }
        return best.map(|(_, report)| report);
    }
    let smallest: Vec<usize> = counts.iter().map(|count| count - 1).collect();
    consider(&smallest, &mut best);
    loop {
        let (known, _) = best.clone()?;
        let mut is_better = false;
        for model in 0..models.len() {
            for index in 0..counts[model] {
                let mut indices = known.clone();
                indices[model] = index;
                is_better |= consider(&indices, &mut best);
            }
        }
        if !is_better {
            return best.map(|(_, report)| report);
        }
    }
}
