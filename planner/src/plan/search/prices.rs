//! What a way costs beside its seconds: the little that decides between plans of one speed.

use super::parts::Parts;
use super::table::{Run, Table};

/// The prices of one order of GPUs under one setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prices<'a> {
    pub(super) table: &'a Table,
    pub(super) order: &'a [usize],
    pub(super) parts: &'a Parts<'a>,
    /// What decides between plans of one speed, in seconds.
    pub(super) tie: f64,
}

impl Prices<'_> {
    /// Cost of a run on the `n`th GPU of the order.
    pub(super) fn run(&self, n: usize, run: Run) -> f64 {
        let gpu = self.order[n];
        let seconds = self.seconds(n, run);
        let whole = Run { kept: 0, ..run };
        let bytes = self.table.bytes(gpu, whole, self.parts);
        seconds + self.gpu(bytes, self.table.room(gpu, run))
    }

    /// The least cost of a run with these parts on the host, or more of them.
    pub(super) fn least(&self, n: usize, run: Run) -> f64 {
        let (gpu, first) = (self.order[n], self.order[0]);
        let seconds = self.table.seconds(gpu, first, run, self.parts);
        self.run(n, run) - seconds + self.table.least_seconds(gpu, first, run, self.parts)
    }

    /// Seconds of a run on the `n`th GPU of the order, with the way to it.
    pub(super) fn seconds(&self, n: usize, run: Run) -> f64 {
        let before = n.checked_sub(1).map(|before| self.order[before]);
        let gpu = self.order[n];
        self.table.way(gpu, before) + self.table.seconds(gpu, self.order[0], run, self.parts)
    }

    /// Seconds of the layers before `end` on the host.
    pub(super) fn host_seconds(&self, end: u32) -> f64 {
        self.table.host_seconds(end, self.order.first().copied())
    }

    /// What a way costs more that keeps a single copy of its graph.
    pub(super) fn single_copy(&self) -> f64 {
        self.tie / 2.0
    }

    /// What a GPU costs that is filled so far. By a GPU's share of the largest one's room: what costs least in all is
    /// then what fills every one to the same part.
    fn gpu(&self, bytes: u64, room: u64) -> f64 {
        let fill = (bytes as f64 / room.max(1) as f64).min(1.0);
        let share = (room as f64 / self.table.most_room.max(1) as f64).min(1.0);
        self.tie * (1.0 + share * fill * fill)
    }
}
