//! The best safe placement: of all that fit every device the one with the most predicted tokens per second, or with the
//! most layers on GPUs.
//!
//! A placement is a [setting](settings) (the type of the cache, tokens computed at once), an [`Order`] of GPUs, a run
//! of layers on each of them, and the [`Parts`] of blocks that stay on the host. It costs the seconds of the workload
//! by [`speed`](super::speed) ([`Policy::Fastest`]), or one for each layer on the host ([`Policy::MostLayers`]). A
//! thousandth of the least cost for each of these decides between equals: a GPU, up to twice if it is full; a single
//! copy of the graph, by half. Each doubling of the tokens computed at once costs a hundredth, and with a smaller type
//! of the cache all seconds count more ([`kv_cache`](super::kv_cache)); by layers, such a type costs half a layer.
//!
//! There is one search. It tries placements in the order of their cost ([`path`]) until one fits by the estimate: no
//! cheaper one does. It skips what has no room even with the smallest compute buffer of its kind ([`ground`]).

mod choice;
mod footprints;
mod ground;
mod nearest;
mod order;
mod overfull;
mod parts;
mod path;
mod prices;
mod probed;
mod setting;
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

use self::ground::{Ground, HOST_ROLES};
pub(super) use self::order::MOST_GPUS;
use self::order::{Order, orders};
use self::overfull::Overfull;
use self::parts::Parts;
use self::path::{Around, Heap, Onward, Path};
use self::prices::Prices;
use self::probed::Probed;
use self::setting::settings;
use self::table::Table;

/// The part of the least cost that decides between equals.
const TIE: f64 = 1e-3;

/// Cost, in ties, of each doubling of the tokens computed at once: it takes memory that a longer context may want.
const STEP: f64 = 10.0;

/// Cost, in layers, of each smaller type of the cache where plans are made by layers: it must buy a whole one.
const KV_STEP_IN_LAYERS: f64 = 0.5;

/// Partial placements that are tried before the search gives up: seven times what the slowest of 2,000 random plans
/// took.
const MOST_BEGINS: usize = 1 << 18;

/// All that placements are made of and measured by.
pub(super) struct Placements<'a> {
    profile: &'a ModelProfile,
    machine: &'a Machine,
    request: &'a Request,
    policy: Policy,
    /// Without one, what the estimate may be wrong by is kept free.
    probe: Option<&'a dyn Probe>,
    /// The GPUs with free memory; for the fastest plan without those that are slower than the host.
    gpus: Vec<&'a Gpu>,
    /// Those that are slower.
    slow: Vec<&'a Gpu>,
    orders: Vec<Order>,
    parts: Rc<Parts<'a>>,
    grounds: Vec<Ground<'a>>,
    tie: f64,
    /// Estimates that were made of whole paths.
    looks: Cell<usize>,
}

/// What probes have shown beyond the estimate: bytes more (or fewer) per GPU, as in [`Placements::gpus`], and on the
/// host; and how many fewer a GPU is hoped to take.
#[derive(Debug, Clone, Default)]
struct Correction {
    gpus: Vec<i64>,
    host: i64,
    hope: u64,
}

impl Correction {
    /// Bytes that a GPU takes beyond the estimate.
    fn of_gpu(&self, gpu: usize) -> i64 {
        self.gpus.get(gpu).copied().unwrap_or(0).saturating_sub_unsigned(self.hope)
    }
}

/// After this many refusals an order of GPUs is no longer tried: they are the device's fault, or the model's.
const MOST_REFUSALS: usize = 2;

/// What a search knows beside what there is to choose from.
#[derive(Default)]
struct Given {
    /// By setting: graphs of other sizes are off by other bytes.
    corrections: BTreeMap<usize, Correction>,
    /// Paths that are known already.
    known: Vec<Path>,
    /// Those of them that llama.cpp refused.
    refused: Vec<Path>,
    /// Only cheaper ones count.
    below: Option<f64>,
    /// Bytes that a GPU may lack by the estimate, where a probe is to decide.
    hope: u64,
}

impl Given {
    /// What probes have shown beyond the estimate under this setting, else under another.
    fn correction(&self, setting: usize) -> Correction {
        let of_another = || self.corrections.values().next();
        let known = self.corrections.get(&setting).or_else(of_another).cloned();
        Correction { hope: self.hope, ..known.unwrap_or_default() }
    }

    /// Whether this order of GPUs is still tried, with a cache of this setting's type.
    fn is_tried(&self, grounds: &[Ground<'_>], setting: usize, order: usize) -> bool {
        let kv = |setting: usize| grounds[setting].smaller_kv;
        let alike = |path: &&Path| path.order == order && kv(path.setting) == kv(setting);
        self.refused.iter().filter(alike).count() < MOST_REFUSALS
    }
}

/// A path that fits, or the one that lacks the least.
#[derive(Debug, Clone)]
struct Found {
    path: Path,
    cost: f64,
    levels: Levels,
}

impl<'a> Placements<'a> {
    /// `params` are the request's, every default resolved; `model` is this model in such a context. By layers the
    /// tokens computed at once stay as they are, and no block is parted.
    pub(super) fn new(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        (params, model): (&ContextParams, &SpeedModel),
        policy: Policy,
        probe: Option<&'a dyn Probe>,
    ) -> Result<Self, Error> {
        let by_layers = policy == Policy::MostLayers;
        let free: Vec<&Gpu> = machine.gpus.iter().filter(|gpu| gpu.free > 0).collect();
        let n_gpu_layers = *request.gpu_layers.range(profile.full_offload()).start();
        if n_gpu_layers > 0 && free.is_empty() {
            return Err(Error::NoGpu { n_gpu_layers });
        }
        let (gpus, slow) = match by_layers {
            true => (free, Vec::new()),
            false => without_slow(free, profile, machine, (params, model), &request.work(profile)),
        };
        let rates = Rates::of(&gpus, &machine.host);
        let parts = if by_layers { HostParts::None } else { request.host_parts };
        // On a processor more tokens at once gain nothing.
        let may_double = !by_layers && !gpus.is_empty();
        let mut orders = orders(&gpus, &rates.gpus, request.gpu_layers.is_exact());
        // In another order as many layers cost the same, but people know their GPUs by the machine's.
        orders.retain(|order| !by_layers || order.is_sorted());
        // The host alone.
        orders.push(Order::new());
        let parts = Rc::new(Parts::of(profile, parts));
        let (tie, grounds, looks) = (TIE, Vec::new(), Cell::default());
        let mut all = Self { profile, machine, request, policy, probe, gpus, slow, orders, parts, grounds, tie, looks };
        for setting in settings(request, profile, params) {
            if setting.doubled > 0 && !may_double {
                continue;
            }
            let model = model.over(profile, &setting.params, rates.clone());
            let mut ground = Ground::new(&all, setting, &model)?;
            match by_layers {
                true => ground.table.price_by_layers(),
                false => ground.table.count_seconds(1.0 + ground.surcharge),
            }
            all.grounds.push(ground);
            // Through several GPUs that hold all, a prompt's computations flow. With more tokens each, fewer do.
            if all.gpus.len() > 1 && all.grounds[0].holds_all() {
                break;
            }
        }
        if !by_layers {
            let fastest = all.grounds.iter().map(|ground| ground.table.fastest());
            all.tie = TIE * fastest.fold(f64::INFINITY, f64::min);
        }
        Ok(all)
    }

    /// The cheapest path that fits by the estimate, corrected.
    fn search(&self, given: &Given) -> Result<Option<Found>, Error> {
        let grounds = self.grounds.iter().enumerate();
        let tables: Vec<Table<'_>> =
            grounds.map(|(setting, ground)| ground.corrected(&given.correction(setting))).collect();
        // Of each setting, those of all orders.
        let (mut heap, mut arounds) = (Heap::default(), Vec::new());
        for (setting, table) in tables.iter().enumerate() {
            let (extra, mut runs) = (self.steps(setting), BTreeMap::new());
            let correction = given.correction(setting);
            for order in 0..self.orders.len() {
                let is_tried = self.is_fused(setting, order) && given.is_tried(&self.grounds, setting, order);
                let host_rooms = self.host_rooms(setting, order, &correction).filter(|_| is_tried);
                arounds.push(host_rooms.map(|host_rooms| {
                    let prices = self.prices(table, order);
                    let around = Around { prices, onward: Onward::new(&prices, &mut runs), host_rooms };
                    heap.begin((setting, order), self.on_host(), extra, &around);
                    around
                }));
            }
        }
        let mut overfull = Overfull::new(&self.parts);
        for _ in 0..MOST_BEGINS {
            let Some(node) = heap.pop_below(given.below.unwrap_or(f64::INFINITY)) else {
                return Ok(None);
            };
            let Some(around) = &arounds[node.path.setting * self.orders.len() + node.path.order] else {
                continue;
            };
            let full = overfull.of(&node.path);
            let is_lost = full.is_some() && overfull.is_settled(&node.path);
            // An earlier run is no smaller with more of the last one on the host.
            let by_last = full.is_some_and(|n| n + 1 == node.path.runs.len());
            if !node.again && (by_last || !is_lost) {
                heap.keep_more(&node, around);
            }
            if is_lost {
                continue;
            }
            if node.gain > 0.0 {
                heap.put_again(node);
            } else if node.path.runs.len() < around.prices.order.len() {
                heap.extend(&node, around);
            } else {
                if full.is_none() && !given.known.contains(&node.path) {
                    let levels = self.levels(&node.path, given)?;
                    if levels.fit() {
                        return Ok(Some(Found { path: node.path, cost: node.bound, levels }));
                    }
                    let lacking = levels.gpus.iter().enumerate().filter(|(_, level)| level.missing() > 0);
                    lacking.for_each(|(n, _)| overfull.add(&node.path, n));
                }
                heap.keep_single_copy(&node, around);
            }
        }
        tracing::debug!("the search for a placement has looked at {} of them", self.looks.get());
        Ok(None)
    }

    /// Numbers of layers that may stay on the host.
    fn on_host(&self) -> RangeInclusive<u32> {
        let layers = self.profile.full_offload();
        let on_gpus = self.request.gpu_layers.range(layers);
        layers - on_gpus.end()..=layers - on_gpus.start()
    }

    /// The cost of a setting, wherever the layers are.
    fn steps(&self, setting: usize) -> f64 {
        let ground = &self.grounds[setting];
        match self.policy {
            Policy::Fastest => STEP * self.tie * f64::from(ground.doubled),
            Policy::MostLayers => KV_STEP_IN_LAYERS * f64::from(ground.smaller_kv),
        }
    }

    /// Whether all GPUs of an order fuse attention, where a setting has chosen a smaller type of the cache.
    fn is_fused(&self, setting: usize, order: usize) -> bool {
        let ground = &self.grounds[setting];
        ground.smaller_kv == 0 || self.orders[order].iter().all(|&gpu| ground.fused[gpu])
    }

    /// The parameters that are wanted most.
    fn wanted(&self) -> &ContextParams {
        &self.grounds[0].params
    }

    fn prices<'p>(&'p self, table: &'p Table<'p>, order: usize) -> Prices<'p> {
        Prices { table, order: &self.orders[order], tie: self.tie }
    }

    /// Bytes that the host has for what layers leave to it, by the role of its compute buffer; `None` where it has too
    /// few for what is always there.
    fn host_rooms(&self, setting: usize, order: usize, correction: &Correction) -> Option<[Option<u64>; HOST_ROLES]> {
        let (ground, order) = (&self.grounds[setting], &self.orders[order]);
        let gpus = || order.iter().map(|&gpu| self.gpus[gpu]);
        let host = &self.machine.host;
        let headroom = Headroom::of_host(host, &ground.workload, !order.is_empty(), 0);
        let of_order: Vec<&Gpu> = gpus().collect();
        if self.request.unmapped_if_paging(self.profile, &of_order).is_some() {
            // Mapped weights need no room there. What else there is, is compared with it when the path is done.
            return Some([Some(u64::MAX); HOST_ROLES]);
        }
        let room = host.available.checked_sub(headroom.total().saturating_add(ground.always_on_host))?;
        // A GPU that uses the host's memory puts there all that its own pool does not hold.
        let own = gpus().map(Gpu::own_free).fold(0, u64::saturating_add);
        let whole = ground.table.host_bytes[ground.table.layers as usize];
        if gpus().any(Gpu::shares_host_memory) && whole > room.saturating_add(own) {
            return None;
        }
        let left = |least: u64| room.checked_sub(least.saturating_add_signed(correction.host));
        Some(ground.least_on_host(order).map(left))
    }
}

/// These GPUs, and apart from them those that take longer for the whole model than the host.
fn without_slow<'a>(
    gpus: Vec<&'a Gpu>,
    profile: &ModelProfile,
    machine: &Machine,
    (params, model): (&ContextParams, &SpeedModel),
    workload: &Workload,
) -> (Vec<&'a Gpu>, Vec<&'a Gpu>) {
    let seconds = |gpus: &[&Gpu]| {
        let model = model.over(profile, params, Rates::of(gpus, &machine.host));
        let counts: Vec<u32> = gpus.iter().map(|_| profile.full_offload()).collect();
        model.seconds(&Assignment::by_counts(profile.n_layer(), &counts), workload)
    };
    let on_host = seconds(&[]);
    gpus.into_iter().partition(|gpu| seconds(&[gpu]) <= on_host)
}
