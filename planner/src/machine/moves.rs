//! Measured times of loading one model's file and of moving the running model on this machine. The times of loads and
//! moves flow in. Plans with two placements, and later moves, use these times.

use serde::{Deserialize, Serialize};

use super::conditions::{RateConditions, is_worse};

/// The rates and times of the parts of a move, measured for one file on one machine; empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MoveRates {
    /// Bytes of weights per second, from a file in the page cache to the places of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_file: Option<MoveFigure>,
    /// Bytes of the file per second, from the disk to the weights' places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_file: Option<MoveFigure>,
    /// Bytes per second at which the state of texts is saved and restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<MoveFigure>,
    /// Nanoseconds of everything else: the release of the model, and the creation of contexts, compute buffers and the
    /// warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_ns: Option<MoveFigure>,
}

/// A figure of [`MoveRates`], with the conditions under which it was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MoveFigure {
    /// Bytes per second, or nanoseconds.
    pub value: u64,
    /// The day of the measurement, and other work at the same time.
    pub conditions: RateConditions,
}

impl MoveFigure {
    /// A figure that was measured under these conditions.
    pub const fn new(value: u64, conditions: RateConditions) -> Self {
        Self { value, conditions }
    }

    /// The rate of `amount` in `seconds`. `None` if either is zero, or too small to be measured.
    pub fn rate(amount: u64, seconds: f64, conditions: &RateConditions) -> Option<Self> {
        let value = amount as f64 / seconds;
        (value.is_finite() && value >= 1.0).then(|| Self::new(value as u64, conditions.clone()))
    }
}

impl MoveRates {
    /// Adds later figures. Of two figures, the less disturbed figure is kept or, at equal disturbance, the later one.
    pub fn merge(&mut self, later: Self) {
        let put = |mine: &mut Option<MoveFigure>, later: Option<MoveFigure>| {
            let Some(later) = later.filter(|later| later.value > 0) else { return };
            let is_kept = |mine: &MoveFigure| is_worse(Some(&later.conditions), Some(&mine.conditions));
            if !mine.as_ref().is_some_and(is_kept) {
                *mine = Some(later);
            }
        };
        put(&mut self.warm_file, later.warm_file);
        put(&mut self.cold_file, later.cold_file);
        put(&mut self.state, later.state);
        put(&mut self.rest_ns, later.rest_ns);
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The additional seconds of a load if this many bytes of the file are not in the page cache; `None` if no load
    /// from the disk was measured.
    pub fn cold_seconds(&self, uncached: u64) -> Option<f64> {
        let seconds = |figure: &MoveFigure| 1.0 / figure.value.max(1) as f64;
        let cold = self.cold_file.as_ref().map(seconds)?;
        // A warm load also copies and rearranges these bytes.
        let warm = self.warm_file.as_ref().map_or(0.0, seconds);
        Some(uncached as f64 * (cold - warm).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::{MoveFigure, MoveRates};
    use crate::machine::RateConditions;

    fn under(waited: u32, at: u64) -> RateConditions {
        RateConditions { at, waited: Some(waited), ..RateConditions::default() }
    }

    #[test]
    fn a_figure_that_was_measured_beside_other_work_does_not_replace_a_quiet_one() {
        let of = |value, waited, at| {
            let warm_file = Some(MoveFigure::new(value, under(waited, at)));
            MoveRates { warm_file, ..MoveRates::default() }
        };
        let mut known = MoveRates::default();
        for (later, kept) in [
            (of(10, 60, 1), 10),
            (of(20, 60, 2), 20),
            (of(30, 70, 3), 20),
            (of(40, 0, 4), 40),
            (of(50, 60, 5), 40),
            (of(60, 1, 6), 60),
            // Nothing was measured.
            (of(0, 0, 7), 60),
            (MoveRates::default(), 60),
        ] {
            known.merge(later);
            assert_eq!(known.warm_file.as_ref().unwrap().value, kept);
        }
    }

    #[test]
    fn the_extra_time_of_a_cold_load_excludes_that_of_a_warm_one() {
        let figure = |value| Some(MoveFigure::new(value, RateConditions::default()));
        let mut rates = MoveRates { warm_file: figure(4_000), ..MoveRates::default() };
        assert_eq!(rates.cold_seconds(8_000), None);
        rates.cold_file = figure(1_000);
        assert_eq!(rates.cold_seconds(8_000), Some(6.0));
        // The file was measured to load faster from the disk than from the page cache.
        rates.warm_file = figure(500);
        assert_eq!(rates.cold_seconds(8_000), Some(0.0));
        rates.warm_file = None;
        assert_eq!(rates.cold_seconds(8_000), Some(8.0));
    }

    #[test]
    fn a_rate_needs_bytes_and_time() {
        let rate = |bytes, seconds| MoveFigure::rate(bytes, seconds, &under(0, 0)).map(|figure| figure.value);
        assert_eq!(rate(10, 2.0), Some(5));
        for (bytes, seconds) in [(0, 1.0), (1, 0.0), (1, 5.0), (1, f64::NAN)] {
            assert_eq!(rate(bytes, seconds), None, "{bytes} {seconds}");
        }
    }
}
