//! Detects a model that generates more slowly than before.
//!
//! The speed of the first window of tokens after a warm-up counts as the model's own speed. If the model turns out to
//! be faster, its own speed is raised slowly. It is never lowered. Only generation time counts, so an idle model is
//! neither slow nor fast.

use std::collections::VecDeque;

use crate::load::Generated;
use crate::watch::depth::DepthCost;
use crate::watch::event::{Cause, Event};
use crate::watch::latch::{Condition, Now};

/// The weight with which a faster window raises the model's own speed.
const BELIEF: f64 = 1.0 / 16.0;

#[derive(Debug)]
pub(super) struct SpeedRule {
    cost: DepthCost,
    /// The totals when the watching began.
    first: Option<Generated>,
    /// Totals of the samples with new tokens. The first entry is the latest sample that is at least a window old.
    window: VecDeque<Generated>,
    own: Option<Speed>,
    pub(super) slow: Condition,
}

#[derive(Debug, Clone, Copy)]
struct Speed {
    /// Seconds per token, divided by the cost of a token at its depth.
    seconds: f64,
    /// Mean depth.
    depth: f64,
}

impl SpeedRule {
    pub(super) fn new(cost: DepthCost) -> Self {
        Self { cost, first: None, window: VecDeque::new(), own: None, slow: Condition::default() }
    }

    /// `cause` names the likely cause when a slowdown begins. The argument of `cause` is the depth as a cause, if there
    /// is evidence for it.
    pub(super) fn step(&mut self, now: Generated, moment: &mut Now<'_>, cause: impl FnOnce(Option<Cause>) -> Cause) {
        let settings = moment.settings;
        let first = *self.first.get_or_insert(now);
        if now.tokens.saturating_sub(first.tokens) < settings.warm_up {
            return;
        }
        if self.window.back().is_some_and(|last| last.tokens >= now.tokens) {
            return;
        }
        self.window.push_back(now);
        let is_full = |from: &Generated| now.tokens - from.tokens >= settings.window;
        while self.window.get(1).is_some_and(is_full) {
            self.window.pop_front();
        }
        let Some(from) = self.window.front().copied().filter(is_full) else { return };
        let Some(seen) = self.speed(from, now) else { return };
        let own = *self.own.get_or_insert(seen);
        let cost = self.cost.at(seen.depth);
        // The slowdown ends when a third of the loss is recovered.
        let limit = if self.slow.is_on() { settings.slow + (1.0 - settings.slow) / 3.0 } else { settings.slow };
        let slow = own.seconds < limit * seen.seconds;
        let (expected, observed) = (1.0 / (own.seconds * cost), 1.0 / (seen.seconds * cost));
        let deeper = !self.cost.is_known() && seen.depth > own.depth * 1.5 + 256.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let depth = deeper.then_some(Cause::DeeperContext { depth: seen.depth as u64, before: own.depth as u64 });
        // The duration of this condition is measured in generation time.
        moment.at = now.time;
        self.slow.step(
            Some(slow),
            settings.patience(),
            || Event::Slowdown { expected, observed, likely_cause: cause(depth) },
            Event::SpeedRecovered { expected, observed },
            moment,
        );
        if let Some(own) = self.own.as_mut().filter(|own| seen.seconds < own.seconds) {
            own.seconds += (seen.seconds - own.seconds) * BELIEF;
        }
    }

    /// The speed between two totals; `None` if no time has passed.
    #[allow(clippy::cast_precision_loss)] // tokens of a window
    fn speed(&self, from: Generated, to: Generated) -> Option<Speed> {
        let tokens = to.tokens.checked_sub(from.tokens).filter(|&n| n > 0)? as f64;
        let seconds = to.time.saturating_sub(from.time).as_secs_f64() / tokens;
        let depth = to.depths.saturating_sub(from.depths) as f64 / tokens;
        let seconds = seconds / self.cost.at(depth);
        (seconds > 0.0).then_some(Speed { seconds, depth })
    }
}
