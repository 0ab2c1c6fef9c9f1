//! The rule that decides when a running text moves. It is the rule of the ski rental problem. A text moves when the
//! time that it has lost, compared with the other placement, equals the time of a move.
//!
//! Under this rule a growing text of unknown length loses at most twice the time of the best decision. If the future
//! were known, the best decision would be either to move at once, which costs the time of one move, or not to move,
//! which loses less than the time of one move. In the first case this rule costs the time of two moves: the lost time,
//! and its own move. For any series of short and deep texts, this rule costs at most four times as much as the best
//! series of moves. The cost counts both moves and lost time. The reason is that before each of its moves, this rule
//! has lost the time of one move. During any two successive moves of this rule, the best series also makes a move or
//! loses the time of one. (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, 1988.)
//!
//! A prompt is known before it is computed. If, in the current placement, the prompt and a reply of usual length would
//! lose more than the time of a move, the model moves before the prompt.

use super::{ByDepth, SecondsAtDepth, at};

/// The number of tokens of the reply that is expected after a prompt, as in
/// [`Workload::typical`](crate::plan::Workload::typical).
const EXPECTED_REPLY: u32 = 256;

/// One step: the tokens that a model computes at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DepthWork {
    /// The number of live tokens of all sequences before the step.
    pub depth: u32,
    /// The number of tokens of prompts in the step.
    pub prompt_tokens: u32,
    /// Whether the step generated tokens: one for each sequence.
    pub generates: bool,
}

impl DepthWork {
    /// One generated token after `depth` tokens.
    pub const fn token(depth: u32) -> Self {
        Self { depth, prompt_tokens: 0, generates: true }
    }

    /// `tokens` tokens of a prompt after `depth` tokens.
    pub const fn prompt(depth: u32, tokens: u32) -> Self {
        Self { depth, prompt_tokens: tokens, generates: false }
    }

    /// Predicted seconds of the step, here and there.
    fn seconds(self, points: &[SecondsAtDepth]) -> [f64; 2] {
        // The middle of the prompt comes after half of its tokens.
        let at = at(points, self.depth.saturating_add(self.prompt_tokens / 2));
        let tokens = f64::from(self.prompt_tokens);
        [0, 1].map(|n| at.prompt_token[n] * tokens + if self.generates { at.token[n] } else { 0.0 })
    }
}

/// Decides when a model moves to its other placement. It counts the time that was lost since the last move.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthRule {
    points: Vec<SecondsAtDepth>,
    moving_seconds: f64,
    lost: f64,
}

impl DepthRule {
    /// The rule for a model that was just loaded by the plan that contains `by_depth`.
    pub fn new(by_depth: &ByDepth) -> Self {
        Self { points: by_depth.seconds.clone(), moving_seconds: by_depth.moving_seconds, lost: 0.0 }
    }

    /// The same rule, with the measured time of a move.
    #[must_use]
    pub const fn moving_takes(mut self, seconds: f64) -> Self {
        self.moving_seconds = seconds;
        self
    }

    /// Seconds of a move.
    pub const fn moving_seconds(&self) -> f64 {
        self.moving_seconds
    }

    /// Seconds lost since the last move, compared with the other placement. Gained time reduces the lost time, but not
    /// below 0.
    pub const fn lost(&self) -> f64 {
        self.lost
    }

    /// Counts a step that took this many seconds. From the predictions, only the ratio of the two placements' times is
    /// used, because a machine that is slower than predicted is slower in both placements.
    pub fn took(&mut self, work: DepthWork, seconds: f64) {
        let [here, there] = work.seconds(&self.points);
        if here > 0.0 && seconds > 0.0 {
            self.lost = (self.lost + seconds * (1.0 - there / here)).max(0.0);
        }
    }

    /// Whether the lost time has reached the time of a move.
    pub fn is_due(&self) -> bool {
        self.lost > 0.0 && self.lost >= self.moving_seconds
    }

    /// Whether a prompt that is about to be computed, and a reply of usual length (at most `most_reply` tokens), would
    /// lose more than the time of a move.
    pub fn is_due_before(&self, prompt: DepthWork, most_reply: u32) -> bool {
        let reply = DepthWork::token(prompt.depth.saturating_add(prompt.prompt_tokens));
        let lost = |work: DepthWork| {
            let [here, there] = work.seconds(&self.points);
            here - there
        };
        lost(prompt) + lost(reply) * f64::from(most_reply.min(EXPECTED_REPLY)) > self.moving_seconds
    }

    /// Resets the lost time after a move that was not possible. The next attempt follows when the time of a move has
    /// been lost again.
    pub fn put_off(&mut self) {
        self.lost = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use super::{DepthRule, DepthWork};
    use crate::plan::SecondsAtDepth;

    /// The times of two placements: one for shallow depths, which slows down with each token, and one for deep
    /// contexts, which does not.
    fn points(deep: f64, slope: f64) -> Vec<SecondsAtDepth> {
        let at = |depth: u32| {
            let shallow = 1.0 + slope * f64::from(depth);
            SecondsAtDepth { depth, token: [shallow, deep], prompt_token: [shallow / 50.0, deep / 50.0] }
        };
        vec![at(0), at(10_000)]
    }

    fn turned(points: &[SecondsAtDepth]) -> Vec<SecondsAtDepth> {
        let turn = |point: &SecondsAtDepth| SecondsAtDepth {
            depth: point.depth,
            token: [point.token[1], point.token[0]],
            prompt_token: [point.prompt_token[1], point.prompt_token[0]],
        };
        points.iter().map(turn).collect()
    }

    fn rule(points: &[SecondsAtDepth], moving_seconds: f64) -> DepthRule {
        DepthRule { points: points.to_vec(), moving_seconds, lost: 0.0 }
    }

    /// The total time of a trace under the rule, beginning in the shallow placement, and the number of moves.
    fn by_rule(points: &[SecondsAtDepth], moving: f64, trace: &[DepthWork]) -> (f64, usize) {
        let sides = [points.to_vec(), turned(points)];
        let (mut side, mut rule_here) = (0, rule(points, moving));
        let (mut seconds, mut moves) = (0.0, 0);
        for &work in trace {
            let took = work.seconds(&sides[side])[0];
            seconds += took;
            rule_here.took(work, took);
            if rule_here.is_due() {
                (seconds, moves, side) = (seconds + moving, moves + 1, 1 - side);
                rule_here = rule(&sides[side], moving);
            }
        }
        (seconds, moves)
    }

    /// The minimum time of a trace, with the best moves; and the time if every step ran in the placement that is faster
    /// for it.
    fn clairvoyant(points: &[SecondsAtDepth], moving: f64, trace: &[DepthWork]) -> (f64, f64) {
        let mut best = [0.0, moving];
        let mut least = 0.0;
        for work in trace {
            let seconds = work.seconds(points);
            least += seconds[0].min(seconds[1]);
            let after = [best[0] + seconds[0], best[1] + seconds[1]];
            best = [after[0].min(after[1] + moving), after[1].min(after[0] + moving)];
        }
        (best[0].min(best[1]), least)
    }

    #[test]
    fn a_text_moves_at_the_token_at_which_the_lost_time_equals_a_move() {
        // A token takes 2 s here and 1 s there.
        let flat = vec![SecondsAtDepth { depth: 0, token: [2.0, 1.0], prompt_token: [0.5, 0.25] }];
        let mut rule = rule(&flat, 5.0);
        for token in 1..=5 {
            assert!(!rule.is_due(), "{token}");
            rule.took(DepthWork::token(token), 2.0);
        }
        assert!(rule.is_due() && rule.lost() == 5.0);
        rule.put_off();
        assert!(!rule.is_due() && rule.lost() == 0.0);
        // The step took twice the predicted time, so the other placement would also take twice its predicted time.
        rule.took(DepthWork::token(1), 4.0);
        assert_eq!(rule.lost(), 2.0);
        // A prompt of 8 tokens.
        rule.took(DepthWork::prompt(1, 8), 4.0);
        assert_eq!(rule.lost(), 4.0);
    }

    #[test]
    fn gained_time_offsets_lost_time_and_is_not_saved_beyond_that() {
        let points = points(2.0, 0.001);
        let mut rule = rule(&points, 10.0);
        // The placements cross after 1000 tokens.
        for _ in 0..100 {
            rule.took(DepthWork::token(0), 1.0);
        }
        assert_eq!(rule.lost(), 0.0);
        rule.took(DepthWork::token(2000), 3.0);
        assert!((rule.lost() - 1.0).abs() < 1e-9);
        rule.took(DepthWork::token(0), 1.0);
        assert_eq!(rule.lost(), 0.0);
    }

    #[test]
    fn a_long_prompt_begins_in_the_deep_placement_at_once_and_a_short_one_does_not() {
        let points = points(2.0, 0.001);
        let rule = rule(&points, 100.0);
        assert!(!rule.is_due_before(DepthWork::prompt(0, 500), u32::MAX));
        assert!(!rule.is_due_before(DepthWork::prompt(0, 1000), u32::MAX));
        assert!(rule.is_due_before(DepthWork::prompt(0, 8000), u32::MAX));
        assert!(rule.is_due_before(DepthWork::prompt(7000, 1000), u32::MAX));
        // A reply of one token does not justify a move.
        assert!(!rule.is_due_before(DepthWork::prompt(0, 4000), 1));
    }

    proptest! {
        /// A growing text, from a prompt to any depth, loses at most twice the time of the best decision.
        #[test]
        fn a_growing_text_loses_at_most_twice_the_time_of_the_best_decision(
            deep in 1.1_f64..20.0,
            slope in 0.0001_f64..0.01,
            moving in 1.0_f64..3000.0,
            end in 1_u32..9000,
        ) {
            let points = points(deep, slope);
            let trace: Vec<DepthWork> = (0..end).map(DepthWork::token).collect();
            let ((seconds, moves), (best, least)) = (by_rule(&points, moving, &trace), clairvoyant(&points, moving, &trace));
            // The last token before a move may raise the lost time above the time of a move.
            let last = trace.last().unwrap().seconds(&points)[0];
            prop_assert!(moves <= 1);
            prop_assert!(seconds - least <= 2.0 * (best - least) + last + 1e-6, "{seconds} {best} {least}");
            prop_assert!(seconds <= 2.0 * best + last);
        }

        /// The bound for texts of any depth in any order.
        #[test]
        fn no_order_of_texts_costs_more_than_four_times_the_best_moves(
            deep in 1.1_f64..5.0,
            slope in 0.0001_f64..0.002,
            moving in 1.0_f64..500.0,
            texts in prop::collection::vec((0_u32..8000, 1_u32..300), 1..40),
        ) {
            let points = points(deep, slope);
            let trace: Vec<DepthWork> = texts
                .iter()
                .flat_map(|&(prompt, reply)| {
                    let reply = (prompt..prompt + reply).map(DepthWork::token);
                    [DepthWork::prompt(0, prompt)].into_iter().chain(reply)
                })
                .collect();
            let ((seconds, _), (best, least)) = (by_rule(&points, moving, &trace), clairvoyant(&points, moving, &trace));
            // Before each move, the last step may raise the lost time above the time of a move.
            let most = trace.iter().map(|work| work.seconds(&points)).map(|[a, b]| (a - b).abs());
            let most = most.fold(0.0, f64::max);
            let moves = (best - least) / moving + 2.0;
            let bound = 4.0 * (best - least) + 2.0 * moving + 2.0 * most * moves;
            prop_assert!(seconds - least <= bound + 1e-6, "{seconds} {best} {least} {bound}");
        }
    }
}
