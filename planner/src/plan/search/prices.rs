//! The cost of a path: its seconds, and the surcharges that decide between placements of equal speed.

use super::table::{Run, Table};

/// A GPU's runs, indexed by their first layer. Each entry has the run's end, the least cost without the transfer to the
/// GPU, and the bytes left to the host.
pub(super) type Runs = Vec<Vec<(u32, f64, u64)>>;

/// The costs of one order of GPUs under one setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prices<'a> {
    pub(super) table: &'a Table<'a>,
    pub(super) order: &'a [usize],
    /// One tie, in seconds (or layers).
    pub(super) tie: f64,
}

impl Prices<'_> {
    /// Cost of a run on the `n`th GPU of the order.
    pub(super) fn run(&self, n: usize, run: Run) -> f64 {
        self.seconds(n, run) + self.gpu(self.order[n], run)
    }

    /// The runs that fit on the `n`th GPU of the order.
    pub(super) fn runs(&self, n: usize) -> Runs {
        let (table, gpu, first) = (self.table, self.order[n], self.order[0]);
        let least = |run: Run| {
            let cost = table.seconds(gpu, first, run) + self.gpu(gpu, run) - table.most_saved(gpu, first, run);
            (run.end, cost, table.kept_bytes(run))
        };
        let all = (0..table.layers).map(|begin| {
            // The last GPU takes all remaining layers. More layers need more memory, so the first run that does not fit
            // ends the list.
            let least_end = if n + 1 == self.order.len() { table.layers } else { begin + 1 };
            (least_end..=table.layers)
                .map_while(|end| table.fitting(gpu, Run::new(n, begin, end, 0)))
                .map(least)
                .collect()
        });
        all.collect()
    }

    /// Seconds of a run on the `n`th GPU of the order, with the transfer of activations to it.
    pub(super) fn seconds(&self, n: usize, run: Run) -> f64 {
        self.way(n) + self.table.seconds(self.order[n], self.order[0], run)
    }

    /// Seconds of the transfer of activations to the `n`th GPU of the order.
    pub(super) fn way(&self, n: usize) -> f64 {
        let before = n.checked_sub(1).map(|before| self.order[before]);
        self.table.way(self.order[n], before)
    }

    /// Seconds of the layers before `end` on the host.
    pub(super) fn host_seconds(&self, end: u32) -> f64 {
        self.table.host_seconds(end, self.order.first().copied())
    }

    /// Surcharge of a single copy of the graph.
    pub(super) fn single_copy(&self) -> f64 {
        self.tie / 2.0
    }

    /// Surcharge of a GPU with this run. It grows with the square of the filled share and with the GPU's share of the
    /// largest budget, so that the total cost is least if all GPUs are filled to the same share.
    fn gpu(&self, gpu: usize, run: Run) -> f64 {
        let bytes = self.table.bytes(gpu, Run { kept: 0, ..run }) as f64;
        let budget = self.table.gpus[gpu].budget.max(1) as f64;
        let fill = (bytes / budget).min(1.0);
        let share = budget / self.table.most.max(1) as f64;
        self.tie * (1.0 + share * fill * fill)
    }
}
