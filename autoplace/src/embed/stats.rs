//! What embedding took.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counts and time of an embedder so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Statistics {
    /// Texts, or pairs of a query and a document.
    pub texts: usize,
    /// Their tokens, with those that the model adds.
    pub tokens: usize,
    /// Computations that they took.
    pub batches: usize,
    /// Time that those took, and the reading of their vectors.
    pub time: Duration,
}

impl Statistics {
    /// Tokens per second; 0.0 before the first batch.
    pub fn tokens_per_second(&self) -> f64 {
        if self.time.is_zero() {
            0.0
        } else {
            self.tokens as f64 / self.time.as_secs_f64()
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} texts of {} tokens in {} batches, {:.1} tok/s",
            self.texts,
            self.tokens,
            self.batches,
            self.tokens_per_second()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Statistics;
    use std::time::Duration;

    #[test]
    fn the_speed_is_of_the_time_that_was_computed() {
        let mut statistics = Statistics::default();
        assert_eq!(statistics.tokens_per_second(), 0.0);
        (statistics.texts, statistics.tokens, statistics.batches) = (3, 50, 2);
        statistics.time = Duration::from_millis(500);
        assert_eq!(
            statistics.to_string(),
            "3 texts of 50 tokens in 2 batches, 100.0 tok/s"
        );
    }
}
