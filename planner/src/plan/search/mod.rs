//! The search for the best placement that fits: the placement with the most predicted tokens per second, or with the
//! most layers on GPUs.
//!
//! A placement consists of a [setting](settings) (type and place of the cache, and the ubatch), an [`Order`] of GPUs, a
//! run of layers on each GPU, and the [`Parts`] of blocks that stay on the host. Under [`Policy::Fastest`], its cost is
//! the workload's time in seconds, predicted by [`speed`](super::speed). Under [`Policy::MostLayers`], its cost is the
//! number of layers on the host.
//!
//! Small surcharges decide between placements of equal cost. One *tie* is a thousandth of the least cost. Each GPU
//! costs one tie, or up to two if it is full. A single copy of the graph costs half a tie. Each doubling or halving of
//! the ubatch costs ten ties, and so does a cache that is moved to the host. A smaller cache type multiplies the
//! seconds by a factor ([`kv_cache`](super::kv_cache)). If the cost is a number of layers, each of these steps costs a
//! part of a layer ([`SMALLER_KV_IN_LAYERS`]).
//!
//! The search tries placements in ascending cost ([`path`]) until one fits by the estimate. So no cheaper placement
//! fits. It skips placements that do not fit even with the smallest compute buffer of their kind ([`setting_costs`]).

mod choice;
mod correction;
mod footprints;
mod infeasible_runs;
mod nearest;
mod order;
mod parts;
mod path;
mod prices;
mod probed;
mod setting;
mod setting_costs;
mod table;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use crate::machine::{Gpu, Machine};
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Headroom};
use crate::profile::ModelProfile;

use super::fit::Levels;
use super::speed::{Rates, SpeedModel};
use super::{Error, HostParts, Policy, Probe, Request, Workload};

use self::correction::{Corrections, MAX_SLACK_BYTES};
use self::infeasible_runs::InfeasibleRuns;
pub(super) use self::order::MAX_GPUS;
use self::order::{Order, orders};
use self::parts::Parts;
use self::path::{CostToGo, Heap, OrderContext, Path};
use self::prices::Prices;
use self::probed::Probed;
use self::setting::{Setting, settings};
use self::setting_costs::{HOST_ROLES, SettingCosts};
use self::table::Table;

/// One tie, as a share of the least cost.
const TIE: f64 = 1e-3;

/// Cost, in ties, of each doubling or halving of the ubatch, and of a cache that is moved to the host. Each of these
/// steps must save a hundredth of the time: a larger ubatch takes memory that a longer context may use, and the other
/// steps change a setting that the request prefers.
const SETTING_STEP_IN_TIES: f64 = 10.0;

/// Under [`Policy::MostLayers`], the cost in layers of each smaller cache type, of a cache on the host, and of each
/// halving of the ubatch. To be worthwhile, a combination of such steps must gain at least a whole layer.
const SMALLER_KV_IN_LAYERS: f64 = 0.4;
const KV_MOVED_IN_LAYERS: f64 = 0.15;
const HALVING_IN_LAYERS: f64 = 0.005;

/// Maximum number of steps of a search: seven times the number of steps that the slowest of 2,000 random plans needed.
const MAX_STEPS: usize = 1 << 18;

/// The search space of placements, with the costs of each setting.
pub(super) struct Placements<'a> {
    profile: &'a ModelProfile,
    machine: &'a Machine,
    request: &'a Request,
    policy: Policy,
    /// The probe; without one, the estimate's uncertainty stays free.
    probe: Option<&'a dyn Probe>,
    /// The GPUs with free memory, except those in `slow`.
    gpus: Vec<&'a Gpu>,
    /// The GPUs slower than the host, if the policy is speed; otherwise empty.
    slow: Vec<&'a Gpu>,
    orders: Vec<Order>,
    parts: Rc<Parts<'a>>,
    setting_costs: Vec<SettingCosts<'a>>,
    /// The cache on GPUs for experts whose weights are on the host.
    cache: SearchedCache,
    tie: f64,
    /// Number of estimates made for whole paths.
    estimates_made: Cell<usize>,
}

/// The cache of experts in the placements of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SearchedCache {
    None,
    /// A cache of the best size, up to this share of the experts on the host.
    UpTo(f64),
    /// A cache of the size that the parameters state.
    Stated,
}

/// Maximum number of refusals of an order of GPUs. After these refusals, the search drops the order, because the cause
/// must be the devices or the model.
const MAX_REFUSALS: usize = 2;

/// The facts that are known and the limits that apply when a search starts.
#[derive(Default)]
struct SearchConstraints {
    corrections: Corrections,
    /// Paths that the search must not return again.
    known: Vec<Path>,
    /// The known paths that llama.cpp refused.
    refused: Vec<Path>,
    /// Upper limit of the cost, exclusive.
    below: Option<f64>,
    /// Whether each GPU may lack some bytes by the estimate, because a probe will decide whether the path fits.
    has_slack: bool,
}

impl SearchConstraints {
    /// The smallest numbers of bytes by which a path of this setting exceeds its estimate on a GPU, and on the host.
    fn least_beyond(&self, setting: usize) -> (i64, i64) {
        let (gpu, host) = self.corrections.least(setting);
        (gpu.saturating_sub_unsigned(if self.has_slack { MAX_SLACK_BYTES } else { 0 }), host)
    }

    /// Whether the search still tries this order of GPUs with the setting's cache type.
    fn is_tried(&self, setting_costs: &[SettingCosts<'_>], setting: usize, order: usize) -> bool {
        let kv = |setting: usize| setting_costs[setting].smaller_kv;
        let alike = |path: &&Path| path.order == order && kv(path.setting) == kv(setting);
        self.refused.iter().filter(alike).count() < MAX_REFUSALS
    }
}

/// A path that fits, or the path with the fewest missing bytes.
#[derive(Debug, Clone)]
struct Found {
    path: Path,
    cost: f64,
    levels: Levels,
}

impl<'a> Placements<'a> {
    /// The placements without a cache of experts. `params` are the request's parameters, with every default resolved;
    /// `model` is the speed model for these parameters. [`Policy::MostLayers`] does not double the ubatch and splits no
    /// block.
    pub(super) fn new(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        (params, model): (&ContextParams, &SpeedModel),
        policy: Policy,
        probe: Option<&'a dyn Probe>,
    ) -> Result<Self, Error> {
        Self::build(profile, machine, request, (params, model), (policy, SearchedCache::None), probe)
    }

    /// The placements with a cache of experts on GPUs, for the fastest plan. Each block keeps either all of its experts
    /// on the host, or no expert. `most` is the largest share of the experts that is tried.
    pub(super) fn with_cache(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        context: (&ContextParams, &SpeedModel),
        most: f64,
        probe: Option<&'a dyn Probe>,
    ) -> Result<Self, Error> {
        Self::build(profile, machine, request, context, (Policy::Fastest, SearchedCache::UpTo(most)), probe)
    }

    /// Like [`with_cache`](Self::with_cache), but with a cache of the size that the parameters state.
    pub(super) fn with_stated_cache(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        context: (&ContextParams, &SpeedModel),
        probe: Option<&'a dyn Probe>,
    ) -> Result<Self, Error> {
        Self::build(profile, machine, request, context, (Policy::Fastest, SearchedCache::Stated), probe)
    }

    fn build(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        (params, model): (&ContextParams, &SpeedModel),
        (policy, cache): (Policy, SearchedCache),
        probe: Option<&'a dyn Probe>,
    ) -> Result<Self, Error> {
        let has_cache = cache != SearchedCache::None;
        let by_layers = policy == Policy::MostLayers;
        let free: Vec<&Gpu> = machine.gpus.iter().filter(|gpu| gpu.free > 0).collect();
        let n_gpu_layers = *request.gpu_layers.range(profile.full_offload()).start();
        if n_gpu_layers > 0 && free.is_empty() {
            return Err(Error::NoGpu { n_gpu_layers, why: machine.why_no_gpu() });
        }
        let (gpus, slow) = match by_layers {
            true => (free, Vec::new()),
            false => split_off_slow(free, profile, machine, (params, model), &request.work(profile)),
        };
        let rates = Rates::for_devices(&gpus, &machine.host);
        let parts = if by_layers { HostParts::None } else { request.host_parts };
        // A larger ubatch does not speed up the CPU.
        let may_double = !by_layers && !gpus.is_empty();
        let mut orders = orders(&gpus, &rates.gpus, request.gpu_layers.is_exact());
        // The order of GPUs does not change a cost in layers, and people expect the machine's order.
        orders.retain(|order| !by_layers || order.is_sorted());
        // This order has no GPUs: the whole model is on the host.
        orders.push(Order::new());
        // A cache needs a GPU.
        orders.retain(|order| !has_cache || !order.is_empty());
        let parts = Rc::new(if has_cache { Parts::whole_experts(profile) } else { Parts::new(profile, parts) });
        let (tie, setting_costs, estimates_made) = (TIE, Vec::new(), Cell::default());
        let mut all = Self {
            profile,
            machine,
            request,
            policy,
            probe,
            gpus,
            slow,
            orders,
            parts,
            setting_costs,
            cache,
            tie,
            estimates_made,
        };
        // If there are several GPUs, the orders of the GPUs must be searched for each setting, so fewer settings are
        // tried.
        let settings = match has_cache && all.gpus.len() > 1 {
            true => vec![Setting::given(params)],
            false => settings(request, profile, params),
        };
        for setting in settings {
            if setting.doubled > 0 && !may_double {
                continue;
            }
            let model = model.over(profile, &setting.params, rates.clone());
            let costs = SettingCosts::new(&all, setting, &model)?;
            let variants = match cache {
                SearchedCache::None => vec![costs],
                SearchedCache::UpTo(most) => costs.with_caches(&all, &model, most),
                SearchedCache::Stated => vec![costs.with_stated_cache(&all, &model)],
            };
            for mut costs in variants {
                match by_layers {
                    true => costs.table.price_by_layers(),
                    false => costs.table.count_seconds(1.0 + costs.surcharge),
                }
                all.setting_costs.push(costs);
            }
            // If several GPUs hold all layers, they process the ubatches of a prompt as a pipeline. Of larger ubatches,
            // fewer would overlap.
            let holds_all = all.setting_costs.first().is_some_and(SettingCosts::holds_all);
            if all.gpus.len() > 1 && holds_all {
                break;
            }
        }
        if !by_layers {
            let fastest = all.setting_costs.iter().map(|costs| costs.table.fastest());
            all.tie = TIE * fastest.fold(f64::INFINITY, f64::min);
        }
        Ok(all)
    }

    /// The cheapest path that fits by the corrected estimate.
    fn search(&self, constraints: &SearchConstraints) -> Result<Option<Found>, Error> {
        let beyond: Vec<(i64, i64)> =
            (0..self.setting_costs.len()).map(|setting| constraints.least_beyond(setting)).collect();
        let setting_costs = self.setting_costs.iter().zip(&beyond);
        let tables: Vec<Table<'_>> = setting_costs.map(|(costs, (gpu, _))| costs.corrected(*gpu)).collect();
        // The contexts are indexed by setting, then by order.
        let (mut heap, mut contexts) = (Heap::default(), Vec::new());
        for (setting, table) in tables.iter().enumerate() {
            let (extra, mut runs) = (self.steps(setting), BTreeMap::new());
            let (_, on_host) = beyond[setting];
            for order in 0..self.orders.len() {
                let is_tried =
                    self.is_fused(setting, order) && constraints.is_tried(&self.setting_costs, setting, order);
                let host_rooms = self.host_rooms(setting, order, on_host).filter(|_| is_tried);
                contexts.push(host_rooms.map(|host_rooms| {
                    let prices = self.prices(table, order);
                    let context = OrderContext { prices, to_go: CostToGo::new(&prices, &mut runs), host_rooms };
                    heap.begin((setting, order), self.on_host(), extra, &context);
                    context
                }));
            }
        }
        let mut infeasible = InfeasibleRuns::new(&self.parts);
        for _ in 0..MAX_STEPS {
            let Some(node) = heap.pop_below(constraints.below.unwrap_or(f64::INFINITY)) else {
                return Ok(None);
            };
            let Some(context) = &contexts[node.path.setting * self.orders.len() + node.path.order] else {
                continue;
            };
            let full = infeasible.infeasible_gpu(&node.path);
            let is_lost = full.is_some() && infeasible.is_settled(&node.path);
            // If more parts of the last run move to the host, an earlier run does not become smaller.
            let by_last = full.is_some_and(|n| n + 1 == node.path.runs.len());
            if !node.requeued && (by_last || !is_lost) {
                heap.keep_more(&node, context);
            }
            if is_lost {
                continue;
            }
            if node.gain > 0.0 {
                heap.requeue(node);
            } else if node.path.runs.len() < context.prices.order.len() {
                heap.extend(&node, context);
            } else {
                if full.is_none() && !constraints.known.contains(&node.path) {
                    let levels = self.levels(&node.path, constraints)?;
                    if levels.fit() {
                        return Ok(Some(Found { path: node.path, cost: node.bound, levels }));
                    }
                    let lacking = levels.gpus.iter().enumerate().filter(|(_, level)| level.missing() > 0);
                    lacking.for_each(|(n, _)| infeasible.add(&node.path, n));
                }
                heap.keep_single_copy(&node, context);
            }
        }
        tracing::debug!("the search for a placement has looked at {} of them", self.estimates_made.get());
        Ok(None)
    }

    /// The allowed numbers of layers on the host.
    fn on_host(&self) -> RangeInclusive<u32> {
        let layers = self.profile.full_offload();
        let on_gpus = self.request.gpu_layers.range(layers);
        layers - on_gpus.end()..=layers - on_gpus.start()
    }

    /// The surcharge of a setting.
    fn steps(&self, setting: usize) -> f64 {
        let costs = &self.setting_costs[setting];
        let kv_moved = u32::from(costs.kv_moved);
        match self.policy {
            Policy::Fastest => SETTING_STEP_IN_TIES * self.tie * f64::from(costs.doubled + costs.halved + kv_moved),
            Policy::MostLayers => {
                SMALLER_KV_IN_LAYERS * f64::from(costs.smaller_kv)
                    + KV_MOVED_IN_LAYERS * f64::from(kv_moved)
                    + HALVING_IN_LAYERS * f64::from(costs.halved)
            }
        }
    }

    /// Whether the cache has the widest type or whether all GPUs of an order fuse attention over it.
    fn is_fused(&self, setting: usize, order: usize) -> bool {
        let costs = &self.setting_costs[setting];
        costs.smaller_kv == 0 || self.orders[order].iter().all(|&gpu| costs.fused[gpu])
    }

    /// The parameters of the preferred setting; `None` if no size of the cache of experts helps.
    fn wanted(&self) -> Option<&ContextParams> {
        self.setting_costs.first().map(|costs| &costs.params)
    }

    fn prices<'p>(&'p self, table: &'p Table<'p>, order: usize) -> Prices<'p> {
        Prices { table, order: &self.orders[order], tie: self.tie }
    }

    /// Bytes that the host has for the layers left to it, by the host's role, if its compute buffer exceeds the
    /// estimate by at least `beyond` bytes. `None` if the host has too little memory even for the weights and caches
    /// that are always on it.
    fn host_rooms(&self, setting: usize, order: usize, beyond: i64) -> Option<[Option<u64>; HOST_ROLES]> {
        let (costs, order) = (&self.setting_costs[setting], &self.orders[order]);
        let gpus = || order.iter().map(|&gpu| self.gpus[gpu]);
        let host = &self.machine.host;
        let mut headroom = Headroom::of_host(host, &costs.peak_sizes, !order.is_empty(), 0);
        headroom.prompt_store = self.request.prompt_store;
        let of_order: Vec<&Gpu> = gpus().collect();
        if self.request.unmapped_if_paging(self.profile, &of_order).is_some() {
            // Mapped weights need no memory on the host. The final check of a path covers the remaining bytes.
            return Some([Some(u64::MAX); HOST_ROLES]);
        }
        let room = host.available.checked_sub(headroom.total().saturating_add(costs.always_on_host))?;
        // A GPU that shares the host's memory takes from the host all bytes beyond its own pool.
        let own = gpus().map(Gpu::own_free).fold(0, u64::saturating_add);
        let whole = costs.table.host_bytes[costs.table.layers as usize];
        if gpus().any(Gpu::shares_host_memory) && whole > room.saturating_add(own) {
            return None;
        }
        let left = |least: u64| room.checked_sub(least.saturating_add_signed(beyond));
        Some(costs.min_host_compute(order).map(left))
    }
}

/// Separates the GPUs that would take longer than the host for the whole model from all other GPUs.
fn split_off_slow<'a>(
    gpus: Vec<&'a Gpu>,
    profile: &ModelProfile,
    machine: &Machine,
    (params, model): (&ContextParams, &SpeedModel),
    workload: &Workload,
) -> (Vec<&'a Gpu>, Vec<&'a Gpu>) {
    let seconds = |gpus: &[&Gpu]| {
        let model = model.over(profile, params, Rates::for_devices(gpus, &machine.host));
        let counts: Vec<u32> = gpus.iter().map(|_| profile.full_offload()).collect();
        model.seconds(&Assignment::by_counts(profile.n_layer(), &counts), workload)
    };
    let on_host = seconds(&[]);
    gpus.into_iter().partition(|gpu| seconds(&[gpu]) <= on_host)
}
