//! What would be one step better than a path, and why it is not taken.

use crate::plan::Error;

use super::path::Path;
use super::{Fastest, Found, Given};

impl Fastest<'_> {
    /// Of what would be one step better than a path and does not fit, that which lacks the least.
    pub(super) fn nearest(&self, path: &Path, given: &Given) -> Result<Option<Found>, Error> {
        let mut nearest: Option<Found> = None;
        for path in self.better(path) {
            let levels = self.levels(&path, given)?;
            let less = |known: &Found| levels.lack() < known.levels.lack();
            if !levels.fit() && nearest.as_ref().is_none_or(less) {
                nearest = Some(Found {
                    cost: self.cost(&path),
                    path,
                    levels,
                });
            }
        }
        Ok(nearest)
    }

    /// What a path costs.
    pub(super) fn cost(&self, path: &Path) -> f64 {
        let ground = &self.grounds[path.setting];
        let prices = self.prices(&ground.table, &self.orders[path.order]);
        let runs = path.runs().enumerate().map(|(n, run)| prices.run(n, run));
        let single_copy = if path.single_copy {
            prices.single_copy()
        } else {
            0.0
        };
        let steps = self.tie * f64::from(ground.setting.steps);
        steps + prices.host_seconds(path.first) + runs.sum::<f64>() + single_copy
    }

    /// What would be one step better: a part less on the host, else a layer less; of the host alone a GPU with
    /// the output layer.
    pub(super) fn better(&self, path: &Path) -> Vec<Path> {
        let layers = self.profile.full_offload();
        if path.runs.is_empty() {
            let single = (0..self.orders.len()).filter(|&order| self.orders[order].len() == 1);
            let output = |order| Path {
                order,
                first: layers.saturating_sub(1),
                runs: vec![(layers, 0)],
                ..path.clone()
            };
            return single.map(output).collect();
        }
        if path.single_copy {
            let single_copy = false;
            return vec![Path {
                single_copy,
                ..path.clone()
            }];
        }
        let kept = (0..path.runs.len()).filter(|&n| path.runs[n].1 > 0);
        let fewer = kept.map(|n| {
            let mut fewer = path.clone();
            fewer.runs[n].1 -= 1;
            fewer
        });
        let mut better: Vec<Path> = fewer.collect();
        if better.is_empty() && path.first > 0 {
            // The layer goes to the first GPU, or that one's last to the next, and so on.
            for n in 0..path.runs.len() {
                let mut longer = path.clone();
                longer.first -= 1;
                for run in &mut longer.runs[..n] {
                    run.0 -= 1;
                }
                better.push(longer);
            }
        }
        better
    }
}
