//! The settings of a pool.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use autoplace::load::Leases;
use autoplace::machine::Machine;
use autoplace::{Isolation, ModelBuilder, OnDeath, WorkerProcess};

use super::Pool;
use super::settings::Settings;
use super::state::Shared;
use crate::error::Error;
use crate::file::PoolFile;
use crate::spec::{ModelSpec, check};
use crate::state::Limits;

/// The models and the limits of a [`Pool`].
#[derive(Clone)]
#[must_use = "nothing is loaded until `start` is called"]
pub struct PoolBuilder {
    models: Vec<ModelSpec>,
    limits: Limits,
    settings: Settings,
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder").field("models", &self.models).finish_non_exhaustive()
    }
}

impl PoolBuilder {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);

        let worker = WorkerProcess::own_executable().on_death(OnDeath::Resume { attempts: 2 });
        let settings = Settings {
            machine: None,
            isolation: Isolation::Process(worker),
            patience: Duration::from_secs(600),
            look: Duration::from_secs(2),
            leases: Leases::user().makes_room(true),
            id: format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)),
            configure: Arc::new(|_, builder| builder),
        };
        Self { models: Vec::new(), limits: Limits::default(), settings }
    }

    /// Adds a model to the pool.
    pub fn model(mut self, model: ModelSpec) -> Self {
        self.models.push(model);
        self
    }

    /// Adds the models of a file, and sets its limits.
    pub fn file(mut self, file: PoolFile) -> Self {
        self.models.extend(file.models);
        self.limits = file.limits;
        self
    }

    /// Sets the limits.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets where the models run. Default: each in a process of its own, a worker, which is replaced when it dies. A
    /// worker runs this program's executable, so the program's `main` must begin with [`autoplace::worker_main`]. In
    /// this process ([`Isolation::None`]) a model can be re-placed in the middle of a text.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.settings.isolation = isolation;
        self
    }

    /// Plans for this machine. Its free bytes must be those that it would have if no model of the pool were loaded.
    /// Default: this computer, detected again before each decision.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.settings.machine = Some(machine);
        self
    }

    /// Sets the maximum time that a request for a model waits. Default: ten minutes.
    pub const fn patience(mut self, time: Duration) -> Self {
        self.settings.patience = time;
        self
    }

    /// Sets the time between two readings of the machine's memory. Default: two seconds.
    pub const fn look_every(mut self, time: Duration) -> Self {
        self.settings.look = time;
        self
    }

    /// Sets where the pool and its loads see other processes, and are seen by them. Default: the user's folder.
    pub fn leases(mut self, leases: Leases) -> Self {
        self.settings.leases = leases.makes_room(true);
        self
    }

    /// Sets further options of each load, such as its threads; `set` gets the model's name. The pool sets the machine
    /// and the isolation afterwards. A model that gets another name while it is loaded keeps its options until its next
    /// load.
    pub fn configure(mut self, set: impl Fn(&str, ModelBuilder) -> ModelBuilder + Send + Sync + 'static) -> Self {
        self.settings.configure = Arc::new(set);
        self
    }

    /// Starts the pool. It loads the models to [keep](ModelSpec::keep) and to [preload](ModelSpec::preload) in the
    /// background.
    ///
    /// # Errors
    ///
    /// [`Error::Specification`] if the models do not agree with each other, or if the folder of a prompt store cannot
    /// be used; [`Error::Thread`] if the pool's thread cannot start.
    pub fn start(self) -> Result<Pool, Error> {
        check(&self.models)?;
        Pool::start(Shared::new(self.models, self.limits, self.settings)?).map_err(Error::Thread)
    }
}
