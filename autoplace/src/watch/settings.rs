//! How often a sentinel looks at a model, and which bounds it compares with.

use std::time::Duration;

/// Settings of a sentinel: see [`SentinelBuilder`](super::SentinelBuilder).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    /// Bytes that must stay free on each GPU; `None` means the bytes that follow from the plan.
    pub(super) needed: Option<u64>,
    /// `None` means a default number of intervals: 2 for `patience`, 5 for `calm` and for `process_interval`.
    pub(super) patience: Option<Duration>,
    pub(super) calm: Option<Duration>,
    pub(super) process_interval: Option<Duration>,
    /// A model is slow if it generates at less than this fraction of the speed that it had after the warm-up.
    pub(super) slow: f64,
    /// Number of tokens in a window, in which the model's speed is measured.
    pub(super) window: u64,
    /// Number of tokens before the first window. The model's own speed is learned from the first window, so these
    /// tokens do not count.
    pub(super) warm_up: u64,
}

impl Settings {
    /// How long a condition must be true before its beginning is reported, unless the beginning is reported at once.
    pub(super) fn patience(&self) -> Duration {
        self.patience.unwrap_or(self.interval.saturating_mul(2))
    }

    /// How long a condition must be false before its end is reported.
    pub(super) fn calm(&self) -> Duration {
        self.calm.unwrap_or(self.interval.saturating_mul(5))
    }

    /// Interval between two checks of the programs on the GPUs.
    pub(super) fn process_interval(&self) -> Duration {
        self.process_interval.unwrap_or(self.interval.saturating_mul(5))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            needed: None,
            patience: None,
            calm: None,
            process_interval: None,
            slow: 0.7,
            window: 32,
            warm_up: 16,
        }
    }
}
