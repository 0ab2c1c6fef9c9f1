//! A session whose model follows the depth of its texts: each step counts for the rule, and before a step the model may
//! move to its other placement.

use std::time::Instant;

use crate::decode::error::Error;
use crate::decode::sequence::{Sequence, cells};
use crate::load::{DepthMove, PromptAhead, Replacement};
use crate::plan::{DepthWork, Plan};
use crate::run::local::LocalSession;

/// A step that is about to be computed.
pub(super) struct StepBegun {
    begun: Instant,
    depth: u32,
    generates: bool,
    /// Whether any text still computes its prompt.
    has_prompt: bool,
}

impl LocalSession {
    /// The re-placement that the depth of the texts asks for before the next step; `None` almost always.
    pub(crate) fn follow_depth(&self) -> Option<Replacement> {
        if !self.model.counters().follows_depth() || self.sequences.is_empty() || !self.is_loaded() {
            return None;
        }
        let other = self.model.due_for_depth(self.prompt_ahead())?;
        Some(Replacement::ForDepth(Box::new(other)))
    }

    /// The prompts that begin with the next step.
    fn prompt_ahead(&self) -> Option<PromptAhead> {
        // A prompt that the context holds already may have one token left to compute.
        let begins =
            |it: &&Sequence| it.statistics.prompt_time.is_zero() && it.statistics.first_token_latency.is_none();
        let tokens: usize = self.sequences.iter().filter(begins).map(Sequence::to_compute).sum();
        let most_reply = self.sequences.iter().filter(begins).map(|it| it.limits.max_tokens).max()?;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let work = DepthWork::prompt(count(self.live_tokens()), count(tokens));
        Some(PromptAhead { work, most_reply: count(most_reply) })
    }

    /// Live tokens: those of all running texts that are in the context.
    pub(super) fn live_tokens(&self) -> usize {
        let to_compute: usize = self.sequences.iter().map(Sequence::to_compute).sum();
        cells(&self.sequences).saturating_sub(to_compute)
    }

    /// Begins a step, if steps count.
    pub(super) fn step_begins(&self) -> Option<StepBegun> {
        if !self.model.counters().follows_depth() {
            return None;
        }
        Some(StepBegun {
            begun: Instant::now(),
            depth: u32::try_from(self.live_tokens()).unwrap_or(u32::MAX),
            generates: self.sequences.iter().any(|it| it.to_compute() == 1),
            has_prompt: self.sequences.iter().any(|it| it.to_compute() > 1),
        })
    }

    /// Counts a step that has ended.
    pub(super) fn step_ended(&self, step: &StepBegun) {
        let StepBegun { begun, depth, generates, has_prompt } = *step;
        let prompt_tokens = if has_prompt { self.work.batch_tokens() } else { 0 };
        let mut work = DepthWork::prompt(depth, u32::try_from(prompt_tokens).unwrap_or(u32::MAX));
        work.generates = generates;
        if let Some(mut follower) = self.model.counters().depth() {
            follower.took(work, begun.elapsed());
        }
    }

    /// Moves the model to its other placement. If that cannot be loaded, the present one is loaded again.
    pub(super) fn move_for_depth(&mut self, plan: Plan) -> Result<(), Error> {
        let tokens = u32::try_from(self.live_tokens()).unwrap_or(u32::MAX);
        let lost = self.model.counters().depth().map(|follower| follower.lost()).unwrap_or_default();
        let before = Plan::clone(&self.model.placement());
        let moving = self.model.counters().depth().map(|follower| follower.expected()).unwrap_or_default();
        let words = (before.placement_in_words(), plan.placement_in_words());
        let moving = DepthMove { tokens, before: words.0.clone(), after: words.1, lost, time: moving };
        self.model.counters().set_moving(Some(moving));
        let outcome = self.replace_by(Some(plan), Some(before));
        self.model.counters().set_moving(None);
        self.last_replaced = Some(outcome.clone());
        let replaced = outcome?;
        for sequence in &mut self.sequences {
            sequence.statistics.moves += 1;
            sequence.statistics.moving_time += replaced.time;
        }
        if let Some(mut follower) = self.model.counters().depth() {
            follower.moved(replaced.time);
        }
        // Where memory has run short meanwhile, the model is on another placement than the one it was to move to.
        let after = replaced.after.placement_in_words();
        self.model.has_moved(DepthMove { tokens, before: words.0, after, lost, time: replaced.time });
        Ok(())
    }
}
