//! The input of a decision: the machine, the models with their demand, and the recent reloads.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use autoplace::machine::{DiskRate, Machine};

use crate::demand::{DEMAND_WINDOW, Demand};
use crate::held::Room;
use crate::ladder::{Ladder, Rung};
use crate::succession::Succession;

/// Number of models that may be unloaded or moved for others in a minute, however long their loads take.
const RELOADS: u32 = 8;

/// More reloads are allowed if together they take at most this many seconds of a minute.
const RELOADING: f64 = 30.0;

/// The most models that may be unloaded or moved for others in a minute, however short their loads are.
const MAX_RELOADS: u32 = 30;

/// The maximum share of the time that counts as busy. Near 1, predicted times would grow without bound.
const MAX_BUSY: f64 = 0.8;

/// Seconds of a load in addition to reading its file: the process, the context, the warm-up.
const LOAD_SECONDS: f64 = 0.5;

/// Assumed bytes per second of a second load, whose file the host's memory still has: half of what the author of
/// llama-swap measured (reddit.com/r/LocalLLaMA/comments/1jz3tkv).
const CACHED_BYTES: f64 = 4.5e9;

/// The models of a machine at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolState {
    /// The machine with the free bytes that it would have if no model of the pool were loaded.
    pub machine: Machine,
    /// The models, loaded or not.
    pub models: Vec<ModelState>,
    /// The current time, since any fixed moment.
    pub now: Duration,
    /// The recent times at which models were unloaded or moved for others, in any order.
    pub reloads: Vec<Duration>,
    /// Which model is requested after which.
    pub succession: Succession,
    /// The limits of the pool.
    pub limits: Limits,
}

/// The limits of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of models per minute that are unloaded or moved for others. At the limit, a requested model takes
    /// the room that is left, or waits. `None`: eight, or up to 30 if the loads together take at most half of the
    /// minute.
    pub reloads_per_minute: Option<u32>,
    /// The most bytes of the host's memory that all models of the pool take together, mapped weights included; `None`
    /// for all free bytes.
    pub ram: Option<u64>,
    /// Whether a model that usually follows the last one is loaded before it is requested, and others make room for it
    /// while nobody uses them. On by default.
    pub anticipate: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reloads_per_minute: None, ram: None, anticipate: true }
    }
}

impl Limits {
    /// How many models may be unloaded or moved for others in a minute. `loads` has the seconds of a load for each
    /// model that was loaded before. Such models are loaded again when they are wanted, so a reload is assumed to take
    /// the longest of these times.
    pub(crate) fn allowed_reloads(&self, loads: impl Iterator<Item = f64>) -> usize {
        let longest = loads.fold(0.0, f64::max);
        let in_time = if longest > 0.0 { (RELOADING / longest) as u32 } else { 0 };
        self.reloads_per_minute.unwrap_or_else(|| in_time.clamp(RELOADS, MAX_RELOADS)) as usize
    }

    /// Sets the maximum number of models per minute that are unloaded or moved for others.
    #[must_use]
    pub const fn reloads_per_minute(mut self, reloads: u32) -> Self {
        self.reloads_per_minute = Some(reloads);
        self
    }

    /// Sets the most bytes of the host's memory that all models take together.
    #[must_use]
    pub const fn ram(mut self, bytes: u64) -> Self {
        self.ram = Some(bytes);
        self
    }

    /// Sets whether models are loaded before they are requested.
    #[must_use]
    pub const fn anticipate(mut self, anticipate: bool) -> Self {
        self.anticipate = anticipate;
        self
    }

    /// The machine with no more free memory than the models of the pool may take.
    pub(crate) fn apply(&self, mut machine: Machine) -> Machine {
        if let Some(most) = self.ram {
            machine.host.available = machine.host.available.min(most);
        }
        machine
    }
}

/// One model at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelState {
    /// Its name.
    pub name: String,
    /// Its possible placements.
    pub ladder: Ladder,
    /// Its placement; `None` while it is not loaded.
    pub loaded: Option<Rung>,
    /// The demand for the model.
    pub demand: Demand,
    /// Number of requests that wait for the model.
    pub waiting: u32,
    /// Number of texts that the model generates now.
    pub texts: u32,
    /// The predicted time until these texts end.
    pub ends_in: Duration,
    /// Whether it can be re-placed in the middle of a text.
    pub moves: bool,
    /// Whether it is never unloaded.
    pub keep: bool,
    /// The weight of its waiting time, relative to other models; 1 by default.
    pub priority: f64,
    /// The models that must be loaded while it is loaded.
    pub beside: Vec<String>,
    /// How long its last load took; `None` before the first, whose time is predicted.
    pub load_time: Option<Duration>,
    /// Number of its loads. The first one has read the file from the disk; later ones may find it in memory.
    pub loads: u32,
    /// Whether it may be loaded before it is requested: not if that has failed, or if somebody has unloaded it.
    pub may_be_loaded: bool,
}

impl ModelState {
    /// A model that is not loaded and has had no request.
    pub fn new(name: impl Into<String>, ladder: Ladder) -> Self {
        Self {
            name: name.into(),
            ladder,
            loaded: None,
            demand: Demand::default(),
            waiting: 0,
            texts: 0,
            ends_in: Duration::ZERO,
            moves: false,
            keep: false,
            priority: 1.0,
            beside: Vec::new(),
            load_time: None,
            loads: 0,
            may_be_loaded: true,
        }
    }

    /// Seconds of a load: those of the last load, or the bytes of the file at the disk's rate. A second load is
    /// expected to find the file in the host's memory, if that is large enough.
    pub fn load_seconds(&self, machine: &Machine) -> f64 {
        let rate = machine.host.disk.unwrap_or(DiskRate::UNKNOWN).bytes_per_second.max(1);
        let bytes = self.ladder.rungs().first().map_or(0, |rung| rung.plan.model.file_bytes);
        let predicted = LOAD_SECONDS + bytes as f64 / rate as f64;
        let last = self.load_time.map_or(predicted, |time| time.as_secs_f64());
        if self.loads == 1 && bytes <= machine.host.available {
            return last.min(LOAD_SECONDS + bytes as f64 / CACHED_BYTES);
        }
        last
    }

    /// Predicted seconds of a request of the mean size in the fastest placement.
    pub(crate) fn fastest_seconds(&self) -> f64 {
        self.ladder.rungs().first().map_or(0.0, |rung| self.demand.seconds(&rung.plan))
    }

    /// Predicted seconds from now to the ends of the requests that wait, all together, in this placement.
    pub(crate) fn seconds_of_waiting(&self, rung: &Rung) -> f64 {
        let (waiting, sequences) = (self.waiting, rung.sequences());
        // The first `sequences` texts begin now, the next `sequences` texts when these have ended, and so on.
        let (rounds, rest) = (waiting / sequences, waiting % sequences);
        let full = u64::from(sequences) * u64::from(rounds) * (u64::from(rounds) + 1) / 2;
        let texts = full + u64::from(rest) * (u64::from(rounds) + 1);
        texts as f64 * self.demand.seconds(&rung.plan)
    }

    /// Expected requests during [`DEMAND_WINDOW`], multiplied by the priority, without those that wait already.
    pub(crate) fn expected(&self, now: Duration) -> f64 {
        self.demand.rate(now) * DEMAND_WINDOW.as_secs_f64() * self.priority
    }
}

impl PoolState {
    /// An empty pool on this machine.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            models: Vec::new(),
            now: Duration::ZERO,
            reloads: Vec::new(),
            succession: Succession::default(),
            limits: Limits::default(),
        }
    }

    /// The index of the model with this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }

    /// Whether the loaded models fit into the free bytes.
    pub(crate) fn is_within(&self) -> bool {
        let loaded = self.models.iter().filter_map(|model| model.loaded.as_ref());
        loaded.into_iter().try_fold(Room::new(&self.machine), |room, rung| room.with(&rung.held)).is_some()
    }

    /// The share of the time in which texts are computed, if each model is in its fastest placement. The model `except`
    /// is left out.
    pub(crate) fn busy(&self, except: Option<usize>) -> f64 {
        let models = self.models.iter().enumerate().filter(|(index, _)| Some(*index) != except);
        let busy: f64 = models.map(|(_, model)| model.demand.rate(self.now) * model.fastest_seconds()).sum();
        busy.clamp(0.0, MAX_BUSY)
    }

    /// Whether `reloads` models may be unloaded or moved for a request that has not come. Two of the reloads that are
    /// allowed in a minute are left for requests that have come.
    pub(crate) fn may_anticipate(&self, reloads: usize) -> bool {
        let recent = self.reloads.iter().filter(|&&at| at + Duration::from_secs(60) > self.now).count();
        recent + reloads + 2 <= self.allowed_reloads()
    }

    /// How many models may be unloaded or moved for others in a minute.
    fn allowed_reloads(&self) -> usize {
        let loaded = self.models.iter().filter(|model| model.loads > 0);
        self.limits.allowed_reloads(loaded.map(|model| model.load_seconds(&self.machine)))
    }

    /// The time until a model may be unloaded or moved for others; `None` if it may be now.
    pub(crate) fn held_off(&self) -> Option<Duration> {
        const MINUTE: Duration = Duration::from_secs(60);
        let mut left: Vec<Duration> =
            self.reloads.iter().filter_map(|&at| (at + MINUTE).checked_sub(self.now)).collect();
        left.retain(|left| !left.is_zero());
        left.sort_unstable();
        let bound = self.allowed_reloads();
        // The next reload is allowed once at most `bound - 1` of the reloads are younger than a minute.
        (left.len() >= bound).then(|| left.get(left.len() - bound.max(1)).copied().unwrap_or(MINUTE))
    }
}
