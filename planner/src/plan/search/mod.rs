//! The best safe placement: of all that fit every device the one with the most predicted tokens per second, or with the
//! most layers on GPUs.
//!
//! A placement is a [`Setting`] (types and place of the cache, tokens computed at once), an [`Order`] of GPUs, a run of
//! layers on each of them, and the [`Parts`] of blocks that stay on the host. It costs the seconds of the workload by
//! [`speed`](super::speed) ([`Policy::Fastest`]), or one for each layer on the host ([`Policy::MostLayers`]). A
//! thousandth of the least cost for each of these decides between equals: a GPU, up to twice if it is full; a single
//! copy of the graph, by half; a step away from the wanted setting.
//!
//! Ways are looked at in the order of their cost ([`path`]) until one fits by the estimate: no cheaper one does.

mod choice;
mod ground;
mod look;
mod nearest;
mod order;
mod parts;
mod path;
mod prices;
mod probed;
mod setting;
mod table;
mod words;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

use crate::machine::{Gpu, Machine};
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate, Headroom, Workload};
use crate::profile::ModelProfile;

use super::fit::{Levels, maps_files};
use super::speed::{Rates, SpeedModel};
use super::{Error, HostParts, Policy, Request};

use self::ground::Ground;
use self::look::{HostLikeness, Least, Likeness, Look};
pub(super) use self::order::MOST_GPUS;
use self::order::{Order, orders};
use self::parts::Parts;
use self::path::{Around, Heap, Onward, Path};
use self::prices::Prices;
use self::probed::Probed;
use self::setting::Setting;
use self::table::Table;

/// Placements that are looked at before the search gives up: many times what any of a thousand random machines has
/// taken.
const MOST_LOOKED_AT: usize = 4096;

/// The part of the least cost that decides between equals.
const TIE: f64 = 1e-3;

/// Begins of placements that are looked at.
const MOST_BEGINS: usize = 1 << 18;

/// All that placements are made of and measured by.
pub(super) struct Placements<'a> {
    profile: &'a ModelProfile,
    machine: &'a Machine,
    request: &'a Request,
    policy: Policy,
    /// The GPUs with free memory; for the fastest plan without those that are slower than the host.
    gpus: Vec<&'a Gpu>,
    /// Those that are slower.
    slow: Vec<&'a Gpu>,
    orders: Vec<Order>,
    parts: Parts<'a>,
    grounds: Vec<Ground>,
    tie: f64,
    /// Estimates by setting and order.
    estimates: RefCell<BTreeMap<(usize, usize), Rc<Estimate>>>,
    looked_at: RefCell<BTreeMap<Path, Look>>,
    /// The smallest compute buffer of each likeness among those that were looked at.
    seen: RefCell<BTreeMap<Likeness, Least>>,
    seen_on_host: RefCell<BTreeMap<HostLikeness, Least>>,
}

/// What probes have shown beyond the estimate: bytes more (or fewer) per GPU, as in [`Placements::gpus`], and on the
/// host.
#[derive(Debug, Clone, Default)]
struct Corrections {
    gpus: BTreeMap<usize, i64>,
    host: i64,
}

/// What a search is told beside what there is to choose from.
#[derive(Clone)]
struct Given {
    /// By setting: graphs of other sizes are off by other bytes.
    corrections: BTreeMap<usize, Corrections>,
    /// Paths that are known already.
    known: BTreeSet<Path>,
    /// Orders of GPUs that are out of the question.
    shunned: BTreeSet<usize>,
    /// Only cheaper ones count.
    below: f64,
    /// Whether to keep free what the estimate may be wrong by.
    careful: bool,
    /// Whether the least that devices were seen to need is believed to be what all placements alike need: mostly it is,
    /// and a search that has looked at too many placements that lack a little goes on so.
    hasty: bool,
}

/// How a search has ended.
enum Searched {
    Found(Found),
    /// Nothing fits.
    Nothing,
    /// [`MOST_LOOKED_AT`] placements were looked at, or [`MOST_BEGINS`] begun.
    TooMany,
}

impl Given {
    /// Nothing is known yet.
    const fn new(careful: bool) -> Self {
        Self {
            corrections: BTreeMap::new(),
            known: BTreeSet::new(),
            shunned: BTreeSet::new(),
            below: f64::INFINITY,
            careful,
            hasty: false,
        }
    }

    /// What probes have shown beyond the estimate under this setting, else under another.
    fn correction(&self, setting: usize) -> &Corrections {
        const NONE: &Corrections = &Corrections { gpus: BTreeMap::new(), host: 0 };
        let of_another = || self.corrections.values().next();
        let known = self.corrections.get(&setting).or_else(of_another);
        known.unwrap_or(NONE)
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
    /// `params` are the request's, every default resolved. By layers there is one setting, and no block is parted.
    pub(super) fn new(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        params: &ContextParams,
        policy: Policy,
    ) -> Result<Self, Error> {
        let by_layers = policy == Policy::MostLayers;
        let free: Vec<&Gpu> = machine.gpus.iter().filter(|gpu| gpu.free > 0).collect();
        let n_gpu_layers = *request.gpu_layers.range(profile.full_offload()).start();
        if n_gpu_layers > 0 && free.is_empty() {
            return Err(Error::NoGpu { n_gpu_layers });
        }
        let workload = request.work(profile);
        let all_rates = Rates::of(&free, &machine.host);
        let model = SpeedModel::new(profile, params, all_rates);
        let seconds = |counts: &[u32]| {
            let assignment = Assignment::by_counts(profile.n_layer(), counts);
            model.seconds(&assignment, &workload)
        };
        let on_host = seconds(&[]);
        let (fast, slow): (Vec<_>, Vec<_>) = free.into_iter().enumerate().partition(|&(gpu, _)| {
            let mut counts = vec![0; gpu + 1];
            counts[gpu] = profile.full_offload();
            by_layers || seconds(&counts) <= on_host
        });
        let gpus: Vec<&Gpu> = fast.into_iter().map(|(_, gpu)| gpu).collect();
        let rates = Rates::of(&gpus, &machine.host);
        let (settings, parts) = if by_layers {
            (vec![Setting::wanted(params)], HostParts::None)
        } else {
            let settings = Setting::all(request, profile, params, &gpus);
            (settings, request.host_parts)
        };
        let parts = Parts::of(profile, parts);
        let headroom = |gpu: &Gpu, workload: &Workload| {
            let headroom = request.headroom.of_gpu(gpu, workload, 0, machine.wsl);
            headroom.total()
        };
        let mut grounds: Vec<Ground> = settings
            .into_iter()
            .map(|setting| Ground::new(profile, headroom, &gpus, setting, &parts, &rates, &workload))
            .collect::<Result<_, Error>>()?;
        let exactly = request.gpu_layers.is_exact();
        let mut orders = orders(&gpus, &rates.gpus, exactly);
        // In another order as many layers cost the same, but people know their GPUs by the machine's.
        orders.retain(|order| !by_layers || order.is_sorted());
        // The host alone.
        orders.push(Order::new());
        let tables = grounds.iter().map(|ground| &ground.table);
        let fastest = tables.flat_map(|table| {
            let gpus = (0..table.gpus.len()).map(|gpu| table.whole_seconds(gpu));
            gpus.chain([table.host_seconds(table.layers, None)])
        });
        let least = if by_layers { 1.0 } else { fastest.fold(f64::INFINITY, f64::min) };
        if by_layers {
            for ground in &mut grounds {
                ground.table.price_by_layers();
            }
        }
        Ok(Self {
            profile,
            machine,
            request,
            policy,
            tie: TIE * least,
            gpus,
            slow: slow.into_iter().map(|(_, gpu)| gpu).collect(),
            orders,
            parts,
            grounds,
            estimates: RefCell::default(),
            looked_at: RefCell::default(),
            seen: RefCell::default(),
            seen_on_host: RefCell::default(),
        })
    }

    /// The cheapest path that fits by the estimate, corrected. Where too many lack a little, one that is found in
    /// haste.
    fn search(&self, given: &Given) -> Result<Option<Found>, Error> {
        let searched = match self.search_once(given)? {
            Searched::TooMany => self.search_once(&Given { hasty: true, ..given.clone() })?,
            searched => searched,
        };
        Ok(match searched {
            Searched::Found(found) => Some(found),
            Searched::Nothing | Searched::TooMany => None,
        })
    }

    fn search_once(&self, given: &Given) -> Result<Searched, Error> {
        let tables: Vec<Table> = self
            .grounds
            .iter()
            .enumerate()
            .map(|(setting, ground)| ground.corrected(given.correction(setting)))
            .collect();
        let may_fit = |path: &Path| self.may_fit(path, path.runs.len() - 1, given);
        let mut heap = Heap::default();
        let mut arounds = BTreeMap::new();
        for (setting, ground) in self.grounds.iter().enumerate() {
            let extra = self.tie * f64::from(ground.setting.steps);
            for order in (0..self.orders.len()).filter(|order| !given.shunned.contains(order)) {
                let table = &tables[setting];
                let host_room = self.host_room(setting, order, table, given.correction(setting));
                let Some(host_room) = host_room else {
                    continue;
                };
                let prices = self.prices(table, &self.orders[order]);
                let around = Around { prices, onward: Onward::new(&prices), host_room, may_fit: &may_fit };
                heap.begin(setting, order, self.on_host(), extra, &around);
                arounds.insert((setting, order), around);
            }
        }
        let (mut looks, mut begins) = (0, 0);
        while heap.bound() < given.below
            && let Some(node) = heap.pop()
        {
            begins += 1;
            let around = &arounds[&(node.path.setting, node.path.order)];
            if !node.again {
                heap.keep_one_more(&node, around);
            }
            if node.gain > 0.0 {
                heap.put_again(node);
                continue;
            }
            if node.path.runs.len() < around.prices.order.len() {
                heap.extend(&node, around);
                continue;
            }
            let may_fit = || {
                let on_host = self.least_host_compute(&node.path, given);
                on_host.saturating_add(node.host) <= around.host_room
                    && (0..node.path.runs.len()).all(|n| self.may_fit(&node.path, n, given))
            };
            if !given.known.contains(&node.path) && may_fit() {
                if looks == MOST_LOOKED_AT || begins > MOST_BEGINS {
                    tracing::debug!("the search for a placement has looked at {looks} of them");
                    return Ok(Searched::TooMany);
                }
                looks += 1;
                let levels = self.levels(&node.path, given)?;
                if levels.fit() {
                    let found = Found { path: node.path, cost: node.bound, levels };
                    return Ok(Searched::Found(found));
                }
            }
            heap.keep_single_copy(&node, around);
        }
        Ok(Searched::Nothing)
    }

    /// Numbers of layers that may stay on the host.
    fn on_host(&self) -> RangeInclusive<u32> {
        let layers = self.profile.full_offload();
        let on_gpus = self.request.gpu_layers.range(layers);
        layers - on_gpus.end()..=layers - on_gpus.start()
    }

    /// The parameters that are wanted most.
    fn wanted(&self) -> &ContextParams {
        &self.grounds[0].setting.params
    }

    /// Which parts those are, for people.
    const fn parts_in_words(&self) -> &'static str {
        match self.request.host_parts {
            HostParts::Auto if self.profile.hparams.experts.is_none() => "feed-forward matrices",
            HostParts::FeedForward => "feed-forward matrices",
            HostParts::Auto | HostParts::Experts | HostParts::None => "experts",
        }
    }

    fn prices<'p>(&'p self, table: &'p Table, order: &'p [usize]) -> Prices<'p> {
        Prices { table, order, parts: &self.parts, tie: self.tie }
    }

    /// Bytes that the host has for what layers leave to it at most; `None` where it has too few for what
    /// is always there.
    fn host_room(&self, setting: usize, order: usize, table: &Table, corrections: &Corrections) -> Option<u64> {
        let host = &self.machine.host;
        let workload = &self.grounds[setting].workload;
        let order = &self.orders[order];
        if self.request.allow_paging && order.iter().all(|&gpu| maps_files(self.gpus[gpu])) {
            // Weights need no room there; what else there is the levels count.
            return Some(u64::MAX);
        }
        let headroom = Headroom::of_host(host, workload, !order.is_empty(), 0);
        let always = self.grounds[setting].always_on_host;
        let taken = headroom.total().saturating_add(always);
        let room = host.available.checked_sub(taken)?;
        let shared = order.iter().any(|&gpu| self.gpus[gpu].shares_host_memory());
        // What lies on a GPU that uses the host's memory lies on the host all the same, all that its own
        // pool does not hold.
        let own = order.iter().map(|&gpu| self.gpus[gpu].own_free());
        let own = own.fold(0, u64::saturating_add);
        if shared && table.host_bytes(table.layers) > room.saturating_add(own) {
            return None;
        }
        Some(room.saturating_add_signed(-corrections.host.min(0)))
    }
}
