//! Compares the speeds of two placements, and distinguishes a real difference from noise.

use std::collections::BTreeSet;
use std::fmt;

use super::measurement::{Measurement, Row};

/// The speed of `after` as a multiple of the speed of `before`. It is the mean over rounds; each round loads both
/// placements.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ratio {
    /// The computation, in llama-bench's notation: `tg256 @ d2048`.
    pub name: String,
    /// The tokens per second of `after` divided by the tokens per second of `before`: the geometric mean of the rounds.
    pub ratio: f64,
    /// The 95 % confidence interval of the true ratio (Student's t over the logarithms of the rounds); `None` with
    /// fewer than two rounds.
    pub interval: Option<(f64, f64)>,
}

impl Measurement {
    /// Compares the rows of two points: prompts, and generation at each depth.
    ///
    /// `None` if a point with one of these names is missing.
    pub fn compare(&self, before: &str, after: &str) -> Option<Vec<Ratio>> {
        let (one, other) = (self.point(before)?, self.point(after)?);
        let same = |row: &Row| other.rows.iter().find(|candidate| candidate.name() == row.name());
        Some(one.rows.iter().filter_map(|row| Ratio::between(row, same(row)?)).collect())
    }
}

impl Ratio {
    fn between(before: &Row, after: &Row) -> Option<Self> {
        let rounds: BTreeSet<u32> = before.samples.iter().map(|sample| sample.round).collect();
        // A longer time means a lower speed.
        let logs = rounds.into_iter().filter_map(|round| Some(mean_log(before, round)? - mean_log(after, round)?));
        let (mean, error) = mean_and_error(&logs.collect::<Vec<f64>>())?;
        let interval = error.map(|error| ((mean - error).exp(), (mean + error).exp()));
        Some(Self { name: before.name(), ratio: mean.exp(), interval })
    }

    /// Whether the difference may be noise: the interval contains 1, or there is no interval.
    pub fn is_noise(&self) -> bool {
        self.interval.is_none_or(|(low, high)| low <= 1.0 && high >= 1.0)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.3} times as fast", self.name, self.ratio)?;
        let noise = if self.is_noise() { ": no difference beyond noise" } else { "" };
        match self.interval {
            None => f.write_str(" (a single round: no interval)"),
            Some((low, high)) => write!(f, " ({low:.3} to {high:.3}){noise}"),
        }
    }
}

/// The mean of the logarithms of a round's nanoseconds.
fn mean_log(row: &Row, round: u32) -> Option<f64> {
    let of_round = row.samples.iter().filter(|sample| sample.round == round);
    let logs: Vec<f64> = of_round.map(|sample| (sample.ns.max(1) as f64).ln()).collect();
    mean_and_error(&logs).map(|(mean, _)| mean)
}

/// The mean, and half the width of its 95 % confidence interval.
fn mean_and_error(values: &[f64]) -> Option<(f64, Option<f64>)> {
    /// Student's t at 97.5 % for 1, 2, ... degrees of freedom. Beyond the table, 2.0 approximates the normal
    /// distribution.
    const T: [f64; 12] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179];
    let n = values.len();
    if n == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let Some(freedom) = n.checked_sub(2) else { return Some((mean, None)) };
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let t = T.get(freedom).copied().unwrap_or(2.0);
    Some((mean, Some(t * (squares / (n - 1) as f64 / n as f64).sqrt())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, Sample};

    /// A point with one generation of this many milliseconds in each round.
    fn row(ms: &[u64]) -> Row {
        let mut point = Point::default();
        for (round, ms) in (0..).zip(ms) {
            point.add([0, 10, 0], Sample { round, ns: ms * 1_000_000 }, "", None);
        }
        point.rows.remove(0)
    }

    #[test]
    fn twice_the_speed_is_measured_on_a_machine_that_slows_down() {
        let (before, after) = (row(&[100, 150, 200, 400]), row(&[50, 75, 101, 199]));
        let ratio = Ratio::between(&before, &after).unwrap();
        let (low, high) = ratio.interval.unwrap();
        assert!((ratio.ratio - 2.0).abs() < 0.01 && low > 1.97 && high < 2.03, "{ratio}");
        assert!(!ratio.is_noise());
    }

    #[test]
    fn a_difference_within_the_spread_is_noise() {
        let ratio = Ratio::between(&row(&[100, 110, 95, 105]), &row(&[104, 100, 99, 108])).unwrap();
        assert!(ratio.is_noise() && ratio.to_string().contains("noise"), "{ratio}");
        let once = Ratio::between(&row(&[100]), &row(&[50])).unwrap();
        assert!(once.is_noise() && (once.ratio - 2.0).abs() < 1e-9, "{once}");
    }

    #[test]
    fn the_interval_is_that_of_students_t() {
        // The mean of 1 to 5 is 3, the standard error 0.7071, and t is 2.776.
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((mean - 3.0).abs() < 1e-12 && (error.unwrap() - 1.9629).abs() < 1e-3);
        assert_eq!(mean_and_error(&[]), None);
        assert_eq!(mean_and_error(&[7.0]), Some((7.0, None)));
    }
}
