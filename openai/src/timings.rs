//! How long answers took: one answer in llama-server's form, and the totals of all answers.

#[cfg(feature = "pool")]
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "pool")]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use autoplace::generate::Statistics;

/// The field `timings` of an answer: tokens, milliseconds, and tokens per second.
pub(super) fn json(statistics: &Statistics) -> Value {
    let prompt = statistics.prompt_tokens.saturating_sub(statistics.cached_tokens);
    let generated = statistics.generated_tokens;
    // When the prompt is computed, the first token follows without a computation of its own.
    let computed = generated.saturating_sub(1);
    let mut timings = json!({
        "cache_n": statistics.cached_tokens,
        "prompt_n": prompt, "prompt_ms": milliseconds(statistics.prompt_time),
        "prompt_per_token_ms": ratio(milliseconds(statistics.prompt_time), prompt as f64),
        "prompt_per_second": ratio(prompt as f64, statistics.prompt_time.as_secs_f64()),
        "predicted_n": generated, "predicted_ms": milliseconds(statistics.generation_time),
        "predicted_per_token_ms": ratio(milliseconds(statistics.generation_time), computed as f64),
        "predicted_per_second": ratio(computed as f64, statistics.generation_time.as_secs_f64()),
    });
    if statistics.drafted_tokens > 0 {
        timings["draft_n"] = statistics.drafted_tokens.into();
        timings["draft_n_accepted"] = statistics.accepted_tokens.into();
    }
    timings
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
}

/// Totals of all finished answers of an [`Api`](super::Api).
#[derive(Debug, Default)]
pub(super) struct Totals {
    answers: AtomicU64,
    prompt_micros: AtomicU64,
    generation_micros: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    /// For each text that has ended since the last call of [`take_ended`](Self::take_ended): how many prompt tokens
    /// were computed, and how many tokens were generated.
    #[cfg(feature = "pool")]
    ended: Mutex<VecDeque<(u32, u32)>>,
}

/// Maximum number of ended texts whose counts are kept until somebody takes them.
#[cfg(feature = "pool")]
const MAX_ENDED: usize = 64;

/// The totals as plain numbers.
#[cfg(feature = "server")]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Took {
    pub(super) answers: u64,
    pub(super) prompt_seconds: f64,
    pub(super) generation_seconds: f64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
}

impl Totals {
    pub(super) fn add(&self, statistics: &Statistics) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        for (total, more) in [
            (&self.answers, 1),
            (&self.prompt_micros, micros(statistics.prompt_time)),
            (&self.generation_micros, micros(statistics.generation_time)),
            (&self.drafted, statistics.drafted_tokens as u64),
            (&self.accepted, statistics.accepted_tokens as u64),
        ] {
            total.fetch_add(more, Ordering::Relaxed);
        }
        #[cfg(feature = "pool")]
        {
            let tokens = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
            let prompt = statistics.prompt_tokens.saturating_sub(statistics.cached_tokens);
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.truncate(MAX_ENDED - 1);
            ended.push_front((tokens(prompt), tokens(statistics.generated_tokens)));
        }
    }

    /// The token counts of the texts that have ended since the last call. If more than 64 texts have ended, only the
    /// counts of the last 64.
    #[cfg(feature = "pool")]
    pub(super) fn take_ended(&self) -> VecDeque<(u32, u32)> {
        std::mem::take(&mut self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(feature = "server")]
    pub(super) fn took(&self) -> Took {
        let count = |total: &AtomicU64| total.load(Ordering::Relaxed);
        let seconds = |micros: &AtomicU64| count(micros) as f64 / 1e6;
        Took {
            answers: count(&self.answers),
            prompt_seconds: seconds(&self.prompt_micros),
            generation_seconds: seconds(&self.generation_micros),
            drafted: count(&self.drafted),
            accepted: count(&self.accepted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_cover_the_computed_tokens() {
        let mut statistics = Statistics::default();
        (statistics.prompt_tokens, statistics.cached_tokens, statistics.generated_tokens) = (30, 10, 5);
        statistics.prompt_time = Duration::from_millis(100);
        statistics.generation_time = Duration::from_millis(200);
        let timings = json(&statistics);
        assert_eq!(
            (&timings["cache_n"], &timings["prompt_n"], &timings["predicted_n"]),
            (&json!(10), &json!(20), &json!(5))
        );
        assert_eq!((&timings["prompt_per_second"], &timings["prompt_per_token_ms"]), (&json!(200.0), &json!(5.0)));
        assert_eq!(
            (&timings["predicted_per_second"], &timings["predicted_per_token_ms"]),
            (&json!(20.0), &json!(50.0))
        );
        assert_eq!(json(&Statistics::default())["prompt_per_second"], 0.0);
        assert!(timings.get("draft_n").is_none());
    }
}
