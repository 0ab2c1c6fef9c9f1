//! The clock by which a readiness check spaces its runs: the computer's clock, or a clock of a test.

use std::thread;
use std::time::{Duration, Instant};

/// A clock that can wait.
pub trait Clock {
    /// The time since a fixed moment.
    fn now(&self) -> Duration;

    /// Waits for this time.
    fn wait(&self, time: Duration);
}

/// The computer's clock.
#[derive(Debug)]
pub struct SystemClock {
    begun: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { begun: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}
