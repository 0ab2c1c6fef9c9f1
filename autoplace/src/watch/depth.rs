//! How much longer a token takes the more are before it, so that a long text is not taken for a slow model.

use crate::load::speed_model;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::profile::ModelProfile;

/// Depths at which the speed model is asked: between them it is linear but for sliding windows, which end early.
const DEPTHS: u32 = 16;

/// What a token costs by the tokens before it, in whatever unit: only quotients count. Empty: nothing is known, every
/// depth costs the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DepthCost {
    /// Depths in rising order, with the cost of each, which is above 0.
    points: Vec<(u32, f64)>,
}

impl DepthCost {
    /// By points of depth and cost, in any order. Between two it is linear, beyond the last as at the last; a cost that
    /// is not above 0 does not count.
    pub fn new(points: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let usable = |point: &(u32, f64)| point.1.is_finite() && point.1 > 0.0;
        let mut points: Vec<_> = points.into_iter().filter(usable).collect();
        points.sort_by_key(|point| point.0);
        points.dedup_by_key(|point| point.0);
        Self { points }
    }

    /// Of a plan for this machine, by the model of [`plan::speed`](crate::plan::speed); `None` where that is
    /// [none](speed_model).
    pub fn of(profile: &ModelProfile, plan: &Plan, machine: &Machine) -> Option<Self> {
        let (model, assignment) = speed_model(profile, plan, machine)?;
        let n_ctx = plan.context.n_ctx;
        let depths = (0..=DEPTHS).map(|step| n_ctx / DEPTHS * step);
        Some(Self::new(depths.map(|depth| (depth, model.token_seconds(&assignment, depth)))))
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        !self.points.is_empty()
    }

    /// The cost of a token with so many before it; 1 where nothing is known.
    pub fn at(&self, depth: f64) -> f64 {
        let after = self.points.partition_point(|point| f64::from(point.0) <= depth);
        match (after.checked_sub(1).and_then(|before| self.points.get(before)), self.points.get(after)) {
            (Some(&(from, low)), Some(&(to, high))) => {
                let (from, to) = (f64::from(from), f64::from(to));
                low + (high - low) * (depth - from) / (to - from)
            }
            (Some(&(_, only)), None) | (None, Some(&(_, only))) => only,
            (None, None) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DepthCost;

    #[test]
    fn it_is_linear_between_what_is_known_and_flat_beyond() {
        // What is no cost is left out.
        let nothing = [(500, 0.0), (700, f64::NAN), (800, -1.0)];
        let cost = DepthCost::new([(1000, 3.0), (0, 1.0), (2000, 4.0)].into_iter().chain(nothing));
        for (depth, expected) in [(0.0, 1.0), (500.0, 2.0), (1000.0, 3.0), (1500.0, 3.5), (9999.0, 4.0)] {
            assert!((cost.at(depth) - expected).abs() < 1e-9, "{depth}");
        }
    }
}
