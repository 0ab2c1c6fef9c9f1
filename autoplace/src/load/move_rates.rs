//! Keeps the times of a model's loads and moves, for the plans of later programs.
//!
//! In: the times of a load's stages ([`LoadTimes`]), and of saving and restoring the states of texts. Out:
//! [`MoveRates`] of the model's file, in the user's cache.

use std::path::Path;
use std::time::Duration;

use super::build_name;
use super::devices::is_simulated;
use super::model::Model;
use super::moves::{LoadTimes, StateCopy};
use super::options::{LoadOptions, Verify};
use super::placed::Prepared;
use super::rates::MIN_MODEL_BYTES;
use crate::machine::{Machine, MeasurementCache, MoveFigure, MoveRates};
use crate::plan::Plan;

/// The times of this file's loads and moves on this machine, from the user's cache; empty if none are known.
pub fn move_rates(path: &Path, file_bytes: u64, machine: &Machine) -> MoveRates {
    let rates = MeasurementCache::user().move_rates(machine, (path, file_bytes), &build_name());
    rates.unwrap_or_default()
}

impl LoadOptions {
    /// The cache of the times of moves on this machine; `None` if they are not kept.
    fn move_cache(&self, machine: &Machine, file_bytes: u64) -> Option<MeasurementCache> {
        let has_simulated = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref()).any(is_simulated);
        let cache = self.learn.cache(has_simulated)?;
        // The load of a small model spends little time on the weights, so its times show little. Its moves are short
        // anyway.
        let is_worth = self.learn.is_stated() || file_bytes >= MIN_MODEL_BYTES;
        is_worth.then_some(cache)
    }

    /// The times of the model's loads and moves on this machine.
    pub(super) fn move_rates(&self, machine: &Machine, file_bytes: u64) -> MoveRates {
        let cache = self.move_cache(machine, file_bytes);
        let rates = cache.and_then(|cache| cache.move_rates(machine, (&self.path, file_bytes), &build_name()));
        rates.unwrap_or_default()
    }

    /// Keeps the times of a load or a move.
    fn keep_move_rates(&self, machine: &Machine, plan: &Plan, rates: impl FnOnce(&MoveRates) -> MoveRates) {
        let file_bytes = plan.model.file_bytes;
        // A warm-up other than the default takes another time, and the next program may use the default.
        let is_usual = self.verify == Verify::Quick && plan.gpus().next().is_some();
        let Some(cache) = self.move_cache(machine, file_bytes).filter(|_| is_usual) else { return };
        let file = (self.path.as_path(), file_bytes);
        let known = cache.move_rates(machine, file, &build_name()).unwrap_or_default();
        let later = rates(&known);
        if !later.is_empty() {
            cache.put_move_rates(machine, file, &build_name(), later);
        }
    }

    /// Keeps the times of a load that was not a part of a move.
    pub(super) fn learn_from_load(&self, prepared: &Prepared, times: &LoadTimes) {
        let Prepared { plan, machine, .. } = prepared;
        self.keep_move_rates(machine, plan, |known| {
            let mut rates = times.rates(weights_of(plan), None, known);
            // A move also releases the model, and a load does not measure this time.
            rates.rest_ns = rates.rest_ns.filter(|_| known.rest_ns.is_none());
            rates
        });
    }
}

impl Model {
    /// Keeps the times of a move: its load, the copies of the states, and the whole move.
    pub(crate) fn learn_from_move(&self, state: StateCopy, whole: Duration) {
        let (machine, plan) = (self.machine(), self.placement());
        let Some(times) = self.counters().depth().and_then(|follower| follower.times()) else { return };
        self.options().keep_move_rates(&machine, &plan, |known| {
            let mut rates = times.rates(weights_of(&plan), Some(whole.saturating_sub(state.time)), known);
            rates.state = MoveFigure::rate(state.bytes, state.time.as_secs_f64(), times.conditions());
            rates
        });
    }
}

fn weights_of(plan: &Plan) -> u64 {
    plan.placements.iter().map(|placement| placement.footprint.weights).fold(0, u64::saturating_add)
}
