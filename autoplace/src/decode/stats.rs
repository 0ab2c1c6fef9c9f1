//! Statistics of a generation, and of a re-placement of the model.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::chat::FinishReason;
use crate::load::ExpertUses;
use crate::machine::Bytes;
use crate::plan::Plan;

/// Times and counts of one generation, in llama-bench's terms: pp is prompt processing, tg text generation. Its
/// `Display` is one line: tokens, speeds, the time in the queue, the threads, and the limit that cut the text off, if
/// one did.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Statistics {
    /// The number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// The number of tokens at the beginning of the prompt that were not computed, because the context or the [prompt
    /// store](crate::store::PromptStore) already held them.
    pub cached_tokens: usize,
    /// The cached tokens that came from the prompt store and not from the context.
    pub restored_tokens: usize,
    /// The restored tokens that were read from the prompt store's folder; the others were in memory.
    pub restored_from_folder: usize,
    /// The number of rows of pictures and sounds in the prompt, which are counted as tokens of the prompt too.
    pub media_tokens: usize,
    /// The number of pictures and sounds, or parts of them, that were encoded for this text. If the encoding was
    /// cached, it is not counted.
    pub encoded_media: usize,
    /// Time to encode those pictures and sounds. This time is a part of `prompt_time`.
    pub encoding_time: Duration,
    /// The number of tokens that a full context discarded ([`WhenFull::Shift`](crate::generate::WhenFull::Shift)).
    pub discarded_tokens: usize,
    /// The number of tokens generated so far, without an end-of-generation token.
    pub generated_tokens: usize,
    /// Time to compute the prompt, without the cached tokens.
    pub prompt_time: Duration,
    /// Time to compute and choose the generated tokens after the first, without the caller's own time between two
    /// pieces.
    pub generation_time: Duration,
    /// Time from the start of the prompt to the first token.
    pub first_token_latency: Option<Duration>,
    /// Time in the queue of an [`Engine`](crate::generate::Engine): before the prompt was begun, and while the text was
    /// suspended.
    pub queue_time: Duration,
    /// The seed in use; `None` when no sampler is random.
    pub seed: Option<u32>,
    /// The number of tokens that were [drafted](crate::generate::GenerateRequest::speculate) and computed together with
    /// known tokens.
    pub drafted_tokens: usize,
    /// The number of tokens of the text that the drafter's context got from the prompt store, so that a draft model did
    /// not compute them again. For the model's own block for multi-token prediction, these are tokens that would
    /// otherwise be missing in its context.
    pub restored_draft_tokens: usize,
    /// The number of draft tokens that the sampler chose too.
    pub accepted_tokens: usize,
    /// CPU threads of the last step; 0 before the first step.
    pub threads: u32,
    /// Why a text with speculation drafts no tokens at the moment.
    pub drafts_off: Option<DraftingPaused>,
    /// Why the text ended; `None` while it runs. If a limit [has cut](FinishReason::is_cut) the text off, the text may
    /// nevertheless look complete.
    pub finish_reason: Option<FinishReason>,
    /// How often the model's worker process died during this text, which another worker continued
    /// ([`OnDeath::Resume`](crate::OnDeath::Resume)). [`Model::worker_deaths`](crate::Model::worker_deaths) returns the
    /// causes.
    pub worker_deaths: u32,
    /// How often the model was moved to its other placement during this text, because of the depth of the texts
    /// ([`Plan::by_depth`]).
    pub moves: u32,
    /// Time that these moves took.
    pub moving_time: Duration,
    /// Bytes by which compute buffers grew during this text, over all devices and the host. A load reserves memory for
    /// all later batches, so this number is nearly always 0; docs/load-contract.md lists the exceptions. If a batch has
    /// several texts, the growth counts for each of them. Draft models are not included.
    pub buffer_growth: u64,
    /// How often the graph of a batch was reserved again during this text. A graph that fits the present buffers takes
    /// no memory: see [`buffer_growth`](Self::buffer_growth).
    pub reallocations: u32,
    /// How often this text's batches used an expert whose weights were in the cache of experts
    /// ([`Plan::moe_cache`](crate::plan::Plan::moe_cache)). If a batch has several texts, its uses count for each of
    /// them. Prompts of more than 32 tokens at once do not use the cache.
    pub expert_hits: u64,
    /// How often this text's batches used an expert whose weights had to be uploaded to the cache first.
    pub expert_misses: u64,
}

impl Statistics {
    /// Prompt processing in tokens per second; 0.0 before the prompt is done.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        self.first_token_latency.map_or(0.0, |_| per_second(computed, self.prompt_time))
    }

    /// The share of the draft tokens that the sampler accepted, 0.0 to 1.0; 0.0 before the first draft.
    pub fn acceptance_rate(&self) -> f64 {
        match self.drafted_tokens {
            0 => 0.0,
            drafted => self.accepted_tokens as f64 / drafted as f64,
        }
    }

    /// Share of the uses of experts that the cache of experts served, 0.0 to 1.0; `None` without uses.
    pub fn expert_hit_rate(&self) -> Option<f64> {
        ExpertUses { hits: self.expert_hits, misses: self.expert_misses }.hit_rate()
    }

    /// Text generation in tokens per second; 0.0 before the second token. The first token does not count, because its
    /// logits are computed with the prompt.
    pub fn tokens_per_second(&self) -> f64 {
        per_second(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cached = match (self.cached_tokens, self.restored_tokens, self.restored_from_folder) {
            (0, _, _) => String::new(),
            (tokens, 0, _) => format!(" ({tokens} cached)"),
            (tokens, _, 0) => format!(" ({tokens} cached, from the prompt store)"),
            (tokens, _, _) => format!(" ({tokens} cached, from the prompt store's folder)"),
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
        if !self.queue_time.is_zero() {
            write!(f, "; {:.0} ms in the queue", self.queue_time.as_secs_f64() * 1e3)?;
        }
        if self.threads > 0 {
            write!(f, "; {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })?;
        }
        if self.media_tokens > 0 {
            let (rows, encoded, ms) = (self.media_tokens, self.encoded_media, self.encoding_time.as_secs_f64() * 1e3);
            write!(f, "; {rows} rows of media, {encoded} encoded in {ms:.0} ms")?;
        }
        if self.drafted_tokens > 0 {
            write!(f, "; {} of {} draft tokens accepted", self.accepted_tokens, self.drafted_tokens)?;
        }
        if let Some(rate) = self.expert_hit_rate() {
            write!(f, "; {:.0} % of experts found in their cache", 100.0 * rate)?;
        }
        if self.discarded_tokens > 0 {
            write!(f, "; {} tokens shifted out of the context", self.discarded_tokens)?;
        }
        if self.worker_deaths > 0 {
            let times =
                if self.worker_deaths == 1 { "once".to_owned() } else { format!("{} times", self.worker_deaths) };
            write!(f, "; the worker died {times}")?;
        }
        if self.moves > 0 {
            let times = if self.moves == 1 { "once".to_owned() } else { format!("{} times", self.moves) };
            write!(
                f,
                "; the model moved {times} because of the text's depth, in {:.1} s",
                self.moving_time.as_secs_f64()
            )?;
        }
        if self.buffer_growth > 0 {
            write!(f, "; compute buffers grew by {}", Bytes(self.buffer_growth))?;
        }
        match self.finish_reason {
            Some(reason) if reason.is_cut() => write!(f, "; {reason} ended the text"),
            _ => Ok(()),
        }
    }
}

fn per_second(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Why a text with speculation drafts no tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DraftingPaused {
    /// The context was planned for one token per text and step: see
    /// [`Request::draft_max`](crate::plan::Request::draft_max).
    NoRoom,
    /// The model's memory cannot discard single tokens, so it could not forget a rejected draft. At least a part of
    /// this memory is recurrent, and no earlier states are kept ([`ModelBuilder::mtp`](crate::ModelBuilder::mtp) keeps
    /// them).
    Memory,
    /// No draft model is loaded: see [`ModelBuilder::draft`](crate::ModelBuilder::draft).
    NoModel,
    /// The prompt contains a picture or a sound, which no drafter sees.
    Media,
    /// No block for multi-token prediction is loaded: see [`ModelBuilder::mtp`](crate::ModelBuilder::mtp).
    NoHeads,
    /// Tokens took longer with drafts than without. Drafting is tried again from time to time.
    #[serde(rename = "losing")]
    Unprofitable,
}

/// The effect of re-placing a model in the middle of its texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Replaced {
    /// The plan before the re-placement.
    pub before: Arc<Plan>,
    /// The plan after the re-placement.
    pub after: Arc<Plan>,
    /// The bytes of the states of all texts. The states were kept in host memory during the move.
    pub saved: u64,
    /// How the texts continue.
    pub resumed: Resumed,
    /// Time from saving the states to restoring them, without the later steps that compute tokens again.
    pub time: Duration,
}

/// How texts continue after the model was re-placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Resumed {
    /// The states were restored unchanged. In a shared cache (`kv_unified`) the texts may then be in different cells,
    /// and the following tokens may differ by rounding.
    Restored,
    /// The new cache has other types or another layout (flash attention, sequences), so the tokens are computed again.
    /// The following tokens may differ by rounding.
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

    #[test]
    fn a_line_shows_queue_cache_threads_deaths_growth_and_the_limit() {
        let stats = Statistics {
            prompt_tokens: 10,
            cached_tokens: 4,
            queue_time: Duration::from_millis(250),
            threads: 8,
            worker_deaths: 2,
            moves: 1,
            moving_time: Duration::from_millis(2600),
            buffer_growth: 3 << 20,
            expert_hits: 83,
            expert_misses: 17,
            finish_reason: Some(FinishReason::MaxTokens),
            ..Statistics::default()
        };
        let shown = stats.to_string();
        for part in [
            "(4 cached)",
            "250 ms in the queue",
            "8 threads",
            "died 2 times",
            "the model moved once because of the text's depth, in 2.6 s",
            "83 % of experts found in their cache",
            "compute buffers grew by 3.0 MiB",
            "max_tokens ended the text",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let whole = Statistics { finish_reason: Some(FinishReason::EndOfGeneration), ..Statistics::default() };
        assert!(!whole.to_string().contains("ended"), "{whole}");
    }
}
