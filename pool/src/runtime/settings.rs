//! The settings of a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use autoplace::load::Leases;
use autoplace::machine::Machine;
use autoplace::{Isolation, ModelBuilder};

/// Sets further options of each load. Its arguments are the model's name and the builder.
pub(super) type Configure = Arc<dyn Fn(&str, ModelBuilder) -> ModelBuilder + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) machine: Option<Machine>,
    pub(super) isolation: Isolation,
    /// Maximum time that a request waits.
    pub(super) patience: Duration,
    /// The time between two checks of the machine's memory.
    pub(super) look: Duration,
    /// Where other processes' models and pools are seen.
    pub(super) leases: Leases,
    /// A name that distinguishes this pool from the other pools that use the same leases (process id and a number).
    pub(super) id: String,
    pub(super) configure: Configure,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("patience", &self.patience).finish_non_exhaustive()
    }
}
