//! The state of the pool's models, for people.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::state::{Entry, Shared, Work};
use crate::held::HeldBytes;

/// A model of a pool and its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelStatus {
    /// Its name; for a replaced model, a text that no request can name.
    pub name: String,
    /// Its other names; none for a replaced model.
    pub aliases: Vec<String>,
    /// Whether its specification was changed or removed while it was loaded. It only finishes its texts: requests for
    /// its names get the model that replaces it, if there is one.
    pub is_replaced: bool,
    /// Whether it is loaded.
    pub residence: Residence,
    /// The number of layers on GPUs and of all layers, while it is loaded.
    pub layers: Option<(u32, u32)>,
    /// Bytes that it takes of each device, while it is loaded.
    pub held: Option<HeldBytes>,
    /// Predicted tokens per second, while it is loaded and generates.
    pub tokens_per_second: Option<f64>,
    /// Tokens of context of each text, while it is loaded and generates.
    pub n_ctx: Option<u32>,
    /// The id of the worker process that holds it.
    pub process: Option<u32>,
    /// The time at which it was loaded.
    pub since: Option<SystemTime>,
    /// Number of handles.
    pub in_use: u32,
    /// The number of requests that wait for the model.
    pub waiting: u32,
    /// Why its last load failed.
    pub failure: Option<String>,
    /// What a person should know of its placement and its load, while it is loaded: a setting that was lowered, more
    /// threads than cores.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Whether a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Residence {
    /// It is not loaded.
    Unloaded,
    /// It is not loaded because another program took its memory. It is loaded again when there is room.
    Parked,
    /// It is being loaded.
    Loading,
    /// It is loaded.
    Loaded,
    /// It is being re-placed.
    Moving,
}

/// What the pool's thread does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Activity {
    /// Whether the pool has done all that follows from its specifications, from past requests and from past texts: no
    /// request waits, and what should be loaded before the next one is loaded, or could not be. Later the pool still
    /// reads the memory, during which it is not settled, and unloads idle models.
    pub is_settled: bool,
    /// How often the thread has checked the machine's memory. A check may move, unload and load models.
    pub memory_checks: u64,
    /// How often the thread has decided how to make room for a model, or to change nothing.
    pub decisions: u64,
}

impl Shared {
    pub(super) fn activity(&self) -> Activity {
        let state = self.lock();
        let is_missing = state.entries.iter().any(Entry::is_missing);
        let is_settled = state.is_at_rest && state.waiters.is_empty() && !is_missing;
        Activity { is_settled, memory_checks: state.memory_checks, decisions: state.decisions }
    }

    pub(super) fn status(&self) -> Vec<ModelStatus> {
        let state = self.lock();
        let waiting = |entry: &Entry| state.waiters.iter().filter(|waiter| waiter.id == entry.id).count();
        let entries = state.entries.iter().filter(|entry| !entry.is_removed || entry.loaded.is_some());
        entries.map(|entry| status(entry, waiting(entry))).collect()
    }
}

fn status(entry: &Entry, waiting: usize) -> ModelStatus {
    let loaded = entry.loaded.as_ref();
    let plan = loaded.map(|loaded| &loaded.rung.plan);
    ModelStatus {
        name: entry.label.clone(),
        aliases: if entry.is_removed { Vec::new() } else { entry.spec.aliases.clone() },
        is_replaced: entry.is_removed,
        residence: match (entry.work, loaded) {
            (Work::Loading, _) => Residence::Loading,
            (Work::Moving, _) => Residence::Moving,
            (Work::None, Some(_)) => Residence::Loaded,
            (Work::None, None) if entry.is_parked => Residence::Parked,
            (Work::None, None) => Residence::Unloaded,
        },
        layers: plan.map(|plan| (plan.n_gpu_layers, plan.layers())),
        held: loaded.map(|loaded| loaded.rung.held.clone()),
        tokens_per_second: plan.and_then(|plan| Some(plan.speed.as_ref()?.tokens_per_second)),
        n_ctx: plan.filter(|plan| plan.context.embeddings.is_none()).map(|plan| plan.context.n_ctx_seq()),
        process: loaded.and_then(|loaded| loaded.model.worker_id()),
        since: loaded.map(|loaded| loaded.since),
        in_use: entry.handles,
        waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
        failure: entry.failure.clone(),
        notes: loaded.map(|loaded| loaded.model.notes()).unwrap_or_default(),
    }
}
