//! Checkpoints: states after the first tokens of a text. They are saved because the memory of some models cannot return
//! to an earlier state by itself.
//!
//! In: sequences whose prompts are being computed. Out: the earlier states to which a sequence with a window or a
//! recurrent state can return. A checkpoint belongs to its tokens and the adapters with which they were computed, so
//! any sequence that begins with those tokens can restore it. A checkpoint contains only windows and recurrent states;
//! the cells of full attention stay in the context.

use std::sync::Arc;

use llama_sys::{Context, SeqId};
use serde::{Deserialize, Serialize};

use super::media::Spans;
use super::prefix::Prefix;
use crate::load::{Checkpoint, host_margin};
use crate::machine::Host;

/// Distance of a checkpoint from the end of a prompt, in tokens. The next prompt may differ near this end, because some
/// templates begin the reasoning in the prompt, and leave the reasoning out of the history. The last token is computed
/// again in any case. llama.cpp's server uses the same distance.
const BEFORE_END: usize = 4;

/// Shortest prompt, in tokens, that gets a checkpoint; llama.cpp's server uses the same bound. A shorter prompt is
/// simply computed again.
pub(crate) const MIN_PROMPT: usize = 64;

/// Distance between checkpoints in a long prompt, in tokens (common.h, `checkpoint_min_step`).
const STEP: usize = 8192;

/// Shortest common prefix of two prompts, in tokens, that gets a checkpoint.
const WORTH_ONE: usize = 64;

/// Memory that checkpoints take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckpointUse {
    /// Number of checkpoints.
    pub checkpoints: usize,
    /// Bytes of host memory that the checkpoints take.
    pub bytes: u64,
    /// Limit in bytes: the [requested](crate::ModelBuilder::checkpoints) limit, or the host memory that the plan leaves
    /// if that is less.
    pub limit: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    pub(crate) limit: u64,
    /// The checkpoints, the least recently used first.
    pub(crate) kept: Vec<Checkpoint>,
}

impl Checkpoints {
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.evict_to(limit);
    }

    pub(crate) fn usage(&self) -> CheckpointUse {
        CheckpointUse { checkpoints: self.kept.len(), bytes: self.bytes(), limit: self.limit }
    }

    /// Number of tokens in the longest checkpoint with whose tokens `text` begins.
    pub(crate) fn last_among(&self, text: Prefix<'_>) -> Option<usize> {
        self.find(text).map(|at| self.kept[at].tokens.len())
    }

    /// Number of tokens in the shortest checkpoint with whose tokens `text` begins.
    pub(crate) fn first_among(&self, text: Prefix<'_>) -> Option<usize> {
        self.kept
            .iter()
            .filter(|checkpoint| text.begins_with(checkpoint))
            .map(|checkpoint| checkpoint.tokens.len())
            .min()
    }

    fn find(&self, text: Prefix<'_>) -> Option<usize> {
        let among = self.kept.iter().enumerate().filter(|(_, checkpoint)| text.begins_with(checkpoint));
        among.max_by_key(|(_, checkpoint)| checkpoint.tokens.len()).map(|(at, _)| at)
    }

    /// Restores the longest checkpoint with whose tokens `text` begins. Returns the number of its tokens. Returns 0 if
    /// no checkpoint matches, or if the context refuses the checkpoint.
    pub(crate) fn restore(&mut self, context: &mut Context, seq: SeqId, text: Prefix<'_>) -> usize {
        let Some(at) = self.find(text) else {
            return 0;
        };
        // Moves the used checkpoint to the end, so that it is evicted last.
        let checkpoint = self.kept.remove(at);
        let held = checkpoint.tokens.len();
        let restored = context.restore_state(seq, &checkpoint.state);
        tracing::debug!(
            target: "autoplace::generate",
            "sequence {seq} goes back to a checkpoint after {held} tokens: {restored:?}"
        );
        if restored.is_err() {
            return 0;
        }
        self.kept.push(checkpoint);
        held
    }

    /// Saves a checkpoint of a sequence that holds exactly these tokens, if the memory limit allows it.
    pub(crate) fn take(&mut self, context: &mut Context, seq: SeqId, text: Prefix<'_>) {
        let Prefix { tokens, marks, scales, .. } = text;
        if self.kept.iter().any(|checkpoint| checkpoint.tokens.len() == tokens.len() && text.begins_with(checkpoint)) {
            return;
        }
        let Ok(state) = context.partial_state_bytes(seq) else {
            return;
        };
        let needed = state.saturating_add(size_of_val(tokens) as u64);
        let limit = self.limit.min(self.bytes().saturating_add(free()));
        let taken = if needed > limit {
            Err(format!("checkpoints may take {limit} bytes"))
        } else {
            self.evict_to(limit - needed);
            context.save_partial_state(seq).map_err(|error| error.to_string())
        };
        let outcome = taken.as_ref().map_or_else(String::as_str, |_| "taken");
        tracing::debug!(
            target: "autoplace::generate",
            "a checkpoint after {} tokens, of {needed} bytes: {outcome}", tokens.len()
        );
        let kept = |state| Checkpoint {
            scales: scales.clone(),
            tokens: tokens.to_vec(),
            marks: marks.clone(),
            state: Arc::new(state),
        };
        self.kept.extend(taken.map(kept));
    }

    fn evict_to(&mut self, limit: u64) {
        while self.bytes() > limit {
            let after = self.kept.remove(0).tokens.len();
            tracing::debug!(target: "autoplace::generate", "a checkpoint after {after} tokens makes room for others");
        }
    }

    fn bytes(&self) -> u64 {
        self.kept.iter().map(|checkpoint| (checkpoint.state.len() + size_of_val(&*checkpoint.tokens)) as u64).sum()
    }
}

/// Free bytes of the host, less the margin that a plan leaves.
pub(super) fn free() -> u64 {
    let host = Host::detect_memory();
    host.available.saturating_sub(host_margin(&host))
}

/// The places at which the computation of a prompt is interrupted to take checkpoints.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stops {
    /// The numbers of tokens after which the computation is interrupted, in ascending order. Numbers that are already
    /// reached are left out.
    at: Vec<usize>,
    /// Number of tokens at the last checkpoint.
    last: usize,
}

impl Stops {
    /// Places for a prompt of `tokens` tokens, of which `cached` are computed. `common` is the length of the prefix
    /// that the prompt shares with another text, whose memory could not return to the end of this prefix. No place is
    /// within the rows of a picture, because they are computed without an interruption.
    pub(crate) fn new(tokens: usize, spans: &Spans, cached: usize, common: usize) -> Self {
        let end = spans.ceil(tokens.saturating_sub(BEFORE_END));
        let common = (common >= cached + WORTH_ONE && common + WORTH_ONE <= end).then_some(common);
        let end = (tokens >= MIN_PROMPT && end > cached).then_some(end);
        Self { at: common.into_iter().chain(end).collect(), last: cached }
    }

    /// The next place after `computed` tokens.
    pub(crate) fn next(&self, computed: usize) -> Option<usize> {
        self.at.iter().copied().find(|&at| at > computed)
    }

    /// Whether a checkpoint is due after `computed` tokens of a prompt.
    pub(crate) fn is_due(&mut self, computed: usize) -> bool {
        let before = self.at.len();
        let is_stop = self.at.contains(&computed);
        self.at.retain(|&at| at > computed);
        let is_due = is_stop || (before > 0 && computed >= self.last + STEP);
        if is_due {
            self.last = computed;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::Stops;
    use crate::decode::media::NO_SPANS;

    #[test]
    fn a_prompt_is_interrupted_before_its_end_and_where_it_left_another_text() {
        assert_eq!(Stops::new(500, &NO_SPANS, 0, 0).at, [496]);
        assert_eq!(Stops::new(500, &NO_SPANS, 0, 300).at, [300, 496]);
        // If only a few tokens are left, they are computed without an interruption.
        assert_eq!(Stops::new(500, &NO_SPANS, 497, 498).at, [0usize; 0]);
        assert_eq!(Stops::new(63, &NO_SPANS, 0, 0).at, [0usize; 0]);
        assert_eq!(Stops::new(500, &NO_SPANS, 290, 300).at, [496]);
        assert_eq!(Stops::new(500, &NO_SPANS, 0, 480).at, [496]);
    }

    #[test]
    fn a_checkpoint_is_due_at_each_stop_and_after_many_tokens() {
        let mut stops = Stops::new(20_000, &NO_SPANS, 0, 0);
        let due: Vec<usize> =
            (0..19_900).step_by(500).chain([19_996, 20_000]).filter(|&computed| stops.is_due(computed)).collect();
        assert_eq!(due, [8500, 17_000, 19_996]);
        assert_eq!(stops.next(19_996), None);
    }
}
