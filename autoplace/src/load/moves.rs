//! Times the stages of a load, and turns the times into rates of the model's file: bytes per second of a warm and of a
//! cold file, and the time of the rest.
//!
//! A load on the host alone yields no rates, because the file is mapped there and not read.

use std::time::{Duration, Instant};

use super::cached::cached_share;
use crate::gguf::{Header, Shard};
use crate::machine::{ConditionsWatch, MoveFigure, MoveRates, RateConditions};

/// Share of a file in the page cache from which a move counts as one without the disk.
const WARM: f64 = 0.95;
/// Share of a file in the page cache up to which a load measures the disk.
const COLD: f64 = 0.5;
/// Bytes per second of the cached part of a cold file, if no warm load was measured.
const UNKNOWN_WARM: f64 = 2e9;

/// Times the stages of a load.
pub(super) struct LoadClock {
    watch: ConditionsWatch,
    begun: Instant,
    /// Bytes of the file, and its bytes in the page cache; `None` if the system does not report them.
    file: (u64, Option<u64>),
    weights: Option<Duration>,
}

/// The times of a load for the weights and for the rest, with the conditions of the whole load.
#[derive(Debug, Clone)]
pub(super) struct LoadTimes {
    weights: Duration,
    rest: Duration,
    file: (u64, Option<u64>),
    conditions: RateConditions,
}

/// Bytes of the model's file, and its bytes in the page cache; `None` if the system does not report them.
pub(super) fn cached_bytes(header: &Header) -> (u64, Option<u64>) {
    let shards = header.shards();
    let cached = shards.iter().map(|shard| Some(shard.file_bytes() as f64 * cached_share(shard.path())?));
    let bytes = shards.iter().map(Shard::file_bytes).fold(0, u64::saturating_add);
    (bytes, cached.sum::<Option<f64>>().map(|cached| (cached as u64).min(bytes)))
}

impl LoadClock {
    /// Starts the clock, before the weights are loaded.
    pub(super) fn begin(header: &Header) -> Self {
        Self { watch: ConditionsWatch::begin(), begun: Instant::now(), file: cached_bytes(header), weights: None }
    }

    /// Records that the weights are loaded.
    pub(super) fn weights_loaded(&mut self) {
        self.weights = Some(self.begun.elapsed());
    }

    /// Stops the clock, after the warm-up.
    pub(super) fn end(self) -> Option<LoadTimes> {
        let (weights, conditions) = (self.weights?, self.watch.so_far());
        Some(LoadTimes { weights, rest: self.begun.elapsed().saturating_sub(weights), file: self.file, conditions })
    }
}

impl LoadTimes {
    /// The conditions of the whole load.
    pub(super) fn conditions(&self) -> &RateConditions {
        &self.conditions
    }

    /// The rates of a load of `weights` bytes of weights. `whole` is the time of the move that the load was a part of,
    /// without the states of the texts.
    pub(super) fn rates(&self, weights: u64, whole: Option<Duration>, known: &MoveRates) -> MoveRates {
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
