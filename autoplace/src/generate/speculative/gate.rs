//! Whether drafts pay: measured times of steps flow in; whether the next step drafts flows out.
//!
//! As long as a token takes less time with drafts, they go on. When it takes more, they pause, twice as long each time,
//! and are tried again, since a text changes: a quotation begins, a table ends.

use std::time::Duration;

/// Steps without a draft at the beginning: they measure what a token takes.
const PLAIN_STEPS: u32 = 3;

/// Steps with a draft after which they are judged.
const JUDGED: u32 = 8;

/// Steps with a draft after which one goes without, so that what a token takes in a text this long stays known: it
/// costs less than 1 %.
const REFRESH: u32 = 128;

/// Steps of the first pause, and of the longest.
const PAUSE: u32 = 32;
const LONGEST_PAUSE: u32 = 1024;

/// How many times as long a token may take with drafts as without, so that noise ends nothing.
const ALLOWED: f64 = 1.02;

/// The share of the newest step in the mean of those without a draft.
const NEWEST: f64 = 0.25;

#[derive(Debug, Clone)]
pub(super) struct Gate {
    /// Nanoseconds of a step without a draft.
    plain: f64,
    plain_steps: u32,
    /// Steps with a draft since the last one without.
    since_plain: u32,
    /// Steps that are left of a pause.
    paused: u32,
    /// Steps of the next pause.
    pause: u32,
    judged: Judged,
}

/// Steps with a draft that are not judged yet.
#[derive(Debug, Clone, Copy, Default)]
struct Judged {
    steps: u32,
    nanoseconds: f64,
    tokens: usize,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self { plain: 0.0, plain_steps: 0, since_plain: 0, paused: 0, pause: PAUSE, judged: Judged::default() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.plain_steps >= PLAIN_STEPS && self.paused == 0 && self.since_plain < REFRESH
    }

    /// Whether drafts cost more than they give, as far as is known.
    pub(super) fn is_losing(&self) -> bool {
        self.paused > 0
    }

    /// Notes a step without a draft.
    pub(super) fn plain(&mut self, took: Duration) {
        let took = took.as_nanos() as f64;
        self.plain = match self.plain_steps {
            0 => took,
            _ => self.plain + NEWEST * (took - self.plain),
        };
        self.plain_steps = self.plain_steps.saturating_add(1);
        self.since_plain = 0;
        if self.paused > 0 {
            self.paused -= 1;
        }
    }

    /// Notes a step with a draft, which gave this many tokens.
    pub(super) fn drafted(&mut self, took: Duration, tokens: usize) {
        self.since_plain += 1;
        let judged = &mut self.judged;
        judged.steps += 1;
        judged.nanoseconds += took.as_nanos() as f64;
        judged.tokens += tokens;
        if judged.steps < JUDGED {
            return;
        }
        let judged = std::mem::take(judged);
        let each = judged.nanoseconds / judged.tokens.max(1) as f64;
        if each > self.plain * ALLOWED {
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        } else {
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goes so many steps: one without a draft takes `plain`, one with a draft `drafted` and gives `tokens`. Returns
    /// how many drafted.
    fn go(gate: &mut Gate, steps: u32, plain: u64, drafted: u64, tokens: usize) -> u32 {
        let mut drafts = 0;
        for _ in 0..steps {
            if gate.is_open() {
                gate.drafted(Duration::from_nanos(drafted), tokens);
                drafts += 1;
            } else {
                gate.plain(Duration::from_nanos(plain));
            }
        }
        drafts
    }

    #[test]
    fn what_pays_goes_on_and_what_costs_is_given_up_and_seldom_tried_again() {
        let drafts = go(&mut Gate::new(), 10_000, 100, 150, 3);
        assert!(drafts > 9900, "{drafts}");
        let mut gate = Gate::new();
        assert_eq!(go(&mut gate, PLAIN_STEPS + JUDGED, 100, 150, 1), JUDGED);
        assert!(gate.is_losing() && !gate.is_open());
        let drafts = go(&mut gate, 10_000, 100, 150, 1);
        assert!(drafts > 0 && drafts < 120, "{drafts}");
    }

    #[test]
    fn what_begins_to_pay_is_taken_up_again() {
        let mut gate = Gate::new();
        go(&mut gate, 100_000, 100, 150, 1);
        go(&mut gate, LONGEST_PAUSE + JUDGED, 100, 150, 3);
        let drafts = go(&mut gate, 1000, 100, 150, 3);
        assert!(drafts > 980, "{drafts}");
        // And given up when it does not pay any more.
        go(&mut gate, 3 * JUDGED, 100, 150, 1);
        assert!(gate.is_losing());
    }

    #[test]
    fn noise_about_the_break_even_does_not_make_it_flicker() {
        let mut gate = Gate::new();
        go(&mut gate, PLAIN_STEPS, 1000, 0, 0);
        for step in 0..1000_u64 {
            assert!(!gate.is_losing());
            if gate.is_open() {
                gate.drafted(Duration::from_nanos(2000 + 30 * (step % 2)), 2);
            } else {
                gate.plain(Duration::from_nanos(1000));
            }
        }
    }

    proptest! {
        /// Whatever steps take, losing drafts cost little in the long run: at most a tenth above the time without any,
        /// for drafts that take up to three times as long and give nothing.
        #[test]
        fn losing_costs_little(plain in 100..10_000u64, more in 1.05f64..3.0) {
            let drafted = (plain as f64 * more) as u64;
            let steps = 20_000;
            let drafts = u64::from(go(&mut Gate::new(), steps, plain, drafted, 1));
            let took = drafts * drafted + (u64::from(steps) - drafts) * plain;
            prop_assert!(took as f64 <= plain as f64 * f64::from(steps) * 1.1);
        }
    }
}
