//! Two ways to do the same work, turn by turn in one process: what a ratio is made of.

use std::time::{Duration, Instant};

const DEMO_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
pub(crate) const PROMPT: &str = "And it came to pass";
pub(crate) const SEED: u32 = 42;

/// Rounds at least, at most, and how long further ones may take: a difference of a microsecond wants many.
const ROUNDS: (usize, usize, Duration) = (60, 2000, Duration::from_secs(30));

/// Whether something is measured: `cargo test` runs benches too, once, to show that they work.
pub(crate) fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Tokens of a text at most.
pub(crate) fn tokens() -> usize {
    if is_measured() { 200 } else { 20 }
}

/// The time that some tokens took.
pub(crate) type Run = (Duration, usize);

/// The model to measure with: the demo's, or the one that `AUTOPLACE_BENCH_MODEL` names.
pub(crate) fn model_path() -> String {
    std::env::var("AUTOPLACE_BENCH_MODEL").unwrap_or_else(|_| DEMO_MODEL.into())
}

/// Medians over pairs of runs: microseconds per token of each, how many more the first takes, and how many
/// times as fast it is.
pub(crate) struct Paired {
    pub(crate) rounds: usize,
    pub(crate) first: f64,
    pub(crate) second: f64,
    #[allow(dead_code, reason = "each benchmark reports what it is about")]
    pub(crate) difference: f64,
    pub(crate) speed_ratio: f64,
    /// By how many microseconds the first's quickest round is slower than the second's: what else a machine does only
    /// ever adds to both.
    #[allow(dead_code, reason = "each benchmark reports what it is about")]
    pub(crate) quickest_difference: f64,
}

/// Runs both by turns.
pub(crate) fn paired<T>(of: &mut T, first: impl Fn(&mut T) -> Run, second: impl Fn(&mut T) -> Run) -> Paired {
    let (least, most, longest) = if is_measured() { ROUNDS } else { (1, 1, Duration::ZERO) };
    // Both caches and both code paths warm.
    assert_eq!(first(of).1, second(of).1, "both generate the same number of tokens");
    let mut pairs = Vec::new();
    let began = Instant::now();
    for round in 0..most {
        if round >= least && began.elapsed() > longest {
            break;
        }
        // Who goes first alternates, so that a drifting clock speed favours nobody.
        let (a, b) = if round % 2 == 0 {
            let a = first(of);
            (a, second(of))
        } else {
            let b = second(of);
            (first(of), b)
        };
        pairs.push((per_token(a), per_token(b)));
    }
    let quickest = |times: fn(&(f64, f64)) -> f64| {
        let times = pairs.iter().map(times);
        times.fold(f64::INFINITY, f64::min)
    };
    Paired {
        rounds: pairs.len(),
        first: median(pairs.iter().map(|pair| pair.0)),
        second: median(pairs.iter().map(|pair| pair.1)),
        difference: median(pairs.iter().map(|pair| pair.0 - pair.1)),
        speed_ratio: median(pairs.iter().map(|pair| pair.1 / pair.0)),
        quickest_difference: quickest(|pair| pair.0) - quickest(|pair| pair.1),
    }
}

/// Microseconds per token.
fn per_token((time, tokens): (Duration, usize)) -> f64 {
    time.as_secs_f64() * 1e6 / tokens as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
