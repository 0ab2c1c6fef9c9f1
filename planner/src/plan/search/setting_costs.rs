//! Costs and limits common to all placements of one setting: sums over the layers, and the memory of each device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::machine::Gpu;
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate, PeakSizes};
use crate::plan::speed::{Cached, SpeedModel};
use crate::plan::{Error, kv_cache};

use super::Placements;
use super::order::Order;
use super::parts::with_parts_on_host;
use super::setting::Setting;
use super::table::{GpuTable, ROLES, Run, Table};

/// Sizes of the cache that are tried, as shares of the memory for experts. Two effects compete. Misses fall most
/// steeply at small shares, so there are fewest misses if all layers have equal shares. But each layer with experts on
/// the host waits for the numbers of its experts.
const SHARES: [f64; 12] = [0.995, 0.98, 0.96, 0.93, 0.87, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
/// Larger sizes, as multiples of the memory for experts. Whole layers then move to the host, so the cache serves fewer
/// layers and serves each of them better. In a model much larger than the card, the cache misses so often that the host
/// computes some layers faster.
const LARGER_SHARES: [f64; 6] = [1.2, 1.5, 2.0, 2.7, 3.6, 5.0];
/// The sizes that are tried with several GPUs. There are fewer, because each size needs a search through the orders of
/// the GPUs.
const FEW_SHARES: [f64; 4] = [0.95, 0.8, 0.6, 0.35];

/// Costs and limits common to all placements of one setting.
#[derive(Clone)]
pub(super) struct SettingCosts<'a> {
    pub(super) params: ContextParams,
    /// How many times the ubatch was doubled.
    pub(super) doubled: u32,
    /// How many times the ubatch was halved.
    pub(super) halved: u32,
    /// Whether the cache was moved to the host.
    pub(super) kv_moved: bool,
    /// How many allowed cache types are wider than this one.
    pub(super) smaller_kv: u32,
    /// The share that is added to the seconds because of a smaller type of the cache.
    pub(super) surcharge: f64,
    /// Whether each GPU fuses attention over this cache. A smaller type is never used on a GPU that does not fuse it.
    pub(super) fused: Vec<bool>,
    /// Bytes of weights and caches that are on the host in every placement.
    pub(super) always_on_host: u64,
    /// The share of the experts on the host that a cache on their layer's GPU holds; `None` without a cache.
    pub(super) cached: Option<Cached>,
    /// The estimates made so far, by the order of GPUs.
    estimates: Rc<RefCell<BTreeMap<Order, Rc<Estimate>>>>,
    /// The smallest compute buffers of each GPU, and of the host in placements on that GPU.
    min_compute: Vec<MinCompute>,
    pub(super) table: Table<'a>,
    pub(super) peak_sizes: PeakSizes,
}

/// The smallest compute buffers: on a GPU by the role of its run, and on the host by the host's role. They include the
/// estimate's uncertainty if the plan keeps the uncertainty free.
#[derive(Debug, Clone, Copy)]
struct MinCompute {
    gpu: [u64; ROLES],
    host: [u64; HOST_ROLES],
}

/// The number of roles of the host in a placement with GPUs.
pub(super) const HOST_ROLES: usize = 4;

/// The role of the host in a placement with GPUs: whether the host has layers, and whether it has parts of blocks that
/// are on GPUs. The role determines most of the host's compute buffer.
pub(super) const fn host_role(layers: u32, parts: u32) -> usize {
    2 * (layers > 0) as usize + (parts > 0) as usize
}

impl<'a> SettingCosts<'a> {
    /// The costs of a setting. `model` is the speed model for all GPUs.
    pub(super) fn new(placements: &Placements<'a>, setting: Setting, model: &SpeedModel) -> Result<Self, Error> {
        let (profile, gpus) = (placements.profile, &placements.gpus);
        let Setting { params, doubled, halved, kv_moved, smaller_kv, surcharge } = setting;
        let order: Order = (0..gpus.len()).collect();
        let all = Rc::new(estimate(placements, &order, &params)?);
        let peak_sizes = PeakSizes::new(profile, all.sizes());
        let headroom =
            |gpu: &Gpu| placements.request.headroom.of_gpu(gpu, &peak_sizes, 0, placements.machine.wsl).total();
        let budgets: Vec<u64> = gpus.iter().map(|gpu| gpu.free.saturating_sub(headroom(gpu))).collect();
        let all_on_first = Assignment::by_counts(profile.n_layer(), &[profile.full_offload()]);
        let always_on_host = if gpus.is_empty() { 0 } else { all.stored(&all_on_first).host.total() };
        let mut costs = Self {
            doubled,
            halved,
            kv_moved,
            smaller_kv,
            surcharge,
            fused: gpus.iter().map(|gpu| kv_cache::is_fused(&gpu.backend, profile, &params)).collect(),
            always_on_host,
            table: Table::new(&all, &budgets, &placements.parts, model, &placements.request.work(profile)),
            cached: None,
            estimates: Rc::new(RefCell::new(BTreeMap::from([(order, all)]))),
            min_compute: Vec::with_capacity(gpus.len()),
            peak_sizes,
            params,
        };
        for (index, &gpu) in gpus.iter().enumerate() {
            let alike = |other: &&Gpu| (&other.backend, other.alignment) == (&gpu.backend, gpu.alignment);
            let min_compute = match gpus[..index].iter().position(alike) {
                Some(known) => costs.min_compute[known],
                None => costs.min_compute_of(placements, index)?,
            };
            costs.min_compute.push(min_compute);
        }
        Ok(costs)
    }

    /// The same setting with a cache of experts, for each useful share up to `most`. With one certain share, all
    /// experts are on the host and the GPUs are full. With smaller shares, there is memory for whole blocks; with
    /// larger shares, whole layers move to the host.
    pub(super) fn with_caches(&self, placements: &Placements<'a>, model: &SpeedModel, most: f64) -> Vec<Self> {
        let Some(experts) = placements.profile.hparams.experts else { return Vec::new() };
        let workload = placements.request.work(placements.profile);
        let (shares, larger): (&[f64], &[f64]) = match placements.gpus.len() {
            1 => (&SHARES, &LARGER_SHARES),
            _ => (&FEW_SHARES, &[]),
        };
        let room = self.most_cached();
        let least = f64::from(experts.used + 1) / f64::from(experts.count.max(1));
        let larger = larger.iter().map(|times| times * room).filter(|share| *share <= most);
        // The smallest useful share is included, because it matters for a model whose tokens use a large part of the
        // experts.
        let shares = shares.iter().map(|share| share * room.min(most)).chain(larger).chain([least.min(most)]);
        let shares = shares.filter(|share| (least..1.0).contains(share));
        let with = |share| {
            let cached = Cached { share };
            Self { table: self.table.with_cache(model, &workload, cached), cached: Some(cached), ..self.clone() }
        };
        shares.map(with).collect()
    }

    /// The same setting with the cache that its parameters state. Each GPU reserves a part of the cache's bytes. The
    /// cache is priced as if all experts were on the host.
    pub(super) fn with_stated_cache(self, placements: &Placements<'a>, model: &SpeedModel) -> Self {
        let bytes = self.params.moe_cache_size;
        let experts = self.table.gpus.first().map_or(0, GpuTable::all_parts);
        let share = (bytes as f64 / experts.max(1) as f64).min(1.0);
        let workload = placements.request.work(placements.profile);
        let mut table = self.table.with_cache(model, &workload, Cached { share });
        let budgets: f64 = table.gpus.iter().map(|gpu| gpu.budget as f64).sum();
        for (gpu, without) in table.gpus.iter_mut().zip(&self.table.gpus) {
            let part = bytes as f64 * (gpu.budget as f64 / budgets.max(1.0));
            gpu.reserve(part as u64, without);
        }
        Self { table, ..self }
    }

    /// The share of all experts for which the GPUs have memory, if all blocks are on GPUs without their experts; at
    /// most 1.
    fn most_cached(&self) -> f64 {
        let layers = self.table.layers as usize;
        let parts = self.table.parts.count(0, self.table.layers);
        let role = Run::new(0, 0, self.table.layers, parts).role(self.table.layers, parts);
        let rooms = self.table.gpus.iter().zip(&self.min_compute);
        let room = rooms.map(|(gpu, min_compute)| gpu.budget.saturating_sub(min_compute.gpu[role]));
        let room = room.fold(0, u64::saturating_add);
        let Some(gpu) = self.table.gpus.first() else { return 0.0 };
        let experts = gpu.all_parts();
        let others = gpu.bytes[layers].saturating_sub(experts);
        (room.saturating_sub(others) as f64 / experts.max(1) as f64).min(1.0)
    }

    /// Whether the GPUs have memory for all layers, and for one more layer on each GPU.
    pub(super) fn holds_all(&self) -> bool {
        let layers = self.table.layers as usize;
        let rooms = self.table.gpus.iter().zip(&self.min_compute).map(|(gpu, min_compute)| {
            let compute = min_compute.gpu.into_iter().filter(|bytes| *bytes > 0).min().unwrap_or(0);
            gpu.budget.saturating_sub(compute).saturating_sub(gpu.bytes[layers] / u64::from(self.table.layers))
        });
        let room = rooms.fold(0, u64::saturating_add);
        self.table.gpus.iter().all(|gpu| gpu.bytes[layers] <= room)
    }

    /// The estimate for GPUs in this order, without weights that are placed apart from their layer.
    pub(super) fn estimate(&self, placements: &Placements<'_>, order: &[usize]) -> Result<Rc<Estimate>, Error> {
        if let Some(known) = self.estimates.borrow().get(order) {
            return Ok(Rc::clone(known));
        }
        let estimate = Rc::new(estimate(placements, order, &self.params)?);
        self.estimates.borrow_mut().insert(order.to_vec(), Rc::clone(&estimate));
        Ok(estimate)
    }

    /// The table for compute buffers that exceed the estimate by at least `beyond` bytes: the rooms in this table are
    /// smaller by these bytes.
    pub(super) fn corrected(&self, beyond: i64) -> Table<'a> {
        let mut table = self.table.clone();
        for (table, min_compute) in table.gpus.iter_mut().zip(&self.min_compute) {
            let room = |least: u64| table.budget.saturating_sub(least.saturating_add_signed(beyond));
            table.rooms = min_compute.gpu.map(room);
        }
        table
    }

    /// The smallest compute buffer of the host in placements on these GPUs, by the host's role. Without a GPU it is
    /// unknown, and 0 is returned.
    pub(super) fn min_host_compute(&self, order: &[usize]) -> [u64; HOST_ROLES] {
        let all = order.iter().map(|&gpu| self.min_compute[gpu].host);
        all.reduce(|a, b| std::array::from_fn(|role| a[role].min(b[role]))).unwrap_or_default()
    }

    /// The smallest compute buffers of a GPU, and of the host in placements on that GPU. The samples are placements on
    /// this GPU alone and, if the machine has several GPUs, on three GPUs of its kind. Each placement keeps no parts,
    /// the smallest possible part, or all parts on the host.
    fn min_compute_of(&self, placements: &Placements<'_>, gpu: usize) -> Result<MinCompute, Error> {
        let mut min_compute = MinCompute { gpu: [u64::MAX; ROLES], host: [u64::MAX; HOST_ROLES] };
        let parts = &self.table.parts;
        let last = parts.all.iter().zip(parts.are_last()).filter(|(_, is_last)| *is_last);
        let smallest = last.map(|(part, _)| part).min_by_key(|part| part.bytes);
        let all = (!parts.all.is_empty()).then_some(&parts.all[..]);
        let elsewhere = [Some(&[][..]), smallest.map(std::slice::from_ref), all];
        for order in [vec![gpu], vec![gpu; 3]].into_iter().take(placements.gpus.len().min(2)) {
            let estimate = self.estimate(placements, &order)?;
            for kept in elsewhere.into_iter().flatten() {
                let estimate = match kept.is_empty() && order.len() == 1 {
                    true => Estimate::clone(&estimate),
                    // A graph with a single copy needs the smaller buffer.
                    false => with_parts_on_host(&estimate, kept.iter()),
                };
                let kept = u32::try_from(kept.len()).unwrap_or(u32::MAX);
                for counts in samples(self.table.layers, order.len()) {
                    self.record_sample(placements, &estimate, &counts, kept, &mut min_compute);
                }
            }
        }
        // A role without a sample has no known minimum.
        let known = |bytes: u64| if bytes == u64::MAX { 0 } else { bytes };
        Ok(MinCompute { gpu: min_compute.gpu.map(known), host: min_compute.host.map(known) })
    }

    /// Lowers the minima to the buffers of one placement with `kept` parts on the host.
    fn record_sample(
        &self,
        placements: &Placements<'_>,
        estimate: &Estimate,
        counts: &[u32],
        kept: u32,
        min_compute: &mut MinCompute,
    ) {
        let layers = self.table.layers;
        let (footprints, unsure) = estimate.with_uncertainty(&Assignment::by_counts(layers - 1, counts));
        let on_gpus = placements.probe.is_none() && !placements.request.headroom.is_exact();
        let first = layers - counts.iter().sum::<u32>();
        let mut begin = first;
        for (n, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let end = begin + count;
            let parts = self.table.parts.count(begin, end);
            let role = Run::new(n, begin, end, kept.min(parts)).role(layers, parts);
            let unsure = if on_gpus { unsure.gpus[n] } else { 0 };
            let bytes = footprints.gpus[n].compute.saturating_add(unsure);
            min_compute.gpu[role] = min_compute.gpu[role].min(bytes);
            begin = end;
        }
        let unsure = if placements.probe.is_none() { unsure.host } else { 0 };
        let role = &mut min_compute.host[host_role(first, kept)];
        *role = footprints.host.compute.saturating_add(unsure).min(*role);
    }
}

/// The estimate for GPUs in this order. The weights come from the first setting's estimate, because no setting changes
/// them.
fn estimate(placements: &Placements<'_>, order: &[usize], params: &ContextParams) -> Result<Estimate, Error> {
    let gpus: Vec<&Gpu> = order.iter().map(|&gpu| placements.gpus[gpu]).collect();
    Ok(match placements.setting_costs.first() {
        Some(first) if !std::ptr::eq(&first.params, params) => {
            first.estimate(placements, order)?.with_params(placements.profile, &gpus, params)
        }
        _ => Estimate::new(placements.profile, &gpus, params),
    }?)
}

/// Sample placements: the numbers of layers on one GPU, or on each of three GPUs. The samples have few and many layers,
/// with and without layers on the host. There are also samples with single blocks, because some blocks may keep only a
/// window of the context, and others all of it.
fn samples(layers: u32, gpus: usize) -> impl Iterator<Item = Vec<u32>> {
    let some = [0, 1, 2, 3, 4, 5, 6, layers / 3, layers / 2];
    let rest = move |n: u32| layers.saturating_sub(n);
    let of = move |n: u32| match gpus {
        1 => vec![vec![n], vec![rest(n)]],
        _ => vec![vec![n, 1, rest(n + 1)], vec![1, rest(n + 2), 1], vec![1, rest(n + 1), 0]],
    };
    some.into_iter().flat_map(of).filter(move |counts| (1..=layers).contains(&counts.iter().sum()))
}
