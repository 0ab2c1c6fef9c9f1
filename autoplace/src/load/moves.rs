//! Times the stages of a load, and turns the times into rates of the model's file: bytes per second of a file that is
//! in the page cache (warm) or not (cold), and the time of everything else.
//!
//! A load on the host alone yields no rates, because the file is mapped there and not read.

use std::time::{Duration, Instant};

use super::cached::cached_share;
use crate::gguf::{Header, Shard};
use crate::machine::{ConditionsWatch, MoveFigure, MoveRates, RateConditions};

/// If at least this share of the file is in the page cache, a move counts as a move that does not use the disk.
const WARM: f64 = 0.95;
/// If at most this share of the file is in the page cache, a load measures the speed of the disk.
const COLD: f64 = 0.5;
/// Assumed bytes per second for the cached part of a cold file, if no load of a warm file was measured.
const UNKNOWN_WARM: f64 = 2e9;

/// Times the stages of a load.
pub(super) struct LoadClock {
    watch: ConditionsWatch,
    begun: Instant,
    /// The bytes of the file, and how many of them are in the page cache; `None` if the system does not report this.
    file: (u64, Option<u64>),
    weights: Option<Duration>,
}

/// The times that a load took for the weights and for the rest, and the conditions during the whole load.
#[derive(Debug, Clone)]
pub(super) struct LoadTimes {
    weights: Duration,
    rest: Duration,
    file: (u64, Option<u64>),
    conditions: RateConditions,
}

/// The bytes of the model's file, and how many of them are in the page cache; `None` if the system does not report
/// this.
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

    /// The rates of a load that read `weights` bytes of weights. If the load was a part of a move, `whole` is the time
    /// of that move without the time for the states of the texts.
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

/// How many bytes the states of all texts have, and how long it took to save and to restore them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StateCopy {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}
