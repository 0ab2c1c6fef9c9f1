//! What counts as what.

use std::time::Duration;

/// When a sentinel speaks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// From one sample to the next.
    pub(super) interval: Duration,
    /// From one look at the programs on the GPUs to the next.
    pub(super) process_interval: Duration,
    /// For how long clocks must be held down, or generation be slow, before it is told.
    pub(super) patience: Duration,
    /// For how long a condition must not hold before its end is told.
    pub(super) calm: Duration,
    /// What must stay free on each GPU, instead of what follows from the plan.
    pub(super) needed: Option<u64>,
    /// The part of its own speed below which a model is slow.
    pub(super) slow: f64,
    /// Tokens over which its speed is taken.
    pub(super) window: u64,
    /// Tokens before its own speed is learned.
    pub(super) warm_up: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            process_interval: Duration::from_secs(5),
            patience: Duration::from_secs(2),
            calm: Duration::from_secs(5),
            needed: None,
            slow: 0.7,
            window: 32,
            warm_up: 16,
        }
    }
}
