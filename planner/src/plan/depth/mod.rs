//! Placements by depth: a plan may contain a second placement, which is faster on the other side of a certain depth.
//! In: a chosen placement. Out: a [`ByDepth`]. A [`DepthRule`] decides when a running text moves.
//!
//! A placement with whole layers on the host slows down with every token in the context, because the host attends to
//! the cache of its layers. A placement with parts of blocks on the host keeps all caches on GPUs: it is slower at
//! first, but keeps its speed. No fixed placement is best both for a short chat and for a long document.

mod find;
mod moving;
mod rule;

use serde::{Deserialize, Serialize};

use super::Plan;
use super::reasons::counted;
use crate::machine::RateConditions;

pub use rule::{DepthRule, DepthWork};

/// The other placement of a plan, which generates faster on the other side of a depth. Both have the same context, so a
/// running text can move between them unchanged.
///
/// "Here" is the placement of the plan that contains this value, and "there" is the other one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ByDepth {
    /// Live tokens at which both placements generate equally fast.
    pub crossing: u32,
    /// Whether the other placement is faster above the crossing; otherwise it is faster below the crossing.
    pub is_deeper: bool,
    /// The plan of the other placement. Its own `by_depth` is `None`.
    pub plan: Plan,
    /// Predicted times of both placements, at ascending depths from 0 to the whole context.
    pub seconds: Vec<SecondsAtDepth>,
    /// Seconds of a move: the file is read again from the page cache, and the state is copied.
    pub moving_seconds: f64,
    /// The conditions under which a load or a move of this file was measured on this machine; `None` if
    /// `moving_seconds` comes from stated figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_measured: Option<RateConditions>,
    /// Predicted seconds of the plan's workload if each token is generated in the placement that is faster at the
    /// token's depth.
    pub workload_seconds: f64,
}

/// The predicted times of two placements at one depth, in seconds: first the time here, then the time there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SecondsAtDepth {
    /// Live tokens before the token.
    pub depth: u32,
    /// The time of a generated token.
    pub token: [f64; 2],
    /// The time of a prompt token in a full ubatch.
    pub prompt_token: [f64; 2],
}

impl ByDepth {
    /// The times at a depth, which are linear between the points and constant beyond the last point.
    fn at(&self, depth: u32) -> SecondsAtDepth {
        at(&self.seconds, depth)
    }

    /// The same pair, seen from the other placement. `here` is the plan that contains this value.
    fn turned(&self, here: Plan) -> Self {
        let turned = |&SecondsAtDepth { depth, token: [a, b], prompt_token: [c, d] }: &SecondsAtDepth| SecondsAtDepth {
            depth,
            token: [b, a],
            prompt_token: [d, c],
        };
        Self {
            crossing: self.crossing,
            is_deeper: !self.is_deeper,
            plan: here,
            seconds: self.seconds.iter().map(turned).collect(),
            moving_seconds: self.moving_seconds,
            moving_measured: self.moving_measured.clone(),
            workload_seconds: self.workload_seconds,
        }
    }

    /// Checks a pair, for example from a file that was edited. The error states the problem. `n_ctx` is the number of
    /// tokens of the context.
    pub(super) fn problem(&self, n_ctx: u32) -> Result<(), String> {
        let (crossing, seconds) = (self.crossing, &self.seconds);
        ensure!(crossing <= n_ctx, "crossing is {crossing}, and the context has {n_ctx} tokens");
        ensure!((1..=MAX_POINTS).contains(&seconds.len()), "seconds has {} points", seconds.len());
        ensure!(seconds.is_sorted_by(|a, b| a.depth < b.depth), "seconds has depths that do not ascend");
        let all = seconds.iter().flat_map(|at| [at.token, at.prompt_token]).flatten();
        for value in all.chain([self.moving_seconds, self.workload_seconds]) {
            ensure!((0.0..=1e9).contains(&value), "seconds: {value} is not a time");
        }
        ensure!(self.plan.by_depth.is_none(), "plan.by_depth: a plan has two placements at most");
        Ok(())
    }
}

/// Maximum number of points of a pair that is read from a file.
const MAX_POINTS: usize = 1024;

/// The times at a depth, which are linear between two points.
fn at(points: &[SecondsAtDepth], depth: u32) -> SecondsAtDepth {
    let next = points.partition_point(|point| point.depth < depth);
    let before = next.saturating_sub(1).min(points.len().saturating_sub(1));
    let (Some(a), Some(b)) = (points.get(before), points.get(next.min(points.len().saturating_sub(1)))) else {
        return SecondsAtDepth { depth, token: [0.0; 2], prompt_token: [0.0; 2] };
    };
    let span = f64::from(b.depth.saturating_sub(a.depth));
    let share = if span > 0.0 { (f64::from(depth.clamp(a.depth, b.depth)) - f64::from(a.depth)) / span } else { 0.0 };
    let between = |a: [f64; 2], b: [f64; 2]| [0, 1].map(|n| a[n] + (b[n] - a[n]) * share);
    SecondsAtDepth { depth, token: between(a.token, b.token), prompt_token: between(a.prompt_token, b.prompt_token) }
}

impl Plan {
    /// The other placement as a plan. In that plan, [the other placement](Plan::by_depth) is this one. `None` for a
    /// plan with one placement.
    pub fn other(&self) -> Option<Self> {
        let by_depth = self.by_depth.as_deref()?;
        let mut other = by_depth.plan.clone();
        other.by_depth = Some(Box::new(by_depth.turned(Self { by_depth: None, ..self.clone() })));
        Some(other)
    }

    /// The placement that generates faster with `tokens` live tokens: this one or the [other](Self::other).
    #[must_use]
    pub fn for_depth(self, tokens: u32) -> Self {
        let is_other = |by_depth: &ByDepth| (tokens >= by_depth.crossing) == by_depth.is_deeper;
        match self.by_depth.as_deref().is_some_and(is_other) {
            true => self.other().unwrap_or(self),
            false => self,
        }
    }

    /// The predicted seconds of the workload for which the plan is made, if each token is generated in the placement
    /// that is faster at the token's depth. `None` for a context that embeds texts.
    pub fn workload_seconds(&self) -> Option<f64> {
        match &self.by_depth {
            Some(by_depth) => Some(by_depth.workload_seconds),
            None => self.speed.as_ref().map(super::Speed::seconds),
        }
    }

    /// Both placements in one line: their layers, the depth of the crossing, their speeds, and the time of a move.
    /// `None` for a plan with one placement.
    pub fn by_depth_in_words(&self) -> Option<String> {
        let by_depth = self.by_depth.as_deref()?;
        let (here, there) = (self.placement_in_words(), by_depth.plan.placement_in_words());
        let n_ctx = by_depth.seconds.last().map_or(by_depth.crossing, |last| last.depth);
        let crossing = by_depth.crossing;
        let [below, above] = [by_depth.at(crossing / 2), by_depth.at(crossing + n_ctx.saturating_sub(crossing) / 2)];
        let (shallow, deep) = if by_depth.is_deeper { ((here, 0), (there, 1)) } else { ((there, 1), (here, 0)) };
        let speed = |at: SecondsAtDepth, which: usize| super::report::rounded(1.0 / at.token[which]);
        let measured = by_depth.moving_measured.as_ref().map(|conditions| format!(" (as measured {conditions})"));
        Some(format!(
            "{} until some {crossing} tokens, {} tok/s; then {}, {} tok/s to the end; moving takes about {:.0} s, once{}",
            shallow.0,
            speed(below, shallow.1),
            deep.0,
            speed(above, deep.1),
            by_depth.moving_seconds.max(1.0),
            measured.unwrap_or_default(),
        ))
    }

    /// Where the layers are, in a few words: `whole layers, 59 of 81 on GPUs`.
    pub fn placement_in_words(&self) -> String {
        let (n, layers) = (self.n_gpu_layers, self.layers());
        if n == 0 {
            return "all layers on the host".to_owned();
        }
        if self.split_blocks == 0 {
            return match n == layers {
                true => format!("all {layers} layers on GPUs"),
                false => format!("whole layers, {n} of {layers} on GPUs"),
            };
        }
        let is_experts = self.overrides.iter().any(|rule| rule.pattern.contains("_exps"));
        let parts = if is_experts { "experts" } else { "feed-forward matrices" };
        let parts = format!("{parts} of {} on the host", counted(self.split_blocks, "block"));
        match n == layers {
            true => parts,
            false => format!("{n} of {layers} layers on GPUs, {parts}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use test_support::plans::{host_plan, plan};

    use super::{ByDepth, SecondsAtDepth};
    use crate::plan::Plan;

    /// A plan for more than 1000 tokens, with another placement for fewer tokens.
    fn pair() -> Plan {
        let mut deep: Plan = plan();
        let at = |depth, token| SecondsAtDepth { depth, token, prompt_token: [0.01, 0.02] };
        deep.by_depth = Some(Box::new(ByDepth {
            crossing: 1000,
            is_deeper: false,
            plan: host_plan(),
            seconds: vec![at(0, [0.2, 0.1]), at(2000, [0.2, 0.3])],
            moving_seconds: 3.0,
            moving_measured: None,
            workload_seconds: 60.0,
        }));
        deep
    }

    #[test]
    fn each_placement_of_a_pair_is_a_plan_that_contains_the_other_one() {
        let deep = pair();
        for (tokens, n_gpu_layers) in [(0, 0), (999, 0), (1000, 20), (9999, 20)] {
            let plan = deep.clone().for_depth(tokens);
            assert_eq!(plan.n_gpu_layers, n_gpu_layers);
            // The choice is the same for both plans of the pair, and the other placement of the other placement is the
            // plan itself.
            assert_eq!(plan.other().unwrap().for_depth(tokens), plan);
            assert_eq!(plan.clone().for_depth(1000), deep);
            assert_eq!(plan.workload_seconds(), Some(60.0));
        }
        let text = serde_json::to_string(&deep).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), deep);
    }

    #[test]
    fn times_are_linear_between_two_depths_and_constant_beyond() {
        let deep = pair();
        let by_depth = deep.by_depth.as_deref().unwrap();
        for (depth, there) in [(0, 0.1), (500, 0.15), (1000, 0.2), (2000, 0.3), (9000, 0.3)] {
            assert!((by_depth.at(depth).token[1] - there).abs() < 1e-12, "{depth}");
        }
    }

    #[test]
    fn the_text_lists_both_placements_by_depth_from_either_side() {
        let words = "all layers on the host until some 1000 tokens, 6.67 tok/s; then whole layers, 20 of 33 on GPUs, \
                     5.00 tok/s to the end; moving takes about 3 s, once";
        let deep = pair();
        for plan in [&deep, &deep.other().unwrap()] {
            assert_eq!(plan.by_depth_in_words().as_deref(), Some(words));
            assert!(plan.to_string().contains(words), "{plan}");
        }
    }
}
