//! The input of a decision: the machine, the models with their demand, and the recent reloads.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use autoplace::machine::{DiskRate, Machine};

use crate::demand::{DEMAND_WINDOW, Demand};
use crate::held::Room;
use crate::ladder::{Ladder, Rung};

/// Seconds of a load in addition to reading its file: the process, the context, the warm-up.
const LOAD_SECONDS: f64 = 0.5;

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
    /// The limits of the pool.
    pub limits: Limits,
}

/// The limits of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of models per minute that are unloaded or moved for others. At the limit, a requested model takes
    /// the room that is left, or waits.
    pub reloads_per_minute: u32,
    /// The most bytes of the host's memory that all models of the pool take together, mapped weights included; `None`
    /// for all free bytes.
    pub ram: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reloads_per_minute: 6, ram: None }
    }
}

impl Limits {
    /// Sets the maximum number of models per minute that are unloaded or moved for others.
    #[must_use]
    pub const fn reloads_per_minute(mut self, reloads: u32) -> Self {
        self.reloads_per_minute = reloads;
        self
    }

    /// Sets the most bytes of the host's memory that all models take together.
    #[must_use]
    pub const fn ram(mut self, bytes: u64) -> Self {
        self.ram = Some(bytes);
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
    /// The demand for it.
    pub demand: Demand,
    /// Number of requests that wait for it.
    pub waiting: u32,
    /// Number of texts that it generates now.
    pub texts: u32,
    /// The predicted time until these texts end.
    pub ends_in: Duration,
    /// Whether it can be re-placed in the middle of a text.
    pub moves: bool,
    /// Whether it is never unloaded.
    pub keep: bool,
    /// The weight of its waiting time beside that of other models; 1 by default.
    pub priority: f64,
    /// The models that must be loaded while it is loaded.
    pub beside: Vec<String>,
    /// How long its last load took; `None` before the first, whose time is predicted.
    pub load_time: Option<Duration>,
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
        }
    }

    /// Seconds of a load: those of the last load, or the bytes of the file at the disk's rate.
    pub fn load_seconds(&self, machine: &Machine) -> f64 {
        let rate = machine.host.disk.unwrap_or(DiskRate::UNKNOWN).bytes_per_second.max(1);
        let bytes = self.ladder.rungs().first().map_or(0, |rung| rung.plan.model.file_bytes);
        let predicted = LOAD_SECONDS + bytes as f64 / rate as f64;
        self.load_time.map_or(predicted, |time| time.as_secs_f64())
    }

    /// Expected requests during [`DEMAND_WINDOW`], multiplied by the priority, without those that wait already.
    pub(crate) fn expected(&self, now: Duration) -> f64 {
        self.demand.rate(now) * DEMAND_WINDOW.as_secs_f64() * self.priority
    }
}

impl PoolState {
    /// An empty pool on this machine.
    pub fn new(machine: Machine) -> Self {
        Self { machine, models: Vec::new(), now: Duration::ZERO, reloads: Vec::new(), limits: Limits::default() }
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

    /// The time until a model may be unloaded or moved for others; `None` if it may be now.
    pub(crate) fn held_off(&self) -> Option<Duration> {
        const MINUTE: Duration = Duration::from_secs(60);
        let mut left: Vec<Duration> =
            self.reloads.iter().filter_map(|&at| (at + MINUTE).checked_sub(self.now)).collect();
        left.retain(|left| !left.is_zero());
        left.sort_unstable();
        let bound = self.limits.reloads_per_minute as usize;
        // The next reload is allowed once at most `bound - 1` of them are younger than a minute.
        (left.len() >= bound).then(|| left.get(left.len() - bound.max(1)).copied().unwrap_or(MINUTE))
    }
}
