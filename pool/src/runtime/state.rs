//! The state that the pool's thread and its handles share.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use autoplace::generate::Engine;
use autoplace::machine::Machine;
use autoplace::store::PromptStore;
use autoplace::{Model, Plan};

use super::handle::ModelHandle;
use super::settings::Settings;
use super::ticket::Ticket;
use crate::demand::Demand;
use crate::error::Error;
use crate::ladder::{Ladder, Rung};
use crate::plan::PoolPlan;
use crate::spec::ModelSpec;
use crate::state::Limits;
use crate::succession::Succession;

/// Identifies a model of the pool.
pub(super) type Id = u64;

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified after every change of the state.
    changed: Condvar,
    /// This lock is held while the specifications are replaced. Two calls at once would open the same stores.
    pub(super) replacing: Mutex<()>,
    begun: Instant,
    pub(super) settings: Settings,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entries: Vec<Entry>,
    /// Requests for models, the oldest first.
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) limits: Limits,
    /// The times at which models were unloaded or moved for others.
    pub(super) reloads: Vec<Duration>,
    pub(super) last_plan: Option<Arc<PoolPlan>>,
    pub(super) is_closed: bool,
    /// The model of the last request.
    pub(super) last_wanted: Option<Id>,
    /// Which model is requested after which.
    pub(super) succession: Succession,
    /// Whether a request has come, or a text has ended, since the pool last decided about the next request.
    pub(super) may_anticipate: bool,
    /// Whether the pool's thread waits, and has found nothing to do since the last change of the state.
    pub(super) is_at_rest: bool,
    /// How often the pool's thread has checked the machine's memory.
    pub(super) memory_checks: u64,
    /// How often the pool's thread has decided about all models.
    pub(super) decisions: u64,
    pub(super) next_id: Id,
}

/// The answer to a request for a model.
pub(super) type Answer = Result<ModelHandle, Error>;

/// A request for a model.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: Id,
    /// The name that was asked for.
    pub(super) name: String,
    pub(super) since: Duration,
    /// The pool does not decide about this request again before this time.
    pub(super) not_before: Duration,
    pub(super) ticket: Arc<Ticket<Answer>>,
}

/// A model of the pool.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: Id,
    pub(super) spec: Arc<ModelSpec>,
    /// Its name in plans: the name of its specification, until another specification has that name.
    pub(super) label: String,
    /// The file of its last load, without symbolic links; `None` before the first load.
    pub(super) file: Option<PathBuf>,
    /// Its prompt store, which outlives the loads.
    pub(super) store: Option<PromptStore>,
    pub(super) ladder: Option<Ladder>,
    pub(super) loaded: Option<Loaded>,
    pub(super) demand: Demand,
    pub(super) handles: u32,
    /// The time at which a handle was last given or dropped.
    pub(super) used: Duration,
    /// The current work of the pool's thread on this model.
    pub(super) work: Work,
    /// Whether no more handles are given, because the model will be unloaded or moved.
    pub(super) is_leaving: bool,
    /// Whether the model must be unloaded once all its handles are dropped.
    pub(super) must_leave: bool,
    /// Whether somebody has asked to unload the model before it was loaded for earlier requests. It is unloaded after
    /// these, unless another request comes.
    pub(super) leaves_unless_wanted: bool,
    /// Whether the model was unloaded for another program, and is loaded again when there is room.
    pub(super) is_parked: bool,
    /// Whether the specification was removed.
    pub(super) is_removed: bool,
    pub(super) load_time: Option<Duration>,
    /// Number of its loads and re-placements.
    pub(super) loads: u32,
    /// Whether it was unloaded because somebody has asked for that, and nobody has wanted it since.
    pub(super) is_dismissed: bool,
    /// When other pools were last asked for memory for it.
    pub(super) asked: Option<Duration>,
    /// Whether the model is yet to be loaded because the pool has started.
    pub(super) is_preloaded: bool,
    /// A kept model is not loaded without a request before this time.
    pub(super) retry_at: Duration,
    /// Why the last load failed.
    pub(super) failure: Option<String>,
}

/// What the loads of a model need to know of its entry.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) store: Option<PromptStore>,
}

/// The work of the pool's thread on a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Work {
    #[default]
    None,
    Loading,
    Moving,
}

/// A loaded model.
pub(super) struct Loaded {
    pub(super) model: Model,
    pub(super) rung: Rung,
    pub(super) engine: Option<Engine>,
    /// This lock is held while the engine is started, because a model has only one engine.
    pub(super) starting: Arc<Mutex<()>>,
    /// This lock is held while the attached value is made, so that the value is made only once.
    pub(super) making: Arc<Mutex<()>>,
    /// The value that an application keeps with the loaded model.
    pub(super) attached: Option<Arc<dyn Any + Send + Sync>>,
    pub(super) since: SystemTime,
}

impl Loaded {
    /// Reads where the model is now.
    pub(super) fn look(&mut self, machine: &Machine) {
        let placement = self.model.placement();
        if *placement != *self.rung.plan {
            self.rung = Rung::new(Plan::clone(&placement), machine);
        }
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("model", &self.model).field("since", &self.since).finish_non_exhaustive()
    }
}

impl Entry {
    pub(super) fn new(id: Id, spec: Arc<ModelSpec>, store: Option<PromptStore>, now: Duration) -> Self {
        Self {
            id,
            store,
            label: spec.name.clone(),
            file: None,
            asked: None,
            is_preloaded: spec.preload,
            spec,
            ladder: None,
            loaded: None,
            demand: Demand::default(),
            handles: 0,
            used: now,
            work: Work::None,
            is_leaving: false,
            must_leave: false,
            leaves_unless_wanted: false,
            is_parked: false,
            is_removed: false,
            load_time: None,
            loads: 0,
            is_dismissed: false,
            retry_at: now,
            failure: None,
        }
    }

    pub(super) fn source(&self) -> Source {
        Source { spec: Arc::clone(&self.spec), store: self.store.clone() }
    }

    /// Whether the model may be loaded without a request.
    pub(super) const fn may_be_loaded(&self) -> bool {
        !self.is_removed && !self.is_parked && !self.is_dismissed && self.failure.is_none()
    }

    /// Whether the model is kept loaded, but is not loaded yet.
    pub(super) fn is_missing(&self) -> bool {
        let is_kept = self.spec.keep && !self.is_removed && self.failure.is_none();
        is_kept && self.loaded.is_none() && !self.is_parked
    }

    /// Whether a handle can be given now.
    pub(super) fn is_ready(&self) -> bool {
        let is_staying = !self.is_leaving && !self.must_leave && self.work == Work::None;
        is_staying && self.loaded.is_some() && !self.is_dead()
    }

    /// Whether the model is loaded, but only until its last handle is dropped. There is nothing to prepare before that.
    pub(super) fn is_going(&self) -> bool {
        self.loaded.is_some() && self.handles > 0 && (self.must_leave || self.is_removed || self.is_dead())
    }

    /// Whether the model is loaded in a worker that has died.
    pub(super) fn is_dead(&self) -> bool {
        let model = self.loaded.as_ref().map(|loaded| &loaded.model);
        model.is_some_and(|model| model.worker_id().is_none() && !model.worker_deaths().is_empty())
    }
}

impl Shared {
    pub(super) fn new(models: Vec<ModelSpec>, limits: Limits, settings: Settings) -> Result<Self, Error> {
        let shared = Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            replacing: Mutex::default(),
            begun: Instant::now(),
            settings,
        };
        shared.set_models(models, limits)?;
        Ok(shared)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes all threads that wait for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = {
            let mut state = self.lock();
            // The change may have made work for the pool's thread, which has not seen it yet.
            state.is_at_rest = false;
            change(&mut state)
        };
        self.changed.notify_all();
        changed
    }

    /// Waits for a change, for at most this time.
    pub(super) fn wait<'s>(&'s self, state: MutexGuard<'s, State>, time: Duration) -> MutexGuard<'s, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The time since the pool began.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn last_plan(&self) -> Option<Arc<PoolPlan>> {
        self.lock().last_plan.clone()
    }

    pub(super) fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    pub(super) fn ask_to_unload(&self, name: &str) -> Result<bool, Error> {
        self.change(|state| {
            let id = state.named(name)?.id;
            let is_waited_for = state.waiters.iter().any(|waiter| waiter.id == id);
            let entry = state.named(name)?;
            let is_loaded = entry.loaded.is_some();
            let is_coming = !is_loaded && (is_waited_for || entry.work == Work::Loading);
            (entry.must_leave, entry.leaves_unless_wanted) = (is_loaded, is_coming);
            (entry.is_parked, entry.is_preloaded, entry.is_dismissed) = (false, false, true);
            Ok(is_loaded || is_coming)
        })
    }
}

impl State {
    /// The model with this name or alias.
    pub(super) fn named(&mut self, name: &str) -> Result<&mut Entry, Error> {
        let is_named = |entry: &Entry| !entry.is_removed && entry.spec.is_named(name);
        let Some(index) = self.entries.iter().position(is_named) else {
            return Err(self.unknown(name));
        };
        Ok(&mut self.entries[index])
    }

    /// The error for a name that no model has.
    pub(super) fn unknown(&self, name: &str) -> Error {
        let known = self.entries.iter().filter(|entry| !entry.is_removed).map(|entry| entry.spec.name.clone());
        Error::Unknown { name: name.to_owned(), known: known.collect() }
    }

    /// Forgets removed specifications whose models are not loaded.
    pub(super) fn forget_removed(&mut self) {
        self.entries.retain(|entry| !(entry.is_removed && entry.loaded.is_none() && entry.handles == 0));
    }

    pub(super) fn entry(&mut self, id: Id) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Whether a request waits for the model, or the model is yet to be loaded because it is kept.
    pub(super) fn is_wanted(&self, id: Id) -> bool {
        let is_missing = |entry: &Entry| entry.id == id && entry.is_missing();
        self.waiters.iter().any(|waiter| waiter.id == id) || self.entries.iter().any(is_missing)
    }

    /// Whether a loaded model names this one in `beside`, so that this one stays loaded too.
    pub(super) fn is_beside_a_loaded_one(&self, entry: &Entry) -> bool {
        self.entries.iter().any(|other| other.loaded.is_some() && other.spec.beside.contains(&entry.spec.name))
    }

    /// The id of the model with this name. A removed model is found only if no other model has the name.
    pub(super) fn id_of(&self, name: &str) -> Option<Id> {
        self.entries.iter().find(|entry| entry.label == name).map(|entry| entry.id)
    }
}
