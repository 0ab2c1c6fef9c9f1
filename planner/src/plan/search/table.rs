//! Costs of runs of layers on each GPU under one setting, from prefix sums: seconds of the workload, and bytes without
//! compute buffers.

use std::ops::Add;
use std::rc::Rc;

use crate::memory::{Estimate, Place};
use crate::plan::Workload;
use crate::plan::halving::least_that;
use crate::plan::speed::{Cached, Moved, SpeedModel};

use super::parts::{Part, Parts};

/// A run of layers on a GPU, from `begin` on and before `end`. The last `kept` parts of its blocks are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    /// Whether the GPU is the first of its order.
    pub(super) first: bool,
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) kept: u32,
}

/// The number of roles of a run.
pub(super) const ROLES: usize = 15;

impl Run {
    /// A run on the `n`th GPU of an order.
    pub(super) const fn new(n: usize, begin: u32, end: u32, kept: u32) -> Self {
        Self { first: n == 0, begin, end, kept }
    }

    /// The role of the run, which determines most of its compute buffer. It depends on three facts: whether the run is
    /// the output layer alone or has blocks; whether its GPU is the first one, which computes large batches with the
    /// host's weights; and whether none, some or all of its `parts` are on the host.
    pub(super) const fn role(&self, layers: u32, parts: u32) -> usize {
        let place = match (self.first, self.begin > 0, self.begin + 1 >= layers) {
            (true, true, false) => 0,
            (true, true, true) => 1,
            (true, false, _) => 2,
            (false, _, false) => 3,
            (false, _, true) => 4,
        };
        let kept = match self.kept {
            0 => 0,
            kept if kept < parts => 1,
            _ => 2,
        };
        3 * place + kept
    }
}

/// Prefix sums of one GPU.
#[derive(Debug, Clone)]
pub(super) struct GpuTable {
    /// Sums over the layers before each index: bytes on the GPU, and seconds of the workload.
    pub(super) bytes: Vec<u64>,
    seconds: Vec<f64>,
    /// Sums over the parts before each index: bytes on the GPU, and extra seconds for a part on the host. There is a
    /// list of seconds for each GPU that may compute with the host's weights.
    part_bytes: Vec<u64>,
    part_seconds: Vec<Vec<f64>>,
    /// Running maxima of `part_seconds`.
    part_peaks: Vec<Vec<f64>>,
    /// Bytes for everything on the GPU.
    pub(super) budget: u64,
    /// Bytes that are left for weights and caches, by the role of a run.
    pub(super) rooms: [u64; ROLES],
}

impl GpuTable {
    /// Bytes of all parts on the GPU.
    pub(super) fn all_parts(&self) -> u64 {
        self.part_bytes.last().copied().unwrap_or(0)
    }

    /// Subtracts the bytes of a cache from the budget, and copies the bytes of the parts from the table without a
    /// cache.
    pub(super) fn reserve(&mut self, cache: u64, without: &Self) {
        self.budget = self.budget.saturating_sub(cache);
        self.part_bytes.clone_from(&without.part_bytes);
    }
}

/// Prefix sums of all devices.
#[derive(Debug, Clone)]
pub(super) struct Table<'a> {
    pub(super) parts: Rc<Parts<'a>>,
    pub(super) gpus: Vec<GpuTable>,
    /// Bytes on the host for the layers before each index.
    pub(super) host_bytes: Vec<u64>,
    /// Seconds on the host, for each GPU that may compute with the host's weights. The last entry is the case that no
    /// GPU does.
    host_seconds: Vec<Vec<f64>>,
    /// Seconds of the workload's transfers to each GPU. The last entry is for the host.
    crossings: Vec<f64>,
    part_host_bytes: Vec<u64>,
    pub(super) layers: u32,
    /// The largest budget of a GPU.
    pub(super) most: u64,
}

impl<'a> Table<'a> {
    /// The table of a model. `estimate` covers all GPUs at once, in the order of the model's rates. `budgets` contains
    /// the usable bytes of each GPU.
    pub(super) fn new(
        estimate: &Estimate,
        budgets: &[u64],
        parts: &Rc<Parts<'a>>,
        model: &SpeedModel,
        workload: &Workload,
    ) -> Self {
        let (n_layers, n_gpus) = (model.layers(), budgets.len());
        let layers = u32::try_from(n_layers).unwrap_or(u32::MAX);
        let (reply, depths) = (f64::from(workload.reply), workload.depths());
        let tokens = |place: Place| -> Vec<f64> {
            (0..n_layers).map(|il| model.layer_token(il, place, depths) * reply).collect()
        };
        let seconds = |tokens: &[f64], place: Place, first: Option<usize>| {
            let layers = tokens.iter().enumerate();
            sums(layers.map(|(il, token)| token + model.layer_prompt(il, place, first, workload)), f64::add)
        };
        let ways = reply + model.computations(workload);
        let part_seconds = |gpu: usize| part_seconds(parts, (gpu, n_gpus), model, workload, None);
        let part_bytes = |part: &Part<'_>, gpu: usize| {
            part.weights.iter().map(|weight| estimate.weight_bytes(gpu, weight)).fold(0, u64::saturating_add)
        };
        let gpus = budgets.iter().enumerate().map(|(gpu, &budget)| {
            let part_seconds = part_seconds(gpu);
            GpuTable {
                part_peaks: part_seconds.iter().map(|seconds| peaks(seconds)).collect(),
                bytes: sums((0..layers).map(|il| estimate.layer_bytes(Place::Gpu(gpu), il)), u64::saturating_add),
                seconds: seconds(&tokens(Place::Gpu(gpu)), Place::Gpu(gpu), None),
                part_bytes: sums(parts.all.iter().map(|part| part_bytes(part, gpu)), u64::saturating_add),
                part_seconds,
                budget,
                rooms: [budget; ROLES],
            }
        });
        let on_host = tokens(Place::Host);
        let firsts = (0..n_gpus).map(Some).chain([None]);
        let places = (0..n_gpus).map(Place::Gpu).chain([Place::Host]);
        Self {
            parts: Rc::clone(parts),
            host_bytes: sums((0..layers).map(|il| estimate.layer_bytes(Place::Host, il)), u64::saturating_add),
            host_seconds: firsts.map(|first| seconds(&on_host, Place::Host, first)).collect(),
            crossings: places.map(|place| model.rate(place).crossing * ways).collect(),
            part_host_bytes: sums(parts.all.iter().map(|part| part.bytes), u64::saturating_add),
            layers,
            most: budgets.iter().copied().max().unwrap_or(0),
            gpus: gpus.collect(),
        }
    }

    /// The same table with a cache on each GPU for a share of the experts on the host.
    pub(super) fn with_cache(&self, model: &SpeedModel, workload: &Workload, cached: Cached) -> Self {
        let mut table = self.clone();
        let n_gpus = table.gpus.len();
        for (gpu, table) in table.gpus.iter_mut().enumerate() {
            table.part_seconds = part_seconds(&self.parts, (gpu, n_gpus), model, workload, Some(cached));
            table.part_peaks = table.part_seconds.iter().map(|seconds| peaks(seconds)).collect();
            // If experts are on the host, bytes on the GPU become free, and the cache takes a part of these bytes.
            for bytes in &mut table.part_bytes {
                *bytes = (*bytes as f64 * (1.0 - cached.share)) as u64;
            }
        }
        table
    }

    /// Replaces the seconds by numbers of layers: each layer on the host costs 1, and each layer on a GPU costs 0.
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

    /// Multiplies all seconds by `factor`.
    pub(super) fn count_seconds(&mut self, factor: f64) {
        let scale = |seconds: &mut Vec<f64>| seconds.iter_mut().for_each(|second| *second *= factor);
        for gpu in &mut self.gpus {
            scale(&mut gpu.seconds);
            gpu.part_seconds.iter_mut().for_each(scale);
            gpu.part_peaks.iter_mut().for_each(scale);
        }
        self.host_seconds.iter_mut().for_each(scale);
        scale(&mut self.crossings);
    }

    /// Seconds of the layers before `end` on the host. If `first` is a GPU, this GPU computes large batches.
    pub(super) fn host_seconds(&self, end: u32, first: Option<usize>) -> f64 {
        let without = self.host_seconds.len() - 1;
        self.host_seconds[first.unwrap_or(without)][end as usize]
    }

    /// Seconds of all layers on the fastest device.
    pub(super) fn fastest(&self) -> f64 {
        let gpus = self.gpus.iter().map(|gpu| gpu.seconds[self.layers as usize]);
        gpus.fold(self.host_seconds(self.layers, None), f64::min)
    }

    /// Seconds of a run without the transfer to its GPU. `first` is the GPU that computes with the host's weights.
    pub(super) fn seconds(&self, gpu: usize, first: usize, run: Run) -> f64 {
        let table = &self.gpus[gpu];
        let (from, to) = self.kept(run);
        let part_seconds = &table.part_seconds[first];
        table.seconds[run.end as usize] - table.seconds[run.begin as usize] + (part_seconds[to] - part_seconds[from])
    }

    /// How many seconds can be saved at most if further parts of the run stay on the host. Prompts gain if a faster GPU
    /// computes with these parts.
    pub(super) fn most_saved(&self, gpu: usize, first: usize, run: Run) -> f64 {
        let (before, peaks) = (&self.gpus[gpu].part_seconds[first], &self.gpus[gpu].part_peaks[first]);
        let (from, _) = self.kept(run);
        // Usually each further part on the host costs time.
        if peaks[from] <= before[from] {
            return 0.0;
        }
        let saved = before[self.parts.begin(run.begin)..=from].iter();
        saved.fold(0.0, |most: f64, sum| most.max(sum - before[from]))
    }

    /// Seconds of the transfer of activations to a GPU, from another GPU or from the host.
    pub(super) fn way(&self, gpu: usize, from: Option<usize>) -> f64 {
        let host = self.crossings.len() - 1;
        self.crossings[gpu].max(self.crossings[from.unwrap_or(host)])
    }

    /// Bytes of a run on its GPU, without compute buffers.
    pub(super) fn bytes(&self, gpu: usize, run: Run) -> u64 {
        let table = &self.gpus[gpu];
        let layers = between(&table.bytes, (run.begin as usize, run.end as usize));
        layers.saturating_sub(between(&table.part_bytes, self.kept(run)))
    }

    /// Bytes of a run's parts on the host.
    pub(super) fn kept_bytes(&self, run: Run) -> u64 {
        between(&self.part_host_bytes, self.kept(run))
    }

    /// Maximum bytes that a GPU has for the weights and caches of a run.
    pub(super) fn room(&self, gpu: usize, run: Run) -> u64 {
        let parts = self.parts.count(run.begin, run.end);
        self.gpus[gpu].rooms[run.role(self.layers, parts)]
    }

    /// The run with `kept` parts on the host, or, if it does not fit, with the smallest larger number of parts with
    /// which it fits; `None` if there is none.
    pub(super) fn fitting(&self, gpu: usize, run: Run) -> Option<Run> {
        let with = |kept| Run { kept, ..run };
        let fits = |kept| self.bytes(gpu, with(kept)) <= self.room(gpu, with(kept));
        let most = self.parts.count(run.begin, run.end);
        if run.kept <= most && fits(run.kept) {
            return Some(run);
        }
        let fewest = run.kept + 1;
        (fewest <= most && fits(most)).then(|| with(least_that(fewest, most, fits)))
    }

    /// Index range of the run's parts on the host.
    fn kept(&self, run: Run) -> (usize, usize) {
        let to = self.parts.begin(run.end);
        (to - run.kept as usize, to)
    }
}

/// Extra seconds of parts on the host, as prefix sums, for each GPU that may compute with the host's weights. `gpu` is
/// the GPU of the part's block, out of `n_gpus` GPUs. A cache on that GPU may serve the parts.
fn part_seconds(
    parts: &Parts<'_>,
    (gpu, n_gpus): (usize, usize),
    model: &SpeedModel,
    workload: &Workload,
    cached: Option<Cached>,
) -> Vec<Vec<f64>> {
    let (place, reply) = (Place::Gpu(gpu), f64::from(workload.reply));
    let ways = reply + model.computations(workload);
    let moved: Vec<Moved<'_>> = { parts.all.iter() }
        .map(|part| Moved { matrices: &part.matrices, place, other: Place::Host, cached })
        .collect();
    let tokens: Vec<f64> = moved.iter().map(|&moved| model.moved_token(moved) * reply).collect();
    // The first part that a block keeps on the host is the block's last part. This part adds the transfer of the
    // block's activations to the host and back.
    let opens: Vec<bool> = parts.are_last().collect();
    let by_first = |first: usize| {
        let parts = moved.iter().zip(&opens).zip(&tokens).map(|((&moved, &opens), token)| {
            let way = if opens { model.way_of(moved) * ways } else { 0.0 };
            token + model.moved_prompt(moved, Some(first), workload) + way
        });
        sums(parts, f64::add)
    };
    (0..n_gpus).map(by_first).collect()
}

/// Running maxima of prefix sums.
fn peaks(seconds: &[f64]) -> Vec<f64> {
    sums(seconds.iter().copied().skip(1), f64::max)
}

/// Bytes between two prefix sums.
fn between(sums: &[u64], (from, to): (usize, usize)) -> u64 {
    sums[to].saturating_sub(sums[from])
}

/// Prefix sums (or another fold) of the values, with the total as the last entry.
fn sums<T: Copy + Default>(each: impl Iterator<Item = T>, add: fn(T, T) -> T) -> Vec<T> {
    let mut sum = T::default();
    let mut sums = vec![sum];
    for one in each {
        sum = add(sum, one);
        sums.push(sum);
    }
    sums
}
