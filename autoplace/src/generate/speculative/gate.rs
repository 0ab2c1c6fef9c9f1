//! Whether drafts pay: measured times of steps flow in; whether the next step drafts flows out.
//!
//! As long as a token takes less time with drafts they go on. When it takes more they pause, twice as long each time,
//! and are tried again, since a text changes: a quotation begins, a table ends.

use std::time::Duration;

/// Steps without a guess at the beginning: what a token takes is to be known first.
const PLAIN_STEPS: u32 = 3;

/// Steps with a guess after which they are judged.
const JUDGED: u32 = 8;

/// Steps with a guess after which one goes without, so that what a token takes in a text this long stays known: it
/// costs less than 1 %.
const REFRESH: u32 = 128;

/// Steps of the first pause, and of the longest.
const PAUSE: u32 = 32;
const LONGEST_PAUSE: u32 = 1024;

/// How much of what a token takes without guesses it may take with them, so that noise ends nothing.
const ALLOWED: f64 = 1.02;

/// The share of the newest step in the mean of those without a guess.
const NEWEST: f64 = 0.25;

#[derive(Debug, Clone)]
pub(super) struct Gate {
    /// Nanoseconds of a step without a guess.
    plain: f64,
    plain_steps: u32,
    /// Steps with a guess since the last one without.
    since_plain: u32,
    /// Steps that are left of a pause.
    paused: u32,
    /// Steps of the next pause.
    pause: u32,
    judged: Judged,
}

/// Steps with a guess that are not judged yet.
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

    /// Whether guessing costs more than it gives, as far as is known.
    pub(super) fn is_losing(&self) -> bool {
        self.paused > 0
    }

    /// Takes note of a step without a guess.
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

    /// Takes note of a step with a guess, which gave this many tokens.
    pub(super) fn guessed(&mut self, took: Duration, tokens: usize) {
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

    /// Goes so many steps: one without a guess takes `plain`, one with a guess `guessed` and gives `tokens`. Returns
    /// how many guessed.
    fn go(gate: &mut Gate, steps: u32, plain: u64, guessed: u64, tokens: usize) -> u32 {
        let mut guesses = 0;
        for _ in 0..steps {
            if gate.is_open() {
                gate.guessed(Duration::from_nanos(guessed), tokens);
                guesses += 1;
            } else {
                gate.plain(Duration::from_nanos(plain));
            }
        }
        guesses
    }

    #[test]
    fn what_pays_goes_on_and_what_costs_is_given_up_and_seldom_tried_again() {
        let guesses = go(&mut Gate::new(), 10_000, 100, 150, 3);
        assert!(guesses > 9900, "{guesses}");
        let mut gate = Gate::new();
        assert_eq!(go(&mut gate, PLAIN_STEPS + JUDGED, 100, 150, 1), JUDGED);
        assert!(gate.is_losing() && !gate.is_open());
        let guesses = go(&mut gate, 10_000, 100, 150, 1);
        assert!(guesses > 0 && guesses < 120, "{guesses}");
    }

    #[test]
    fn what_begins_to_pay_is_taken_up_again() {
        let mut gate = Gate::new();
        go(&mut gate, 100_000, 100, 150, 1);
        go(&mut gate, LONGEST_PAUSE + JUDGED, 100, 150, 3);
        let guesses = go(&mut gate, 1000, 100, 150, 3);
        assert!(guesses > 980, "{guesses}");
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
                gate.guessed(Duration::from_nanos(2000 + 30 * (step % 2)), 2);
            } else {
                gate.plain(Duration::from_nanos(1000));
            }
        }
    }

    proptest! {
        /// Whatever steps take, losing guesses cost little in the long run: at most a tenth above the time without any,
        /// for guesses that take up to three times as long and give nothing.
        #[test]
        fn losing_costs_little(plain in 100..10_000u64, more in 1.05f64..3.0) {
            let guessed = (plain as f64 * more) as u64;
            let steps = 20_000;
            let guesses = u64::from(go(&mut Gate::new(), steps, plain, guessed, 1));
            let took = guesses * guessed + (u64::from(steps) - guesses) * plain;
            prop_assert!(took as f64 <= plain as f64 * f64::from(steps) * 1.1);
        }
    }
}
