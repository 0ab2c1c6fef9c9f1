//! What runs of layers cost on each GPU under one setting, from sums made once: seconds of the workload, and bytes
//! without compute buffers.

use crate::memory::{Estimate, Place};
use crate::plan::Workload;
use crate::plan::halving::least_that;
use crate::plan::speed::SpeedModel;

use super::parts::Parts;

/// A GPU, as far as runs of layers are concerned.
#[derive(Debug, Clone)]
pub(super) struct GpuTable {
    /// Sums over the layers before each: bytes they take, and seconds the workload spends in them.
    bytes: Vec<u64>,
    seconds: Vec<f64>,
    /// Sums over the parts before each: bytes they take here, and seconds more that they cost on the host, by the GPU
    /// that computes with what the host keeps.
    part_bytes: Vec<u64>,
    part_seconds: Vec<Vec<f64>>,
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
        Self { output: f(self.output), borrowing: f(self.borrowing), blocks: f(self.blocks) }
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
        Self { first: n == 0, begin, end, kept }
    }
}

/// All devices.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) gpus: Vec<GpuTable>,
    host_bytes: Vec<u64>,
    /// By the GPU that computes with what the host keeps; the last without one.
    host_seconds: Vec<Vec<f64>>,
    /// Seconds of the workload's ways to each GPU, and to the host.
    crossings: Vec<f64>,
    part_host_bytes: Vec<u64>,
    /// Blocks that the parts before each are of.
    part_blocks: Vec<u32>,
    pub(super) layers: u32,
    /// Bytes of blocks that the largest GPU has room for.
    pub(super) most_room: u64,
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
    /// `estimate` is of all GPUs at once, in the order of the model's rates; `rooms` are what each has for
    /// weights and caches.
    pub(super) fn new(
        estimate: &Estimate,
        rooms: &[Roles],
        parts: &Parts<'_>,
        model: &SpeedModel,
        workload: &Workload,
    ) -> Self {
        let n_layers = model.work().layers.len();
        let layers = u32::try_from(n_layers).unwrap_or(u32::MAX);
        let reply = f64::from(workload.reply);
        let seconds = |place: Place, first: Option<usize>| {
            sums((0..n_layers).map(|il| {
                model.layer_token(il, place, workload.depth()) * reply + model.layer_prompt(il, place, first, workload)
            }))
        };
        let ways = reply + model.computations(workload);
        // The last part of a block is the first to stay: with it the block's activations go to the host and back.
        let next = parts.all.iter().skip(1).map(|part| Some(part.block));
        let opens: Vec<bool> =
            parts.all.iter().zip(next.chain([None])).map(|(part, next)| next != Some(part.block)).collect();
        let part_seconds = |gpu: usize, first: usize| {
            let place = Place::Gpu(gpu);
            let there_and_back = model.there_and_back(place, Place::Host) * ways;
            sums(parts.all.iter().zip(&opens).map(|(part, &opens)| {
                model.moved_token(&part.matrices, place, Place::Host) * reply
                    + model.moved_prompt(&part.matrices, place, Place::Host, Some(first), workload)
                    + if opens { there_and_back } else { 0.0 }
            }))
        };
        let n_gpus = rooms.len();
        let gpus = rooms.iter().enumerate().map(|(gpu, &rooms)| GpuTable {
            bytes: byte_sums((0..layers).map(|il| estimate.layer_bytes(gpu, il))),
            seconds: seconds(Place::Gpu(gpu), None),
            part_bytes: byte_sums(parts.all.iter().map(|part| {
                let bytes = part.weights.iter();
                let bytes = bytes.map(|weight| estimate.weight_bytes(gpu, weight));
                bytes.fold(0, u64::saturating_add)
            })),
            part_seconds: (0..n_gpus).map(|first| part_seconds(gpu, first)).collect(),
            rooms,
        });
        let part_file_bytes = parts.all.iter().map(|part| {
            let bytes = part.weights.iter().map(|weight| weight.bytes);
            bytes.fold(0, u64::saturating_add)
        });
        let firsts = (0..rooms.len()).map(Some).chain([None]);
        let places = (0..rooms.len()).map(Place::Gpu).chain([Place::Host]);
        Self {
            host_bytes: byte_sums((0..layers).map(|il| estimate.host_layer_bytes(il))),
            host_seconds: firsts.map(|first| seconds(Place::Host, first)).collect(),
            crossings: places.map(|place| model.crossing(place) * ways).collect(),
            part_host_bytes: byte_sums(part_file_bytes),
            part_blocks: running(opens.iter().map(|&opens| u32::from(opens)), |sum, one| sum + one),
            layers,
            most_room: rooms.iter().map(|room| room.blocks).max().unwrap_or(0),
            gpus: gpus.collect(),
        }
    }

    /// Prices instead of seconds: a layer on the host costs one, and what GPUs do nothing.
    pub(super) fn price_by_layers(&mut self) {
        for gpu in &mut self.gpus {
            gpu.seconds.fill(0.0);
        }
        for layers in &mut self.host_seconds {
            for (end, cost) in (0_u32..).zip(layers) {
                *cost = f64::from(end);
            }
        }
        self.crossings.fill(0.0);
    }

    /// Seconds of the layers before `end`, on the host, whose large batches the GPU `first` computes if there is one.
    pub(super) fn host_seconds(&self, end: u32, first: Option<usize>) -> f64 {
        let without = self.host_seconds.len() - 1;
        self.host_seconds[first.unwrap_or(without)][end as usize]
    }

    /// Bytes of the layers before `end`, on the host.
    pub(super) fn host_bytes(&self, end: u32) -> u64 {
        self.host_bytes[end as usize]
    }

    /// Seconds of all layers on this GPU.
    pub(super) fn whole_seconds(&self, gpu: usize) -> f64 {
        self.gpus[gpu].seconds[self.layers as usize]
    }

    /// Seconds of a run, without the way to its GPU. `first` is the GPU that computes with what the host keeps.
    pub(super) fn seconds(&self, gpu: usize, first: usize, run: Run, parts: &Parts<'_>) -> f64 {
        let table = &self.gpus[gpu];
        let (from, to) = kept(run, parts);
        let part_seconds = &table.part_seconds[first];
        table.seconds[run.end as usize] - table.seconds[run.begin as usize] + (part_seconds[to] - part_seconds[from])
    }

    /// The same with as many parts more on the host as make it the fastest: with what a faster GPU computes of them in
    /// prompts, a part can gain there.
    pub(super) fn least_seconds(&self, gpu: usize, first: usize, run: Run, parts: &Parts<'_>) -> f64 {
        let before = &self.gpus[gpu].part_seconds[first];
        let (from, _) = kept(run, parts);
        let gained = before[parts.begin(run.begin)..=from].iter();
        let gained = gained.fold(0.0, |most: f64, sum| most.max(sum - before[from]));
        self.seconds(gpu, first, run, parts) - gained
    }

    /// Seconds of the way to a GPU from another one, or from the host.
    pub(super) fn way(&self, gpu: usize, from: Option<usize>) -> f64 {
        let host = self.crossings.len() - 1;
        self.crossings[gpu].max(self.crossings[from.unwrap_or(host)])
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
