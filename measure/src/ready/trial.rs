//! A trial of one placement: its context is filled, and then the same work is repeated at intervals.

use std::time::Duration;

use autoplace::load::Model;

use super::checks::{self, Seen};
use super::host::HostWatch;
use super::{Ready, Trial};
use crate::conditions::Observer;
use crate::measurement::{Measured, Point, Row, Sample, Speed};
use crate::run::{Measure, Progress, now, text};
use crate::{Error, Protocol};

/// The minimum number of runs of a quick check: the first run, and two more for comparison.
const MIN_RUNS: u32 = 3;

impl Measure<'_> {
    /// Runs one placement. Returns the trial, and the bytes by which a GPU misses its margin; `None` if stopped.
    pub(super) fn trial(&mut self, model: &Model, ready: &Ready, tried: usize) -> Result<Option<(Trial, u64)>, Error> {
        let plan = model.placement();
        let n_ctx = plan.context.n_ctx_seq();
        let protocol = (self.protocol)(ready.protocol(Protocol::new(n_ctx))).depths([0]).rounds(1);
        protocol.check()?;
        let tokens = protocol.tokens(model, n_ctx)?;
        let deepest = n_ctx - protocol.n_gen - 1 - tokens.longest() as u32;
        let name = format!("ngl {}, trial {}", plan.n_gpu_layers, tried + 1);
        let mut point = Point { name: name.clone(), ..Point::default() };
        if !(self.progress)(&Progress { name: &name, done: 0.0 }) {
            return Ok(None);
        }
        // This run is not counted. It fills the context and warms up.
        text(model, &tokens, (0, deepest), protocol.n_gen)?;
        let mut observer = Observer::new(model, &self.system);
        observer.look(&mut point.conditions);
        let mut host = HostWatch::begin(&self.system);
        let begun = self.clock.now();
        for run in 0..ready.runs {
            let is_late = self.clock.now().saturating_sub(begun) >= ready.over;
            if ready.is_quick && run >= MIN_RUNS && is_late {
                break;
            }
            let share = f64::from(run) / f64::from(ready.runs - 1);
            let due = Duration::try_from_secs_f64(ready.over.as_secs_f64() * share).unwrap_or(Duration::MAX);
            if !self.wait_until(begun.saturating_add(due), &name, f64::from(run) / f64::from(ready.runs)) {
                return Ok(None);
            }
            let which = run as usize % tokens.prompts.len();
            let time = now();
            let at = self.clock.now();
            host.run_begins();
            let [_, generation] = text(model, &tokens, (which, deepest), protocol.n_gen)?;
            host.run_ends(self.clock.now().saturating_sub(at));
            let shape = [0, protocol.n_gen, deepest + tokens.prompts[which].len() as u32];
            point.add(shape, Sample { round: run, ns: generation }, &time, None);
            observer.look(&mut point.conditions);
        }
        let (host, conditions) = (host.seen(), point.conditions);
        let runs = in_one_row(point.rows);
        let seen = Seen { runs: &runs, conditions: &conditions, host: &host, free: observer.least_free() };
        let checks = checks::all(&plan, ready.drift, &seen);
        let shortfall = checks::shortfall(&plan, observer.least_free());
        let host_available = host.available.map(|[_, least]| least);
        let placement = Measured::from_report(&model.report());
        let trial = Trial { placement, runs, conditions, each: host.each, host_available, checks };
        Ok(Some((trial, shortfall)))
    }

    /// Waits until `due`. Returns `false` if the measurement was stopped in the meantime.
    fn wait_until(&mut self, due: Duration, name: &str, done: f64) -> bool {
        loop {
            if !(self.progress)(&Progress { name, done }) {
                return false;
            }
            match due.checked_sub(self.clock.now()).filter(|left| !left.is_zero()) {
                Some(left) => self.clock.wait(left.min(Duration::from_secs(1))),
                None => return true,
            }
        }
    }
}

/// Merges the rows of prompts of different lengths, because all of them are at the end of the context.
fn in_one_row(mut rows: Vec<Row>) -> Row {
    let mut row = rows.swap_remove(0);
    row.samples.extend(rows.into_iter().flat_map(|row| row.samples));
    row.samples.sort_by_key(|sample| sample.round);
    row.speed = Speed::from_samples(row.speeds());
    row
}
