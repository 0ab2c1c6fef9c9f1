//! What a GPU took beside the buffers that llama.cpp counts, as it was measured.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::date::Date;

/// What a GPU took beside the buffers that llama.cpp counts, in bytes, as [measured](crate::memory::headroom)
/// after real loads.
///
/// Both parts are the most that was seen. The work that made the memory grow is told with it: larger work may make
/// it grow further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LearnedHeadroom {
    /// What the driver took when the model was loaded, on a device that was open already: a CUDA context is not in it.
    pub driver: u64,
    /// What more was taken by the largest batch and a token after it.
    pub growth: u64,
    /// Bytes of the widest activations of that batch, in 32-bit floats.
    pub activations: u64,
    /// Bytes of the largest matrix of a block of that model, decoded to 16-bit floats.
    pub decoded_matrix: u64,
    /// The day of the last measurement.
    pub date: Date,
}

impl LearnedHeadroom {
    /// What was measured on this day, with no work until [`work`](Self::work) says with how much.
    #[must_use]
    pub const fn new(driver: u64, growth: u64, date: Date) -> Self {
        Self {
            driver,
            growth,
            activations: 0,
            decoded_matrix: 0,
            date,
        }
    }

    /// Sets the work that it was measured with: bytes of activations, and of the largest matrix decoded.
    #[must_use]
    pub const fn work(mut self, activations: u64, decoded_matrix: u64) -> Self {
        self.activations = activations;
        self.decoded_matrix = decoded_matrix;
        self
    }

    /// Whether the work was at least as large as this, so that the growth can be believed for it.
    #[must_use]
    pub const fn covers(&self, activations: u64, decoded_matrix: u64) -> bool {
        self.activations >= activations && self.decoded_matrix >= decoded_matrix
    }

    /// Driver and growth together, in bytes; saturates.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.driver.saturating_add(self.growth)
    }

    /// Two measurements as one: of both parts the larger, learned with the larger work. Where neither work is the
    /// larger it is the later one, `self`: what it was seen to take with that, it surely takes no more than.
    pub(super) fn and_earlier(self, earlier: Self) -> Self {
        let larger = if earlier.covers(self.activations, self.decoded_matrix) {
            earlier
        } else {
            self
        };
        Self {
            driver: self.driver.max(earlier.driver),
            growth: self.growth.max(earlier.growth),
            date: self.date,
            ..larger
        }
    }
}

impl fmt::Display for LearnedHeadroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (driver, growth) = (Bytes(self.driver), Bytes(self.growth));
        let date = self.date;
        write!(f, "driver {driver}, growth {growth}, measured on {date}")
    }
}

#[cfg(test)]
mod tests {
    use super::LearnedHeadroom;
    use crate::machine::{Date, mib};

    fn learned(driver: u64, growth: u64, work: (u64, u64)) -> LearnedHeadroom {
        let day = Date::new(2026, 11, 21).unwrap();
        LearnedHeadroom::new(mib(driver), mib(growth), day).work(work.0, work.1)
    }

    #[test]
    fn of_two_measurements_the_larger_parts_and_the_larger_work_stay() {
        let small = learned(50, 40, (10, 10));
        let large = learned(40, 60, (20, 20));
        let both = learned(50, 60, (20, 20));
        assert_eq!(small.and_earlier(large), both);
        assert_eq!(large.and_earlier(small), both);
        // Neither work is the larger: what was seen with the later one holds for it.
        let other = learned(0, 0, (30, 5));
        assert_eq!(other.and_earlier(small), learned(50, 40, (30, 5)));
    }

    #[test]
    fn work_is_covered_that_is_larger_in_nothing() {
        let learned = learned(0, 0, (10, 20));
        assert!(learned.covers(10, 20) && learned.covers(0, 0));
        assert!(!learned.covers(11, 20) && !learned.covers(10, 21));
    }

    #[test]
    fn it_prints_its_parts_and_its_day() {
        let text = learned(120, 88, (1, 1)).to_string();
        assert_eq!(
            text,
            "driver 120 MiB, growth 88 MiB, measured on 2026-11-21"
        );
    }
}
