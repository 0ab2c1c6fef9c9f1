//! Detects a cache of experts that makes the model slower than it would be without.

use std::time::Duration;

use crate::load::ExpertUses;
use crate::watch::event::Event;
use crate::watch::latch::{Condition, Now};

/// Number of uses of experts that pass before the first window. They are skipped because an empty cache misses every
/// expert once. This is 128 tokens of a model with 48 layers that uses 8 experts per layer and token.
const WARM_UP: u64 = 128 * 48 * 8;
/// Number of uses in a window. This is 256 tokens of such a model.
const WINDOW: u64 = 256 * 48 * 8;
/// Difference between the share of hits at which the condition ends and the share at which it begins.
const MARGIN: f64 = 0.02;

#[derive(Debug, Default)]
pub(super) struct ExpertRule {
    break_even: Option<f64>,
    /// The total uses when the watching began, and when the window began.
    first: Option<ExpertUses>,
    window: Option<ExpertUses>,
    pub(super) misses: Condition,
}

impl ExpertRule {
    /// `break_even` is the share of hits below which the model would be faster without the cache.
    pub(super) fn new(break_even: Option<f64>) -> Self {
        Self { break_even, ..Self::default() }
    }

    pub(super) fn step(&mut self, uses: ExpertUses, now: &mut Now<'_>) {
        let Some(break_even) = self.break_even else { return };
        let first = *self.first.get_or_insert(uses);
        if uses.since(&first).total() < WARM_UP {
            return;
        }
        let from = *self.window.get_or_insert(uses);
        let seen = uses.since(&from);
        let Some(hits) = seen.hit_rate().filter(|_| seen.total() >= WINDOW) else { return };
        self.window = Some(uses);
        let limit = if self.misses.is_on() { break_even + MARGIN } else { break_even };
        self.misses.step(
            Some(hits < limit),
            // One window is long enough, so there is no patience.
            Duration::ZERO,
            || Event::ExpertMisses { hits, break_even },
            Event::ExpertHits { hits },
            now,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Event, ExpertRule, ExpertUses, Now, WARM_UP, WINDOW};
    use crate::watch::settings::Settings;

    /// The events that result from windows with these percentages of hits. The windows are a minute apart.
    fn events(break_even: Option<f64>, percent: &[u64]) -> Vec<Event> {
        let (mut rule, settings, mut events) = (ExpertRule::new(break_even), Settings::default(), Vec::new());
        let mut uses = ExpertUses::default();
        let mut at = Duration::ZERO;
        let mut step = |uses: ExpertUses| {
            at += Duration::from_secs(60);
            rule.step(uses, &mut Now { at, settings: &settings, events: &mut events });
        };
        step(uses);
        // At first, the cache fills.
        uses.misses += WARM_UP;
        step(uses);
        for percent in percent {
            let hits = WINDOW * percent / 100;
            uses = ExpertUses { hits: uses.hits + hits, misses: uses.misses + WINDOW - hits };
            step(uses);
        }
        events
    }

    #[test]
    fn a_cache_below_its_break_even_is_reported_once_and_its_recovery_too() {
        let begins = Event::ExpertMisses { hits: 0.5, break_even: 0.6 };
        assert_eq!(events(Some(0.6), &[90, 70]), []);
        assert_eq!(events(Some(0.6), &[90, 50, 40]), std::slice::from_ref(&begins));
        // Just above the limit, the condition does not end.
        assert_eq!(events(Some(0.6), &[50, 61, 61]), std::slice::from_ref(&begins));
        let events_of_both = events(Some(0.6), &[50, 80, 80]);
        assert_eq!(events_of_both.len(), 2, "{events_of_both:?}");
        assert!(events_of_both[0] == begins && events_of_both[1].is_end());
        assert_eq!(events(None, &[0, 0, 0]), []);
    }
}
