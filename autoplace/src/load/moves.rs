//! Measures what a load and a move take, and keeps it for the plans of later programs. The times of a load's stages, and
//! of saving and restoring the states of texts, flow in; [`MoveRates`] of the model's file flow out.
//!
//! A load on the host alone teaches nothing, because the file is mapped there and not read.

use std::path::Path;
use std::time::{Duration, Instant};

use super::build_name;
use super::cached::cached_share;
use super::devices::is_simulated;
use super::model::Model;
use super::options::{LoadOptions, Verify};
use super::placed::Prepared;
use super::rates::MIN_MODEL_BYTES;
use crate::gguf::{Header, Shard};
use crate::machine::{ConditionsWatch, Machine, MeasurementCache, MoveFigure, MoveRates, RateConditions};
use crate::plan::Plan;

/// A file of which at least this share is in the page cache is read without the disk, as far as a move is concerned.
const WARM: f64 = 0.95;
/// A file of which at most this share is in the page cache measures the disk.
const COLD: f64 = 0.5;
/// Bytes per second of the cached part of a cold file, if no warm load was measured.
const UNKNOWN_WARM: f64 = 2e9;

/// Times the stages of a load.
pub(super) struct LoadClock {
    watch: ConditionsWatch,
    begun: Instant,
    /// Bytes of the file, and the cached ones of them; `None` if the system does not tell.
    file: (u64, Option<u64>),
    weights: Option<Duration>,
}

/// A load's time for the weights, with the conditions of the whole load.
#[derive(Debug, Clone)]
pub(super) struct LoadTimes {
    weights: Duration,
    rest: Duration,
    file: (u64, Option<u64>),
    conditions: RateConditions,
}

/// Bytes of the model's file, and those of them that are in the page cache; `None` if the system does not tell.
pub(super) fn cached_bytes(header: &Header) -> (u64, Option<u64>) {
    let shards = header.shards();
    let cached = shards.iter().map(|shard| Some(shard.file_bytes() as f64 * cached_share(shard.path())?));
    let bytes = shards.iter().map(Shard::file_bytes).fold(0, u64::saturating_add);
    (bytes, cached.sum::<Option<f64>>().map(|cached| (cached as u64).min(bytes)))
}

impl LoadClock {
    /// Begins before the weights are loaded.
    pub(super) fn begin(header: &Header) -> Self {
        Self { watch: ConditionsWatch::begin(), begun: Instant::now(), file: cached_bytes(header), weights: None }
    }

    /// The weights are loaded.
    pub(super) fn weights_loaded(&mut self) {
        self.weights = Some(self.begun.elapsed());
    }

    /// The warm-up has ended.
    pub(super) fn end(self) -> Option<LoadTimes> {
        let (weights, conditions) = (self.weights?, self.watch.so_far());
        Some(LoadTimes { weights, rest: self.begun.elapsed().saturating_sub(weights), file: self.file, conditions })
    }
}

impl LoadTimes {
    /// The rates of a load that had so many bytes of weights. `whole` is the time of the move that the load was a part
    /// of, without the states of the texts.
    fn rates(&self, weights: u64, whole: Option<Duration>, known: &MoveRates) -> MoveRates {
        let mut rates = MoveRates::default();
        let seconds = self.weights.as_secs_f64();
        let (bytes, cached) = self.file;
        let share = cached.map_or(1.0, |cached| cached as f64 / bytes.max(1) as f64);
        if share >= WARM {
            rates.warm_file = MoveFigure::rate(weights, seconds, &self.conditions);
        } else if share <= COLD {
            let warm = known.warm_file.as_ref().map_or(UNKNOWN_WARM, |figure| figure.value as f64);
            let cached = share * bytes as f64;
            let seconds = (seconds - cached / warm).max(f64::MIN_POSITIVE);
            rates.cold_file = MoveFigure::rate(bytes - cached as u64, seconds, &self.conditions);
        }
        let rest = whole.map_or(self.rest, |whole| whole.saturating_sub(self.weights));
        rates.rest_ns = Some(MoveFigure::new(nanoseconds(rest), self.conditions.clone()));
        rates
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The states of all texts: their bytes, and the time to save and restore them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StateCopy {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

/// What loads and moves of this file have taken on this machine, from the user's cache; empty if nothing is known.
pub fn move_rates(path: &Path, file_bytes: u64, machine: &Machine) -> MoveRates {
    let rates = MeasurementCache::user().move_rates(machine, (path, file_bytes), &build_name());
    rates.unwrap_or_default()
}

impl LoadOptions {
    /// The cache of what moves take on this machine; `None` if nothing is kept.
    fn move_cache(&self, machine: &Machine, file_bytes: u64) -> Option<MeasurementCache> {
        let has_simulated = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref()).any(is_simulated);
        let cache = self.learn.cache(has_simulated)?;
        // The times of a small model are those of everything beside its weights, and nobody waits for its moves.
        let is_worth = self.learn.is_stated() || file_bytes >= MIN_MODEL_BYTES;
        is_worth.then_some(cache)
    }

    /// What loads and moves of the model have taken on this machine.
    pub(super) fn move_rates(&self, machine: &Machine, file_bytes: u64) -> MoveRates {
        let cache = self.move_cache(machine, file_bytes);
        let rates = cache.and_then(|cache| cache.move_rates(machine, (&self.path, file_bytes), &build_name()));
        rates.unwrap_or_default()
    }

    /// Keeps what a load or a move took.
    fn keep_move_rates(&self, machine: &Machine, plan: &Plan, rates: impl FnOnce(&MoveRates) -> MoveRates) {
        let file_bytes = plan.model.file_bytes;
        // Another warm-up than the default one takes another time, and the next program may have the default.
        let is_usual = self.verify == Verify::Quick && plan.gpus().next().is_some();
        let Some(cache) = self.move_cache(machine, file_bytes).filter(|_| is_usual) else { return };
        let file = (self.path.as_path(), file_bytes);
        let known = cache.move_rates(machine, file, &build_name()).unwrap_or_default();
        let later = rates(&known);
        if !later.is_empty() {
            cache.put_move_rates(machine, file, &build_name(), later);
        }
    }

    /// Keeps what a load took that was not a part of a move.
    pub(super) fn learn_from_load(&self, prepared: &Prepared, times: &LoadTimes) {
        let Prepared { plan, machine, .. } = prepared;
        self.keep_move_rates(machine, plan, |known| {
            let mut rates = times.rates(weights_of(plan), None, known);
            // A move releases the model too, which a load does not measure.
            rates.rest_ns = rates.rest_ns.filter(|_| known.rest_ns.is_none());
            rates
        });
    }
}

impl Model {
    /// Keeps what a move took: its load, the copies of the states, and all of it together.
    pub(crate) fn learn_from_move(&self, state: StateCopy, whole: Duration) {
        let (machine, plan) = (self.machine(), self.placement());
        let Some(times) = self.counters().depth().and_then(|follower| follower.times()) else { return };
        self.options().keep_move_rates(&machine, &plan, |known| {
            let mut rates = times.rates(weights_of(&plan), Some(whole.saturating_sub(state.time)), known);
            rates.state = MoveFigure::rate(state.bytes, state.time.as_secs_f64(), &times.conditions);
            rates
        });
    }
}

fn weights_of(plan: &Plan) -> u64 {
    plan.placements.iter().map(|placement| placement.footprint.weights).fold(0, u64::saturating_add)
}
