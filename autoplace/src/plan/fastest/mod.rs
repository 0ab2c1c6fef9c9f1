//! The fastest safe plan: of all placements that fit every device, the one with the most predicted tokens per second.
//!
//! A placement is a [`Setting`] (types and place of the cache, tokens computed at once), an [`Order`] of GPUs, a run of layers on each
//! of them, and the [`Parts`] of blocks that stay on the host. It costs the seconds of a token by [`speed`](super::speed), and a
//! thousandth of the fastest ones for each of these, so that they decide between plans of one speed: a GPU, twice if it is full;
//! a single copy of the graph, by half; a step away from the wanted setting.
//!
//! Ways are looked at in the order of their cost ([`path`]) until one fits by the estimate: no cheaper one does.

mod choice;
mod ground;
mod look;
mod nearest;
mod order;
mod parts;
mod path;
mod probed;
mod setting;
mod table;
mod told;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{Gpu, Machine};
use crate::memory::{ContextParams, Estimate, Headroom, Workload};
use crate::profile::ModelProfile;

use super::fit::Levels;
use super::speed::{Rates, Traffic, counted};
use super::{Error, HostParts, Request};

use self::ground::Ground;
use self::look::{HostLikeness, LeastOnHost, Likeness, Look};
use self::order::{Order, orders};
use self::parts::Parts;
use self::path::{Around, Heap, Onward, Path, Prices};
use self::setting::Setting;
use self::table::{Run, Table};

use self::probed::Probed;

/// Placements that are looked at before the search gives up: many times what any of a thousand random machines has taken.
const MOST_LOOKED_AT: usize = 4096;

/// The part of the fastest token's seconds that decides between plans of one speed.
const TIE: f64 = 1e-3;

/// Begins of placements that are looked at.
const MOST_BEGINS: usize = 1 << 18;

/// All that placements are made of and measured by.
pub(super) struct Fastest<'a> {
    profile: &'a ModelProfile,
    machine: &'a Machine,
    request: &'a Request,
    /// The GPUs that read faster than the host and have something free.
    gpus: Vec<&'a Gpu>,
    /// Those that do not read faster.
    slow: Vec<&'a Gpu>,
    orders: Vec<Order>,
    parts: Parts<'a>,
    grounds: Vec<Ground>,
    tie: f64,
    /// Estimates by setting and order.
    estimates: RefCell<BTreeMap<(usize, usize), Estimate>>,
    looked_at: RefCell<BTreeMap<Path, Look>>,
    /// The smallest compute buffer of each likeness among those that were looked at.
    seen: RefCell<BTreeMap<Likeness, u64>>,
    seen_on_host: RefCell<BTreeMap<HostLikeness, LeastOnHost>>,
}

/// What probes have shown beyond the estimate: bytes more (or fewer) per GPU, as in [`Fastest::gpus`], and on the host.
#[derive(Debug, Clone, Default)]
struct Corrections {
    gpus: BTreeMap<usize, i64>,
    host: i64,
}

/// What a search is told beside what there is to choose from.
struct Given<'g> {
    corrections: &'g Corrections,
    /// Paths that are known already.
    known: &'g BTreeSet<Path>,
    /// Orders of GPUs that are out of the question.
    shunned: &'g BTreeSet<usize>,
    /// Only cheaper ones count.
    below: f64,
    /// Whether to keep free what the estimate may be wrong by.
    careful: bool,
}

/// A path that fits, or the one that lacks the least.
#[derive(Debug, Clone)]
struct Found {
    path: Path,
    cost: f64,
    levels: Levels,
}

/// The prices of one order under one setting.
struct OrderPrices<'p> {
    table: &'p Table,
    order: &'p [usize],
    parts: &'p Parts<'p>,
    tie: f64,
}

impl Prices for OrderPrices<'_> {
    fn run(&self, n: usize, run: Run) -> f64 {
        let gpu = self.order[n];
        let seconds = self.table.seconds(gpu, run, self.parts);
        let whole = Run { kept: 0, ..run };
        let bytes = self.table.bytes(gpu, whole, self.parts);
        seconds + gpu_price(self.tie, bytes, self.table.room(gpu, run))
    }

    fn single_copy(&self) -> f64 {
        self.tie / 2.0
    }
}

/// What a GPU costs that is filled so far: evenly filled ones cost least.
#[allow(clippy::cast_precision_loss)] // a share
fn gpu_price(tie: f64, bytes: u64, room: u64) -> f64 {
    let fill = (bytes as f64 / room.max(1) as f64).min(1.0);
    tie * (1.0 + fill * fill)
}

impl<'a> Fastest<'a> {
    /// `params` are the request's, every default resolved.
    ///
    /// # Errors
    ///
    /// What keeps llama.cpp from taking the parameters at all.
    pub(super) fn new(
        profile: &'a ModelProfile,
        machine: &'a Machine,
        request: &'a Request,
        params: &ContextParams,
    ) -> Result<Self, Error> {
        let free: Vec<&Gpu> = machine.gpus.iter().filter(|gpu| gpu.free > 0).collect();
        let all_rates = Rates::of(&free, &machine.host);
        let host_rate = all_rates.host.bytes_per_second;
        let (fast, slow): (Vec<_>, Vec<_>) = free
            .into_iter()
            .zip(&all_rates.gpus)
            .partition(|(_, rate)| rate.bytes_per_second >= host_rate);
        let gpus: Vec<&Gpu> = fast.into_iter().map(|(gpu, _)| gpu).collect();
        let rates = Rates::of(&gpus, &machine.host);
        let parts = Parts::of(profile, request.host_parts);
        let traffic = traffic(profile, request, params);
        let headroom = |gpu: &Gpu, workload: &Workload| {
            let headroom = request.headroom.of_gpu(gpu, workload, 0, machine.wsl);
            headroom.total()
        };
        let grounds: Vec<Ground> = Setting::all(request, profile, params)
            .into_iter()
            .map(|setting| Ground::new(profile, headroom, &gpus, setting, &parts, &traffic, &rates))
            .collect::<Result<_, Error>>()?;
        let mut orders = orders(&gpus, &rates.gpus);
        // The host alone.
        orders.push(Order::new());
        let tables = grounds.iter().map(|ground| &ground.table);
        let fastest = tables.flat_map(|table| {
            let gpus = (0..table.gpus.len()).map(|gpu| table.whole_seconds(gpu));
            gpus.chain([table.host_seconds(table.layers)])
        });
        Ok(Self {
            profile,
            machine,
            request,
            tie: TIE * fastest.fold(f64::INFINITY, f64::min),
            gpus,
            slow: slow.into_iter().map(|(gpu, _)| gpu).collect(),
            orders,
            parts,
            grounds,
            estimates: RefCell::default(),
            looked_at: RefCell::default(),
            seen: RefCell::default(),
            seen_on_host: RefCell::default(),
        })
    }

    /// The cheapest path that fits by the estimate, corrected.
    fn search(&self, given: &Given<'_>) -> Result<Option<Found>, Error> {
        let tables: Vec<Table> = self
            .grounds
            .iter()
            .map(|ground| ground.corrected(given.corrections))
            .collect();
        let onward: Vec<Vec<Onward>> = tables
            .iter()
            .map(|table| {
                let each = self.orders.iter();
                each.map(|order| Onward::new(order, table, &self.parts, &self.prices(table, order)))
                    .collect()
            })
            .collect();
        let prices: Vec<Vec<OrderPrices<'_>>> = tables
            .iter()
            .map(|table| {
                let each = self.orders.iter();
                each.map(|order| self.prices(table, order)).collect()
            })
            .collect();
        let may_fit = |path: &Path| self.may_fit(path, path.runs.len() - 1, given);
        let around = |setting: usize, order: usize| Around {
            order: &self.orders[order],
            table: &tables[setting],
            parts: &self.parts,
            onward: &onward[setting][order],
            prices: &prices[setting][order],
            host_room: self.host_room(setting, order, &tables[setting], given.corrections),
            may_fit: &may_fit,
        };
        let mut heap = Heap::default();
        for (setting, ground) in self.grounds.iter().enumerate() {
            let extra = self.tie * f64::from(ground.setting.steps);
            let orders = 0..self.orders.len();
            for order in orders.filter(|order| !given.shunned.contains(order)) {
                let around = around(setting, order);
                if around.host_room.is_some() {
                    heap.begin(setting, order, extra, &around);
                }
            }
        }
        let (mut looks, mut begins) = (0, 0);
        while heap.bound() < given.below
            && let Some(node) = heap.pop()
        {
            begins += 1;
            let around = around(node.path.setting, node.path.order);
            heap.keep_one_more(&node, &around);
            if node.path.runs.len() < around.order.len() {
                heap.extend(&node, &around);
                continue;
            }
            if given.known.contains(&node.path) {
                heap.keep_single_copy(&node, &around);
                continue;
            }
            let on_host = self
                .least_host_compute(&node.path, given)
                .saturating_add(node.host);
            let may_fit = Some(on_host) <= around.host_room
                && (0..node.path.runs.len()).all(|n| self.may_fit(&node.path, n, given));
            if !may_fit {
                heap.keep_single_copy(&node, &around);
                continue;
            }
            if looks == MOST_LOOKED_AT || begins > MOST_BEGINS {
                tracing::debug!("the search for the fastest plan gave up after {looks} placements");
                break;
            }
            looks += 1;
            let levels = self.levels(&node.path, given)?;
            if levels.fit() {
                return Ok(Some(Found {
                    path: node.path,
                    cost: node.bound,
                    levels,
                }));
            }
            heap.keep_single_copy(&node, &around);
        }
        Ok(None)
    }

    /// The parameters that are wanted most.
    fn wanted(&self) -> &ContextParams {
        &self.grounds[0].setting.params
    }

    /// Which parts those are, for people.
    const fn parts_in_words(&self) -> &'static str {
        match self.request.host_parts {
            HostParts::FeedForward => "feed-forward matrices",
            HostParts::Experts | HostParts::None => "experts",
        }
    }

    fn prices<'p>(&'p self, table: &'p Table, order: &'p [usize]) -> OrderPrices<'p> {
        OrderPrices {
            table,
            order,
            parts: &self.parts,
            tie: self.tie,
        }
    }

    /// Bytes that the host has for what layers leave to it at most; `None` where it has too few for what is always there.
    fn host_room(
        &self,
        setting: usize,
        order: usize,
        table: &Table,
        corrections: &Corrections,
    ) -> Option<u64> {
        let host = &self.machine.host;
        let workload = &self.grounds[setting].workload;
        let order = &self.orders[order];
        let headroom = Headroom::of_host(host, workload, !order.is_empty(), 0);
        let always = self.grounds[setting].always_on_host;
        let taken = headroom.total().saturating_add(always);
        let room = host.available.checked_sub(taken)?;
        let shared = order.iter().any(|&gpu| self.gpus[gpu].shares_host_memory());
        // What lies on a GPU that uses the host's memory lies on the host all the same, all of it.
        if shared && table.host_bytes(table.layers) > room {
            return None;
        }
        Some(room.saturating_add_signed(-corrections.host.min(0)))
    }
}

/// What a token reads, by which placements are compared.
fn traffic(profile: &ModelProfile, request: &Request, params: &ContextParams) -> Traffic {
    let depth = request.depth.unwrap_or(params.n_ctx / 2);
    Traffic::of(profile, &counted(params), depth)
}
