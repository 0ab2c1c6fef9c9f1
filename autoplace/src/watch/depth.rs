//! Computes the cost of a token at each depth. With this cost, a long text is not mistaken for a slow model.

use crate::load::speed_model;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::profile::ModelProfile;

/// Number of depths at which the speed model is sampled. The model is linear between them, except where sliding windows
/// end.
const DEPTHS: u32 = 16;

/// The cost of a token at each depth. It has no unit, because only ratios matter. Without points, the cost is unknown
/// and constant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DepthCost {
    /// Depths in ascending order, with their positive costs.
    points: Vec<(u32, f64)>,
}

impl DepthCost {
    /// The curve of cost by depth through these points. Each point is a depth and its cost; their order does not
    /// matter. The cost is linear between two points and constant beyond the last. Points without a positive cost are
    /// ignored.
    pub fn new(points: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let usable = |point: &(u32, f64)| point.1.is_finite() && point.1 > 0.0;
        let mut points: Vec<_> = points.into_iter().filter(usable).collect();
        points.sort_by_key(|point| point.0);
        points.dedup_by_key(|point| point.0);
        Self { points }
    }

    /// The cost for a plan on this machine, from the [speed model](speed_model) of [`plan::speed`](crate::plan::speed).
    /// `None` if there is no such model.
    pub fn for_plan(profile: &ModelProfile, plan: &Plan, machine: &Machine) -> Option<Self> {
        let (model, assignment) = speed_model(profile, plan, machine)?;
        let n_ctx = plan.context.n_ctx;
        let depths = (0..=DEPTHS).map(|step| n_ctx / DEPTHS * step);
        Some(Self::new(depths.map(|depth| (depth, model.token_seconds(&assignment, depth)))))
    }

    /// Whether the cost is known.
    pub fn is_known(&self) -> bool {
        !self.points.is_empty()
    }

    /// The cost of a token at this depth; 1 if unknown.
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
    fn the_cost_is_linear_between_known_depths_and_constant_beyond_them() {
        // Points without a positive cost are ignored.
        let nothing = [(500, 0.0), (700, f64::NAN), (800, -1.0)];
        let cost = DepthCost::new([(1000, 3.0), (0, 1.0), (2000, 4.0)].into_iter().chain(nothing));
        for (depth, expected) in [(0.0, 1.0), (500.0, 2.0), (1000.0, 3.0), (1500.0, 3.5), (9999.0, 4.0)] {
            assert!((cost.at(depth) - expected).abs() < 1e-9, "{depth}");
        }
    }
}
