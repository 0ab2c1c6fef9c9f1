//! How often a model is requested, and with how many tokens, learned from its past requests.
//!
//! Each request has a weight that decays by the factor e in [`DEMAND_WINDOW`]. The rate is the sum of the weights
//! divided by that time. After an hour without requests it is practically 0.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use autoplace::Plan;

/// The time in which the weight of a request decays by the factor e. A decision minimises the waits of the next
/// interval of this length.
pub const DEMAND_WINDOW: Duration = Duration::from_secs(600);

/// Prompt and reply tokens that are expected before the first request: those of the planner's default workload.
const TOKENS: [f64; 2] = [1024.0, 256.0];

/// The weight that the newest request has in the mean number of tokens.
const NEWEST: f64 = 0.2;

/// The demand for one model. Times are durations since any fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Demand {
    /// The sum of the requests' weights at `seen`.
    weight: f64,
    /// The sum of the weights, at `seen`, of the requests that followed a request for another model.
    turns: f64,
    /// When the last request came for this model.
    seen: Duration,
    /// Mean number of computed prompt tokens, and mean number of reply tokens.
    tokens: [f64; 2],
    /// Number of texts in these means.
    texts: u32,
}

impl Default for Demand {
    fn default() -> Self {
        Self { weight: 0.0, turns: 0.0, seen: Duration::ZERO, tokens: TOKENS, texts: 0 }
    }
}

impl Demand {
    /// Counts a request that arrives at `now`. `is_turn`: whether the pool's previous request was for another model.
    pub fn count_request(&mut self, now: Duration, is_turn: bool) {
        let fade = self.fade(now);
        self.weight = self.weight * fade + 1.0;
        self.turns = self.turns * fade + f64::from(u8::from(is_turn));
        self.seen = self.seen.max(now);
    }

    /// Learns the tokens of a text that has ended: prompt tokens that were computed, and generated tokens.
    pub fn ended(&mut self, prompt: u32, reply: u32) {
        self.texts = self.texts.saturating_add(1);
        // The first texts have equal weights, so that the default no longer counts after the first text.
        let newest = NEWEST.max(1.0 / f64::from(self.texts));
        for (mean, tokens) in self.tokens.iter_mut().zip([prompt, reply]) {
            *mean += newest * (f64::from(tokens) - *mean);
        }
    }

    /// Expected requests per second.
    pub fn rate(&self, now: Duration) -> f64 {
        self.weight * self.fade(now) / DEMAND_WINDOW.as_secs_f64()
    }

    /// Expected number of times, in [`DEMAND_WINDOW`], that a request for this model follows a request for another
    /// model. If only one of two models is loaded at a time, this is how often this model must be loaded.
    pub fn turns(&self, now: Duration) -> f64 {
        self.turns * self.fade(now)
    }

    /// When the last request came; `None` before the first.
    pub fn last(&self) -> Option<Duration> {
        (self.weight > 0.0).then_some(self.seen)
    }

    /// Predicted seconds that a request of the mean size waits for its turn, in a placement that computes `sequences`
    /// texts at once and takes `seconds` for each.
    pub(crate) fn queue_seconds(&self, seconds: f64, sequences: u32, now: Duration) -> f64 {
        queueing(self.rate(now), seconds, sequences)
    }

    /// The factor by which the weights have decayed since `seen`.
    fn fade(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.seen).as_secs_f64();
        (-passed / DEMAND_WINDOW.as_secs_f64()).exp()
    }

    /// Predicted seconds that a request of the mean size takes in this placement. A context for embeddings has no
    /// predicted speed, so each of its requests counts as one pass over the weights.
    pub fn seconds(&self, plan: &Plan) -> f64 {
        let [prompt, reply] = self.tokens;
        let Some(speed) = &plan.speed else { return pass(plan) };
        let prompt_speed = speed.prompt.tokens_per_second;
        let prompt_seconds = if prompt_speed > 0.0 { prompt / prompt_speed } else { 0.0 };
        prompt_seconds + reply / speed.tokens_per_second.max(f64::MIN_POSITIVE)
    }
}

/// Expected seconds that a request waits before its text begins, if `rate` requests come in a second, each of them
/// takes `seconds`, and `sequences` texts run at once: the formula of Erlang (C) for random arrivals. If more requests
/// come than can be computed, the queue grows for [`DEMAND_WINDOW`].
fn queueing(rate: f64, seconds: f64, sequences: u32) -> f64 {
    const MOST: f64 = 0.95;
    let places = f64::from(sequences.max(1));
    let offered = rate * seconds;
    let load = offered.min(MOST * places);
    if load.is_nan() || load <= 0.0 {
        return 0.0;
    }
    // The probability that all places would be taken if there were no queue (Erlang B, by its recursion over the
    // places).
    let blocked = (1..=sequences.max(1)).fold(1.0, |blocked, place| {
        let blocked = load * blocked;
        blocked / (f64::from(place) + blocked)
    });
    let waits = places * blocked / (places - load * (1.0 - blocked));
    let steady = waits * seconds / (places - load);
    let growing = (offered - load) / offered * DEMAND_WINDOW.as_secs_f64() / 2.0;
    steady + growing
}

/// Assumed bytes of weights per second in one pass. For a GPU, this is the data sheet's rate of a mid-range card. For a
/// host, it is a tenth of the rate of two channels of DDR4: an embedder computes only batches, and a host computes a
/// batch about ten times as slowly as it reads the weights.
const GPU_BYTES: f64 = 300e9;
const HOST_BYTES: f64 = 40e9 / 10.0;

/// Seconds of one pass over the weights.
fn pass(plan: &Plan) -> f64 {
    let weights = |bytes: u64, rate: f64| bytes as f64 / rate;
    let on_gpus: f64 = plan.gpus().map(|placement| weights(placement.footprint.weights, GPU_BYTES)).sum();
    on_gpus + plan.host().map_or(0.0, |host| weights(host.footprint.weights, HOST_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_long_where_texts_are_slow_or_few_run_at_once() {
        // One text at a time, and busy half of the time: Erlang's formula gives one service time.
        assert!((queueing(0.1, 5.0, 1) - 5.0).abs() < 1e-9, "{}", queueing(0.1, 5.0, 1));
        assert!(queueing(0.1, 5.0, 4) < 0.01);
        assert_eq!((queueing(0.0, 5.0, 1), queueing(0.1, 0.0, 1)), (0.0, 0.0));
        // The longer a text takes, the longer the wait, even if more requests come than can be computed.
        let waits: Vec<f64> = (1..40).map(|seconds| queueing(0.1, f64::from(seconds), 2)).collect();
        assert!(waits.is_sorted() && waits.iter().all(|wait| wait.is_finite()), "{waits:?}");
    }

    #[test]
    fn demand_fades_and_the_next_request_is_expected_to_be_like_the_last_ones() {
        let at = Duration::from_secs;
        let mut demand = Demand::default();
        assert_eq!((demand.rate(at(5)), demand.last()), (0.0, None));
        (0..10).for_each(|minute| demand.count_request(at(60 * minute), minute % 2 == 0));
        let busy = demand.rate(at(540));
        assert!((0.8..1.2).contains(&(busy * 60.0 / 0.65)), "{busy}");
        assert!(demand.rate(at(540 + 3600)) < busy / 300.0);
        assert!((2.0..4.0).contains(&demand.turns(at(540))), "{}", demand.turns(at(540)));
        // If a time lies before the last request, no time counts as passed.
        demand.count_request(at(1), true);
        assert_eq!(demand.last(), Some(at(540)));
        demand.ended(600, 20);
        assert_eq!(demand.tokens, [600.0, 20.0]);
        demand.ended(400, 40);
        assert_eq!(demand.tokens, [500.0, 30.0]);
        (0..40).for_each(|_| demand.ended(100, 10));
        assert!((demand.tokens[0] - 100.0).abs() < 1.0 && (demand.tokens[1] - 10.0).abs() < 0.2);
    }
}
