//! Follows the depth of a session's texts: the rule counts each step, and the model may move to its other placement
//! before a step.

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
    /// The re-placement that the rule requires before the next step; `None` in almost every step.
    pub(crate) fn follow_depth(&self) -> Option<Replacement> {
        if !self.model.counters().follows_depth() || self.sequences.is_empty() || !self.is_loaded() {
            return None;
        }
        let other = self.model.due_for_depth(self.prompt_ahead())?;
        Some(Replacement::ForDepth(Box::new(other)))
    }

    /// The prompts that begin with the next step.
    fn prompt_ahead(&self) -> Option<PromptAhead> {
        // If the context already holds the prompt, only one token may be left to compute.
        let begins = |sequence: &&Sequence| {
            sequence.statistics.prompt_time.is_zero() && sequence.statistics.first_token_latency.is_none()
        };
        let tokens: usize = self.sequences.iter().filter(begins).map(Sequence::to_compute).sum();
        let most_reply = self.sequences.iter().filter(begins).map(|sequence| sequence.limits.max_tokens).max()?;
        let work = DepthWork::prompt(self.live_tokens(), count(tokens));
        Some(PromptAhead { work, most_reply: count(most_reply) })
    }

    /// Number of live tokens: the tokens of all running texts that are in the context.
    pub(super) fn live_tokens(&self) -> u32 {
        let to_compute: usize = self.sequences.iter().map(Sequence::to_compute).sum();
        count(cells(&self.sequences).saturating_sub(to_compute))
    }

    /// Begins a step, if the rule counts steps.
    pub(super) fn step_begins(&self) -> Option<StepBegun> {
        if !self.model.counters().follows_depth() {
            return None;
        }
        Some(StepBegun {
            begun: Instant::now(),
            depth: self.live_tokens(),
            generates: self.sequences.iter().any(|sequence| sequence.to_compute() == 1),
            has_prompt: self.sequences.iter().any(|sequence| sequence.to_compute() > 1),
        })
    }

    /// Reports an ended step to the rule.
    pub(super) fn step_ended(&self, step: &StepBegun) {
        let StepBegun { begun, depth, generates, has_prompt } = *step;
        let prompt_tokens = if has_prompt { self.work.batch_tokens() } else { 0 };
        let mut work = DepthWork::prompt(depth, count(prompt_tokens));
        work.generates = generates;
        if let Some(mut follower) = self.model.counters().depth() {
            follower.took(work, begun.elapsed());
        }
    }

    /// Moves the model to its other placement. If the other placement cannot be loaded, the present placement is loaded
    /// again.
    pub(super) fn move_for_depth(&mut self, plan: Plan) -> Result<(), Error> {
        let before = Plan::clone(&self.model.placement());
        let follower = self.model.counters().depth();
        let (lost, expected) = follower.map(|follower| (follower.lost(), follower.expected())).unwrap_or_default();
        let moving = DepthMove {
            tokens: self.live_tokens(),
            before: before.placement_in_words(),
            after: plan.placement_in_words(),
            lost,
            time: expected,
        };
        self.model.counters().set_moving(Some((moving.clone(), 0.0)));
        let outcome = self.replace_by(Some(plan), Some(before));
        self.model.counters().set_moving(None);
        self.last_replaced = Some(outcome.clone().map(|(replaced, _)| replaced));
        let (replaced, state) = outcome?;
        for sequence in &mut self.sequences {
            sequence.statistics.moves += 1;
            sequence.statistics.moving_time += replaced.time;
        }
        if let Some(mut follower) = self.model.counters().depth() {
            follower.moved(replaced.time);
        }
        self.model.learn_from_move(state, replaced.time);
        // If memory ran short, the model is not in the planned placement.
        let after = replaced.after.placement_in_words();
        self.model.has_moved(DepthMove { after, time: replaced.time, ..moving });
        Ok(())
    }
}

/// Converts a number of tokens.
fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
