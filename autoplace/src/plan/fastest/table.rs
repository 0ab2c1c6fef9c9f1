//! What runs of layers cost on each GPU under one setting, from sums made once: seconds per token, and bytes without compute buffers.

use crate::memory::Estimate;
use crate::plan::halving::least_that;
use crate::plan::speed::{CROSSING, Rate, Rates, Traffic};

use super::parts::Parts;

/// A GPU, as far as runs of layers are concerned.
#[derive(Debug, Clone)]
pub(super) struct GpuTable {
    /// Sums over the layers before each: bytes they take, and seconds a token spends in them.
    bytes: Vec<u64>,
    seconds: Vec<f64>,
    /// Sums over the parts before each: bytes they take here, and seconds more that they cost on the host.
    part_bytes: Vec<u64>,
    part_seconds: Vec<f64>,
    /// Bytes that weights and caches may take at most, by the role of a run.
    pub(super) rooms: Roles,
}

/// Something of each role that a run may have, on which its compute buffer depends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Roles {
    /// The output layer alone.
    pub(super) output: u64,
    /// Blocks on the first GPU, with others on the host: large batches borrow those.
    pub(super) borrowing: u64,
    /// Blocks otherwise.
    pub(super) blocks: u64,
}

impl Roles {
    pub(super) fn map(self, f: impl Fn(u64) -> u64) -> Self {
        Self {
            output: f(self.output),
            borrowing: f(self.borrowing),
            blocks: f(self.blocks),
        }
    }

    /// The smaller of each.
    pub(super) fn least(self, other: Self) -> Self {
        Self {
            output: self.output.min(other.output),
            borrowing: self.borrowing.min(other.borrowing),
            blocks: self.blocks.min(other.blocks),
        }
    }
}

impl Run {
    /// A run on the `n`th GPU.
    pub(super) const fn of(n: usize, begin: u32, end: u32, kept: u32) -> Self {
        Self {
            first: n == 0,
            begin,
            end,
            kept,
        }
    }
}

/// All devices.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) gpus: Vec<GpuTable>,
    host_bytes: Vec<u64>,
    host_seconds: Vec<f64>,
    part_host_bytes: Vec<u64>,
    /// Blocks that the parts before each are of.
    part_blocks: Vec<u32>,
    pub(super) layers: u32,
}

/// A run of layers on a GPU: from `begin` to before `end`, the last `kept` parts of them on the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Whether its GPU is the first of the order.
    pub(super) first: bool,
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) kept: u32,
}

impl Table {
    /// `estimate` is of all GPUs at once, in the order of `rates`; `rooms` are what each has for weights and caches.
    pub(super) fn new(
        estimate: &Estimate,
        rooms: &[Roles],
        parts: &Parts<'_>,
        traffic: &Traffic,
        rates: &Rates,
        kv_on_host: bool,
    ) -> Self {
        let layers = u32::try_from(traffic.weights.len()).unwrap_or(u32::MAX);
        let each_layer = || {
            let kv = traffic.kv.iter().chain(std::iter::repeat(&0));
            traffic.weights.iter().zip(kv)
        };
        let seconds = |rate: &Rate, on_gpu: bool| {
            sums(each_layer().map(|(&weights, &kv)| {
                let away = kv_on_host && on_gpu && kv > 0;
                let kv_rate = if away { &rates.host } else { rate };
                let back_and_forth = if away { 2.0 * CROSSING } else { 0.0 };
                float(weights) / rate.bytes_per_second
                    + float(kv) / kv_rate.bytes_per_second
                    + rate.seconds_per_layer
                    + back_and_forth
            }))
        };
        // The last part of a block is the first to stay: with it the block's activations go to the host and back.
        let next = parts.all.iter().skip(1).map(|part| Some(part.block));
        let opens: Vec<bool> = parts
            .all
            .iter()
            .zip(next.chain([None]))
            .map(|(part, next)| next != Some(part.block))
            .collect();
        let gpus = rates.gpus.iter().zip(rooms).enumerate();
        let gpus = gpus
            .map(|(gpu, (rate, &rooms))| {
                let slower = 1.0 / rates.host.bytes_per_second - 1.0 / rate.bytes_per_second;
                let part_seconds = parts.all.iter().zip(&opens).map(|(part, &opens)| {
                    let crossings = if opens { 2.0 * CROSSING } else { 0.0 };
                    float(part.used) * slower + crossings
                });
                GpuTable {
                    bytes: byte_sums((0..layers).map(|il| estimate.layer_bytes(gpu, il))),
                    seconds: seconds(rate, true),
                    part_bytes: byte_sums(parts.all.iter().map(|part| {
                        let bytes = part.weights.iter();
                        let bytes = bytes.map(|weight| estimate.weight_bytes(gpu, weight));
                        bytes.fold(0, u64::saturating_add)
                    })),
                    part_seconds: sums(part_seconds),
                    rooms,
                }
            })
            .collect();
        let part_file_bytes = parts.all.iter().map(|part| {
            let bytes = part.weights.iter().map(|weight| weight.bytes);
            bytes.fold(0, u64::saturating_add)
        });
        Self {
            gpus,
            host_bytes: byte_sums((0..layers).map(|il| estimate.host_layer_bytes(il))),
            host_seconds: seconds(&rates.host, false),
            part_host_bytes: byte_sums(part_file_bytes),
            part_blocks: running(opens.iter().map(|&opens| u32::from(opens)), |sum, one| {
                sum + one
            }),
            layers,
        }
    }

    /// Seconds per token of the layers before `end`, on the host.
    pub(super) fn host_seconds(&self, end: u32) -> f64 {
        self.host_seconds[end as usize]
    }

    /// Bytes of the layers before `end`, on the host.
    pub(super) fn host_bytes(&self, end: u32) -> u64 {
        self.host_bytes[end as usize]
    }

    /// Seconds per token of all layers on this GPU.
    pub(super) fn whole_seconds(&self, gpu: usize) -> f64 {
        self.gpus[gpu].seconds[self.layers as usize]
    }

    /// Seconds per token of a run, with the way to its GPU.
    pub(super) fn seconds(&self, gpu: usize, run: Run, parts: &Parts<'_>) -> f64 {
        let table = &self.gpus[gpu];
        let (from, to) = kept(run, parts);
        table.seconds[run.end as usize] - table.seconds[run.begin as usize]
            + (table.part_seconds[to] - table.part_seconds[from])
            + CROSSING
    }

    /// Bytes that a run takes of its GPU, without compute buffers.
    pub(super) fn bytes(&self, gpu: usize, run: Run, parts: &Parts<'_>) -> u64 {
        let table = &self.gpus[gpu];
        let (from, to) = kept(run, parts);
        let layers = table.bytes[run.end as usize].saturating_sub(table.bytes[run.begin as usize]);
        layers.saturating_sub(table.part_bytes[to].saturating_sub(table.part_bytes[from]))
    }

    /// Bytes of a run's parts that are on the host.
    pub(super) fn kept_bytes(&self, run: Run, parts: &Parts<'_>) -> u64 {
        let (from, to) = kept(run, parts);
        self.part_host_bytes[to].saturating_sub(self.part_host_bytes[from])
    }

    /// Blocks of a run that have parts on the host.
    pub(super) fn kept_blocks(&self, run: Run, parts: &Parts<'_>) -> u32 {
        let (from, to) = kept(run, parts);
        self.part_blocks[to] - self.part_blocks[from]
    }

    /// Bytes that a GPU has for a run's weights and caches at most.
    pub(super) fn room(&self, gpu: usize, run: Run) -> u64 {
        let rooms = &self.gpus[gpu].rooms;
        if run.begin + 1 >= self.layers {
            rooms.output
        } else if run.first && run.begin > 0 {
            rooms.borrowing
        } else {
            rooms.blocks
        }
    }

    /// The run with the fewest parts on the host for which the rest finds room; `None` where all are too few.
    pub(super) fn roomiest(&self, gpu: usize, run: Run, parts: &Parts<'_>) -> Option<Run> {
        let room = self.room(gpu, run);
        let fits = |kept| self.bytes(gpu, Run { kept, ..run }, parts) <= room;
        let most = parts.count(run.begin, run.end);
        if !fits(most) {
            return None;
        }
        let kept = least_that(0, most, fits);
        Some(Run { kept, ..run })
    }
}

/// The parts of a run that are on the host, as a range of all.
fn kept(run: Run, parts: &Parts<'_>) -> (usize, usize) {
    let to = parts.begin(run.end);
    (to - run.kept as usize, to)
}

/// The sums before each, and of all.
fn sums(each: impl Iterator<Item = f64>) -> Vec<f64> {
    running(each, |sum, one| sum + one)
}

/// The same of bytes; saturates.
fn byte_sums(each: impl Iterator<Item = u64>) -> Vec<u64> {
    running(each, u64::saturating_add)
}

fn running<T: Copy + Default>(each: impl Iterator<Item = T>, add: impl Fn(T, T) -> T) -> Vec<T> {
    let mut sum = T::default();
    let after = each.map(|one| {
        sum = add(sum, one);
        sum
    });
    std::iter::once(T::default()).chain(after).collect()
}

#[allow(clippy::cast_precision_loss)] // bytes of a model: to a millionth of a millionth
const fn float(bytes: u64) -> f64 {
    bytes as f64
}
