//! Decides from measured step times whether the next step drafts.
//!
//! Drafting continues as long as it makes tokens cheaper. When it makes them more expensive, it pauses, and each pause
//! is twice as long as the last. Drafting is tried again after a pause, because a text changes: for example, a
//! quotation begins or a table ends.

use std::time::Duration;

/// The number of steps without a draft at the beginning. They measure the time of a token without drafts.
const PLAIN_STEPS: u32 = 3;

/// The number of steps with a draft after which drafting is judged.
const JUDGED: u32 = 8;

/// After this number of steps with a draft, there is one step without a draft, which measures the time of a token at
/// the present depth. This step costs less than 1 %.
const REFRESH: u32 = 128;

/// Number of steps in the first pause.
const PAUSE: u32 = 32;

/// Number of steps in the longest pause.
const MAX_PAUSE: u32 = 1024;

/// Drafting is not paused as long as a token with drafts takes at most this multiple of the time without drafts. So
/// noise does not pause it.
const ALLOWED: f64 = 1.02;

/// Weight of the newest step in the mean of the steps without a draft.
const NEWEST: f64 = 0.25;

#[derive(Debug, Clone)]
pub(super) struct Gate {
    /// Nanoseconds of a step without a draft.
    plain: f64,
    plain_steps: u32,
    /// The number of steps with a draft since the last step without a draft.
    since_plain: u32,
    /// Remaining steps of the present pause.
    paused: u32,
    /// The number of steps of the next pause.
    pause: u32,
    judged: Judged,
}

/// Steps with a draft since the last judgement.
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

    /// Whether drafting is paused because it cost more than it saved.
    pub(super) fn is_losing(&self) -> bool {
        self.paused > 0
    }

    /// Records a step without a draft.
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

    /// Records a step with a draft. The step added `tokens` tokens to the text.
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
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        } else {
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs `steps` steps. A step without a draft takes `plain`; a step with a draft takes `drafted` and adds `tokens`
    /// tokens. Returns the number of steps with a draft.
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
    fn drafting_continues_while_it_pays_and_is_rarely_tried_while_it_costs() {
        let drafts = go(&mut Gate::new(), 10_000, 100, 150, 3);
        assert!(drafts > 9900, "{drafts}");
        let mut gate = Gate::new();
        assert_eq!(go(&mut gate, PLAIN_STEPS + JUDGED, 100, 150, 1), JUDGED);
        assert!(gate.is_losing() && !gate.is_open());
        let drafts = go(&mut gate, 10_000, 100, 150, 1);
        assert!(drafts > 0 && drafts < 120, "{drafts}");
    }

    #[test]
    fn drafting_resumes_when_it_begins_to_pay() {
        let mut gate = Gate::new();
        go(&mut gate, 100_000, 100, 150, 1);
        go(&mut gate, MAX_PAUSE + JUDGED, 100, 150, 3);
        let drafts = go(&mut gate, 1000, 100, 150, 3);
        assert!(drafts > 980, "{drafts}");
        // Drafting pauses when it no longer pays.
        go(&mut gate, 3 * JUDGED, 100, 150, 1);
        assert!(gate.is_losing());
    }

    #[test]
    fn noise_near_the_break_even_does_not_make_drafting_flicker() {
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
        /// If drafts are useless and a step with a draft takes up to three times as long, they cost at most a tenth of
        /// the time in the long run.
        #[test]
        fn useless_drafts_cost_little(plain in 100..10_000u64, more in 1.05f64..3.0) {
            let drafted = (plain as f64 * more) as u64;
            let steps = 20_000;
            let drafts = u64::from(go(&mut Gate::new(), steps, plain, drafted, 1));
            let took = drafts * drafted + (u64::from(steps) - drafts) * plain;
            prop_assert!(took as f64 <= plain as f64 * f64::from(steps) * 1.1);
        }
    }
}
