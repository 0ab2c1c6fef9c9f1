//! The paths that are one step better than the chosen path and explain the choice. If no path fits, this module finds
//! the path that comes closest to fitting.

use crate::plan::Error;
use crate::plan::halving::least_that;

use super::path::Path;
use super::table::Run;
use super::{Found, Placements, SearchConstraints};

impl Placements<'_> {
    /// Among the paths that are one step better and do not fit, the path with the fewest missing bytes.
    pub(super) fn nearest(&self, path: &Path, constraints: &SearchConstraints) -> Result<Option<Found>, Error> {
        self.least_of(self.better(path), constraints, |found| !found.levels.fit())
    }

    /// Among the paths that `counts` accepts, the path with the fewest missing bytes.
    fn least_of(
        &self,
        paths: impl IntoIterator<Item = Path>,
        constraints: &SearchConstraints,
        counts: impl Fn(&Found) -> bool,
    ) -> Result<Option<Found>, Error> {
        let found = paths.into_iter().map(|path| {
            let levels = self.levels(&path, constraints)?;
            Ok(Found { cost: self.cost(&path), path, levels })
        });
        let found: Vec<Found> = found.collect::<Result<_, Error>>()?;
        Ok(found.into_iter().filter(counts).min_by_key(|found| found.levels.lack()))
    }

    /// Among the paths that are not known yet, the path with the fewest missing bytes. Only two kinds of paths with
    /// whole layers count: those on GPUs in the machine's order, and those on the host alone.
    pub(super) fn least_lacking(&self, constraints: &SearchConstraints) -> Result<Option<Found>, Error> {
        let in_place = |order: &usize| self.orders[*order].is_sorted();
        let settings = (0..self.setting_costs.len()).filter(|&setting| self.setting_costs[setting].doubled == 0);
        let places = settings.flat_map(|setting| (0..self.orders.len()).map(move |order| (setting, order)));
        let tried = places.filter(|&(setting, order)| {
            self.is_fused(setting, order) && constraints.is_tried(&self.setting_costs, setting, order)
        });
        let paths = tried.filter(|(_, order)| in_place(order)).flat_map(|(setting, order)| {
            let paths = self.on_host().filter_map(move |first| self.spread((setting, order), first));
            paths.filter(|path| !constraints.known.contains(path))
        });
        self.least_of(paths, constraints, |_| true)
    }

    /// Divides the layers from `first` on among the GPUs of an order, in proportion to their budgets; `None` if there
    /// are more GPUs than layers.
    fn spread(&self, (setting, order): (usize, usize), first: u32) -> Option<Path> {
        let table = &self.setting_costs[setting].table;
        let budget_of = |gpu: usize| table.gpus[gpu].budget;
        let gpus = &self.orders[order];
        let left = table.layers - first;
        if left < u32::try_from(gpus.len()).ok()? || (gpus.is_empty() && left > 0) {
            return None;
        }
        let all: u64 = gpus.iter().map(|&gpu| budget_of(gpu)).sum();
        let (mut runs, mut begin, mut budget) = (Vec::new(), first, 0);
        for ((n, &gpu), behind) in gpus.iter().enumerate().zip((0..gpus.len() as u32).rev()) {
            budget += budget_of(gpu);
            let share = budget as f64 / all.max(1) as f64;
            let bytes = |end| table.bytes(gpu, Run::new(n, first, end, 0)) as f64;
            let last = table.layers - behind;
            let end = if behind == 0 {
                last
            } else {
                let wanted = bytes(table.layers) * share;
                least_that(begin + 1, last, |end| bytes(end) >= wanted)
            };
            runs.push((end, 0));
            begin = end;
        }
        Some(Path { setting, order, first, runs, single_copy: false })
    }

    /// The cost of a path.
    pub(super) fn cost(&self, path: &Path) -> f64 {
        let prices = self.prices(&self.setting_costs[path.setting].table, path.order);
        let runs = path.runs().enumerate().map(|(n, run)| prices.run(n, run));
        let single_copy = if path.single_copy { prices.single_copy() } else { 0.0 };
        self.steps(path.setting) + prices.host_seconds(path.first) + runs.sum::<f64>() + single_copy
    }

    /// The paths that are one step better. They have one part less on the host or, if no parts are there, one layer
    /// less. If the whole model is on the host, the next step puts the output layer on a GPU. If the graph has a single
    /// copy, the next step is the same path with four copies. The list is empty if the request fixes the number of
    /// layers.
    pub(super) fn better(&self, path: &Path) -> Vec<Path> {
        let layers = self.profile.full_offload();
        let min_on_host = *self.on_host().start();
        if self.request.gpu_layers.is_exact() || (path.runs.is_empty() && min_on_host == layers) {
            return Vec::new();
        }
        if path.runs.is_empty() {
            let is_single = |order: &usize| self.orders[*order].len() == 1 && self.is_fused(path.setting, *order);
            let single = (0..self.orders.len()).filter(is_single);
            let output =
                |order| Path { order, first: layers.saturating_sub(1), runs: vec![(layers, 0)], ..path.clone() };
            return single.map(output).collect();
        }
        if path.single_copy {
            return vec![Path { single_copy: false, ..path.clone() }];
        }
        let kept = (0..path.runs.len()).filter(|&n| path.runs[n].1 > 0);
        let fewer = kept.map(|n| {
            let mut fewer = path.clone();
            fewer.runs[n].1 -= 1;
            fewer
        });
        let mut better: Vec<Path> = fewer.collect();
        if better.is_empty() && path.first > min_on_host {
            // Either the first GPU takes the layer, or it passes its last layer on to the next GPU, and so on.
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
