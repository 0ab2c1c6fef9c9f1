//! Compares the times of two ways to do the same work, which take turns in one process.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bare_llama::in_turns;

const DEMO_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
#[allow(dead_code, reason = "each benchmark reports what it is about")]
pub(crate) const PROMPT: &str = "And it came to pass";
#[allow(dead_code, reason = "each benchmark reports what it is about")]
pub(crate) const SEED: u32 = 42;

/// The minimum and maximum number of rounds, and the time after which no further round begins. A difference of a
/// microsecond needs many rounds. `AUTOPLACE_BENCH_ROUNDS` replaces the minimum, for models whose rounds take seconds.
const ROUNDS: (usize, usize, Duration) = (60, 2000, Duration::from_secs(30));

/// Whether the bench measures. `cargo test` also runs each bench, for one round, to show that it works.
pub(crate) fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Maximum number of tokens of a text.
#[allow(dead_code, reason = "each benchmark reports what it is about")]
pub(crate) fn tokens() -> usize {
    if is_measured() { 200 } else { 20 }
}

/// A time, and the number of tokens that were generated in it.
pub(crate) type Run = (Duration, usize);

/// The model to measure with: the demo model, or the model that `AUTOPLACE_BENCH_MODEL` names.
pub(crate) fn model_path() -> String {
    std::env::var("AUTOPLACE_BENCH_MODEL").unwrap_or_else(|_| DEMO_MODEL.into())
}

/// Medians over pairs of runs: the microseconds per token of each way, the difference between the first way and the
/// second, and the ratio of the two speeds.
pub(crate) struct Paired {
    pub(crate) rounds: usize,
    pub(crate) first: f64,
    pub(crate) second: f64,
    #[allow(dead_code, reason = "each benchmark reports what it is about")]
    pub(crate) difference: f64,
    pub(crate) speed_ratio: f64,
    /// The 95 % confidence interval of the ratio (Wilcoxon's signed ranks).
    #[allow(dead_code, reason = "each benchmark reports what it is about")]
    pub(crate) interval: (f64, f64),
    /// Microseconds by which the fastest round of the first way is slower than the fastest round of the second. The
    /// fastest rounds are compared, because other work of the machine can only slow a round down.
    #[allow(dead_code, reason = "each benchmark reports what it is about")]
    pub(crate) quickest_difference: f64,
}

/// Runs both ways in turns.
pub(crate) fn paired<T>(of: &mut T, first: impl Fn(&mut T) -> Run, second: impl Fn(&mut T) -> Run) -> Paired {
    let (least, most, longest) = if is_measured() { ROUNDS } else { (1, 1, Duration::ZERO) };
    let given = std::env::var("AUTOPLACE_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let least = given.filter(|_| is_measured()).unwrap_or(least);
    // The first runs warm up the caches and the code paths.
    assert_eq!(first(of).1, second(of).1, "both generate the same number of tokens");
    let began = Instant::now();
    let goes_on = |round| round < most && (round < least || began.elapsed() <= longest);
    let runs = in_turns(of, goes_on, |of| Ok::<_, Infallible>(first(of)), |of| Ok(second(of)));
    let Ok(runs) = runs;
    let pairs: Vec<(f64, f64)> = runs.into_iter().map(|(a, b)| (per_token(a), per_token(b))).collect();
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
        interval: interval(&pairs.iter().map(|pair| pair.1 / pair.0).collect::<Vec<_>>()),
        quickest_difference: quickest(|pair| pair.0) - quickest(|pair| pair.1),
    }
}

/// Microseconds per token.
fn per_token((time, tokens): (Duration, usize)) -> f64 {
    time.as_secs_f64() * 1e6 / tokens as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    bare_llama::median(values).expect("there is a round")
}

/// The 95 % confidence interval of the centre of these values: the range of the means of all pairs of values. The most
/// extreme means are left out, as many as Wilcoxon's signed ranks allow (normal approximation).
fn interval(values: &[f64]) -> (f64, f64) {
    let mut means: Vec<f64> = Vec::new();
    for (at, one) in values.iter().enumerate() {
        means.extend(values[..=at].iter().map(|other| (one + other) / 2.0));
    }
    means.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let extreme = n * (n + 1.0) / 4.0 - 1.96 * (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let at = (extreme.max(0.0) as usize).min(means.len() / 2);
    (means[at], means[means.len() - 1 - at])
}
