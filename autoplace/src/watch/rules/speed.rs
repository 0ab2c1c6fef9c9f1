//! Whether a model generates slower than it did.
//!
//! Its own speed is what it showed over one window of tokens after a warm-up. It rises slowly where the model turns out
//! to be faster, and never falls. Time here is time spent generating: a model that rests is neither slow nor fast.

use std::collections::VecDeque;

use super::{SLOW, WARM_UP, WINDOW};
use crate::load::Generated;
use crate::watch::depth::DepthCost;
use crate::watch::event::{Cause, Event};
use crate::watch::latch::{Condition, Now};

/// The part of a faster window that is believed.
const BELIEF: f64 = 1.0 / 16.0;

#[derive(Debug)]
pub(super) struct SpeedRule {
    cost: DepthCost,
    /// The totals when the watching began.
    first: Option<Generated>,
    /// Totals at samples with something new: the last one that is a window before now, and those since.
    window: VecDeque<Generated>,
    own: Option<Speed>,
    pub(super) slow: Condition,
}

#[derive(Debug, Clone, Copy)]
struct Speed {
    /// Seconds per token, divided by what a token of that depth costs.
    seconds: f64,
    /// Tokens before each, on average.
    depth: f64,
}

impl SpeedRule {
    pub(super) fn new(cost: DepthCost) -> Self {
        Self { cost, first: None, window: VecDeque::new(), own: None, slow: Condition::default() }
    }

    /// `cause` is asked for the likely cause when a slowdown begins, and given what speaks for depth as one.
    pub(super) fn step(&mut self, now: Generated, moment: &mut Now<'_>, cause: impl FnOnce(Option<Cause>) -> Cause) {
        let first = *self.first.get_or_insert(now);
        if now.tokens.saturating_sub(first.tokens) < WARM_UP {
            return;
        }
        if self.window.back().is_some_and(|last| last.tokens >= now.tokens) {
            return;
        }
        self.window.push_back(now);
        let is_full = |from: &Generated| now.tokens - from.tokens >= WINDOW;
        while self.window.get(1).is_some_and(is_full) {
            self.window.pop_front();
        }
        let Some(from) = self.window.front().copied().filter(is_full) else { return };
        let Some(seen) = self.speed(from, now) else { return };
        let own = *self.own.get_or_insert(seen);
        let cost = self.cost.at(seen.depth);
        // A third of the way back is what it takes to end.
        let limit = if self.slow.is_on() { SLOW + (1.0 - SLOW) / 3.0 } else { SLOW };
        let slow = own.seconds < limit * seen.seconds;
        let (expected, observed) = (1.0 / (own.seconds * cost), 1.0 / (seen.seconds * cost));
        let deeper = !self.cost.is_known() && seen.depth > own.depth * 1.5 + 256.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let depth = deeper.then_some(Cause::DeeperContext { depth: seen.depth as u64, before: own.depth as u64 });
        // Of time spent generating, unlike all else.
        moment.at = now.time;
        self.slow.step(
            Some(slow),
            moment.settings.patience(),
            || Event::Slowdown { expected, observed, likely_cause: cause(depth) },
            Event::SpeedRecovered { expected, observed },
            moment,
        );
        if let Some(own) = self.own.as_mut().filter(|own| seen.seconds < own.seconds) {
            own.seconds += (seen.seconds - own.seconds) * BELIEF;
        }
    }

    /// The speed from one total to a later one; `None` where it took no time.
    #[allow(clippy::cast_precision_loss)] // tokens of a window
    fn speed(&self, from: Generated, to: Generated) -> Option<Speed> {
        let tokens = to.tokens.checked_sub(from.tokens).filter(|&n| n > 0)? as f64;
        let seconds = to.time.saturating_sub(from.time).as_secs_f64() / tokens;
        let depth = to.depths.saturating_sub(from.depths) as f64 / tokens;
        let seconds = seconds / self.cost.at(depth);
        (seconds > 0.0).then_some(Speed { seconds, depth })
    }
}
