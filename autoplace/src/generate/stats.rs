//! What a generation took, and what re-placing its model did.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Times and counts of one generation, in llama-bench's terms: pp is prompt processing, tg text generation.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens at the beginning of the prompt that the context held already.
    pub cached_tokens: usize,
    /// Tokens that were shifted out because the context was full ([`WhenFull::Shift`](super::WhenFull::Shift)).
    pub discarded_tokens: usize,
    /// Tokens generated so far, an end-of-generation token not counted.
    pub generated_tokens: usize,
    /// Time to compute the prompt, but for what the context held.
    pub prompt_time: Duration,
    /// Time to compute and choose the generated tokens after the first; what the caller does between two pieces does
    /// not count.
    pub generation_time: Duration,
    /// From the start of the prompt to the first token.
    pub first_token_latency: Option<Duration>,
    /// Time that it waited for its turn in an [`Engine`](super::Engine): before the prompt was begun, and where it had
    /// to make room for others.
    pub queue_time: Duration,
    /// The seed in use; `None` when nothing is left to chance.
    pub seed: Option<u32>,
    /// Tokens that were [drafted](super::Generate::speculate), and computed with those that were known.
    pub drafted_tokens: usize,
    /// How many of them were accepted: the sampler chose them too.
    pub accepted_tokens: usize,
    /// Threads of the CPU that the last step was computed with; 0 before the first.
    pub threads: u32,
    /// Why none are drafted at the moment, though that was asked for.
    pub drafts_off: Option<DraftsOff>,
}

impl Statistics {
    /// Prompt processing, in tokens per second; 0.0 before the prompt is done.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        self.first_token_latency.map_or(0.0, |_| per_second(computed, self.prompt_time))
    }

    /// The share of the draft tokens that were accepted; 0.0 before the first draft.
    pub fn acceptance_rate(&self) -> f64 {
        match self.drafted_tokens {
            0 => 0.0,
            drafted => self.accepted_tokens as f64 / drafted as f64,
        }
    }

    /// Text generation, in tokens per second; 0.0 before the second token, since the first one's logits come
    /// with the prompt.
    pub fn tokens_per_second(&self) -> f64 {
        per_second(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cached = match self.cached_tokens {
            0 => String::new(),
            tokens => format!(" ({tokens} cached)"),
        };
        write!(
            f,
            "prompt {} tokens, {:.1} tok/s{cached}; generated {} tokens, {:.1} tok/s",
            self.prompt_tokens,
            self.prompt_tokens_per_second(),
            self.generated_tokens,
            self.tokens_per_second()
        )?;
        if let Some(latency) = self.first_token_latency {
            write!(f, "; first token after {:.0} ms", latency.as_secs_f64() * 1e3)?;
        }
        if self.drafted_tokens > 0 {
            write!(f, "; {} of {} draft tokens accepted", self.accepted_tokens, self.drafted_tokens)?;
        }
        Ok(())
    }
}

fn per_second(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Why no tokens are drafted though that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DraftsOff {
    /// The context was planned for one token of each text at a time: see
    /// [`Request::draft_max`](crate::plan::Request::draft_max).
    NoRoom,
    /// The model's memory cannot go back by single tokens, so that a rejected draft could not be forgotten: it is
    /// recurrent, at least in part, and no earlier states are kept, as they are with
    /// [`ModelBuilder::mtp`](crate::ModelBuilder::mtp).
    Memory,
    /// No draft model is loaded: see [`ModelBuilder::draft`](crate::ModelBuilder::draft).
    NoModel,
    /// No block that predicts further tokens is loaded: see [`ModelBuilder::mtp`](crate::ModelBuilder::mtp).
    NoHeads,
    /// For now: with drafts, tokens took longer than without. Drafts are tried again from time to time.
    Losing,
}

/// What re-placing a model in the middle of its texts took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Replaced {
    /// Where the model was.
    pub before: Arc<Plan>,
    /// Where it is.
    pub after: Arc<Plan>,
    /// Bytes of state that were kept in host memory meanwhile, over all texts.
    pub saved: u64,
    /// How the texts go on.
    pub resumed: Resumed,
    /// From saving the states to restoring them. What has to be computed again is computed by the steps that follow.
    pub time: Duration,
}

/// How texts go on after the model was re-placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Resumed {
    /// Their states were restored: as if nothing had happened. Only where several texts share one cache (`kv_unified`)
    /// may they lie in other cells than before, and what follows may differ by rounding.
    Restored,
    /// The new cache has other types or another layout (flash attention, sequences), so their tokens so far are
    /// computed again. What follows may differ by rounding.
    Recomputed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_belongs_to_the_prompt() {
        let stats = Statistics {
            prompt_tokens: 10,
            prompt_time: Duration::from_millis(100),
            first_token_latency: Some(Duration::from_millis(100)),
            generated_tokens: 11,
            generation_time: Duration::from_secs(1),
            ..Statistics::default()
        };
        assert_eq!(stats.prompt_tokens_per_second(), 100.0);
        assert_eq!(stats.tokens_per_second(), 10.0);
        assert_eq!(Statistics::default().tokens_per_second(), 0.0);
    }
}
