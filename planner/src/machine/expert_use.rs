//! The observed reuse of experts: how soon the texts of a model use the same expert again. The counts of a cache of
//! experts flow in. Later plans use them to decide whether a cache pays.

use serde::{Deserialize, Serialize};

/// Earlier uses count as at most this many uses, so that a change in the kind of texts soon shows.
const MAX_REMEMBERED: u64 = 1_000_000;

/// The observed reuse of experts in texts of one model's file. The reuse depends on the model and its texts, not on the
/// machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpertUse {
    /// The locality of [`ExpertHits`](crate::plan::speed::ExpertHits), in hundredths.
    pub locality_hundredths: u64,
    /// The number of observed uses of experts.
    pub uses: u64,
}

impl ExpertUse {
    /// A locality observed over `uses` uses of experts.
    pub fn new(locality: f64, uses: u64) -> Self {
        Self { locality_hundredths: (locality.max(0.0) * 100.0).round() as u64, uses }
    }

    /// The locality.
    pub fn locality(&self) -> f64 {
        self.locality_hundredths as f64 / 100.0
    }

    /// The mean of both, weighted by their numbers of uses. Earlier uses count as at most a million uses.
    #[must_use]
    pub fn with_later(self, later: Self) -> Self {
        let before = self.uses.min(MAX_REMEMBERED);
        let all = before.saturating_add(later.uses);
        if all == 0 {
            return self;
        }
        let part = |of: Self, uses: u64| of.locality() * (uses as f64 / all as f64);
        Self::new(part(self, before) + part(later, later.uses), all)
    }
}

#[cfg(test)]
mod tests {
    use super::ExpertUse;

    #[test]
    fn later_uses_count_in_full_and_earlier_ones_as_a_million_at_most() {
        let known = ExpertUse::new(10.0, 3000).with_later(ExpertUse::new(20.0, 1000));
        assert_eq!((known.locality(), known.uses), (12.5, 4000));
        let long = ExpertUse::new(10.0, 50_000_000).with_later(ExpertUse::new(20.0, 1_000_000));
        assert_eq!((long.locality(), long.uses), (15.0, 2_000_000));
        assert_eq!(ExpertUse::default().with_later(ExpertUse::default()), ExpertUse::default());
    }
}
