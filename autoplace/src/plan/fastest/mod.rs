//! The fastest safe plan: of all placements that fit every device, the one with the most predicted tokens per second.
//!
//! A placement is a [`Setting`] (types and place of the cache, tokens computed at once), an [`Order`] of GPUs, a run of layers on each
//! of them, and the [`Parts`] of blocks that stay on the host. It costs the seconds of a token by [`speed`](super::speed), and a
//! thousandth of the fastest ones for each of these, so that they decide between plans of one speed: a GPU, twice if it is full;
//! a single copy of the graph, by half; a step away from the wanted setting.
//!
//! Ways are looked at in the order of their cost ([`path`]) until one fits by the estimate: no cheaper one does.

mod choice;
mod order;
mod parts;
mod path;
mod probed;
mod setting;
mod table;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::machine::{Gpu, Machine};
use crate::memory::estimate::Assignment;
use crate::memory::{
    ContextParams, Estimate, Footprint, Footprints, Headroom, Place, Split, TensorOverride,
    Workload,
};
use crate::profile::ModelProfile;

use super::fit::{Levels, Room};
use super::speed::{Rates, Traffic, counted};
use super::{Error, HostParts, Request};

use self::order::{Order, orders};
use self::parts::Parts;
use self::path::{Around, Heap, Onward, Path, Prices};
use self::setting::Setting;
use self::table::{Roles, Run, Table};

use self::probed::Probed;

/// Placements that are looked at before the search gives up: many times what any of a thousand random machines has taken.
const MOST_LOOKED_AT: usize = 4096;

/// The part of the fastest token's seconds that decides between plans of one speed.
const TIE: f64 = 1e-3;

/// Begins of placements that are looked at.
const MOST_BEGINS: usize = 1 << 18;

/// A pattern that no name matches: an override that moves nothing.
const NOTHING: &str = "^$";

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
}

/// What holds for all placements of one setting.
struct Ground {
    setting: Setting,
    /// Bytes of weights that are on the host wherever the layers are.
    always_on_host: u64,
    /// What each GPU has beside its headroom, in bytes.
    budgets: Vec<u64>,
    /// The estimates of each GPU alone, but for those that are like an earlier one.
    alone: BTreeMap<usize, Estimate>,
    table: Table,
    workload: Workload,
}

/// What compute buffers depend on, but for details: the setting and the order of GPUs, which of them it is, whether it holds the output
/// layer alone, whether the host holds layers, and whether it holds parts of blocks.
type Likeness = (usize, usize, usize, bool, bool, bool);

/// The part of a compute buffer that one like it needs at least.
const ALIKE: (u64, u64) = (9, 10);

/// What the estimate says of a path.
#[derive(Clone)]
struct Look {
    footprints: Footprints,
    exact: bool,
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
            if !(0..node.path.runs.len()).all(|n| self.may_fit(&node.path, n, given)) {
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

    /// Whether the `n`th run of a path has room for a compute buffer like those that were seen.
    fn may_fit(&self, path: &Path, n: usize, given: &Given<'_>) -> bool {
        let Some(run) = path.runs().nth(n) else {
            return true;
        };
        let Some(&compute) = self.seen.borrow().get(&self.likeness(path, n, run)) else {
            return true;
        };
        let ground = &self.grounds[path.setting];
        let gpu = self.orders[path.order][n];
        let more = given.corrections.gpus.get(&gpu).copied().unwrap_or(0);
        let (part, whole) = ALIKE;
        let compute = (compute / whole * part).saturating_add_signed(more);
        let bytes = ground.table.bytes(gpu, run, &self.parts);
        bytes.saturating_add(compute) <= ground.budgets[gpu]
    }

    fn likeness(&self, path: &Path, n: usize, run: Run) -> Likeness {
        let output_alone = run.begin + 1 >= self.profile.full_offload();
        let (setting, order) = (path.setting, path.order);
        (
            setting,
            order,
            n,
            output_alone,
            path.first > 0,
            path.kept() > 0 || path.single_copy,
        )
    }

    /// Of what would be one step better than a path and does not fit, that which lacks the least.
    fn nearest(&self, path: &Path, given: &Given<'_>) -> Result<Option<Found>, Error> {
        let mut nearest: Option<Found> = None;
        for path in self.better(path) {
            let levels = self.levels(&path, given)?;
            let lack = |levels: &Levels| (levels.lacking(), levels.missing());
            let less = |known: &Found| lack(&levels) < lack(&known.levels);
            if !levels.fit() && nearest.as_ref().is_none_or(less) {
                nearest = Some(Found {
                    cost: self.cost(&path),
                    path,
                    levels,
                });
            }
        }
        Ok(nearest)
    }

    /// What a path costs.
    fn cost(&self, path: &Path) -> f64 {
        let ground = &self.grounds[path.setting];
        let prices = self.prices(&ground.table, &self.orders[path.order]);
        let runs = path.runs().enumerate().map(|(n, run)| prices.run(n, run));
        let single_copy = if path.single_copy {
            prices.single_copy()
        } else {
            0.0
        };
        let steps = self.tie * f64::from(ground.setting.steps);
        steps + ground.table.host_seconds(path.first) + runs.sum::<f64>() + single_copy
    }

    /// What would be one step better: a part less on the host, else a layer less; of the host alone a GPU with the output layer.
    fn better(&self, path: &Path) -> Vec<Path> {
        let layers = self.profile.full_offload();
        if path.runs.is_empty() {
            let single = (0..self.orders.len()).filter(|&order| self.orders[order].len() == 1);
            let output = |order| Path {
                order,
                first: layers.saturating_sub(1),
                runs: vec![(layers, 0)],
                ..path.clone()
            };
            return single.map(output).collect();
        }
        if path.single_copy {
            let single_copy = false;
            return vec![Path {
                single_copy,
                ..path.clone()
            }];
        }
        let kept = (0..path.runs.len()).filter(|&n| path.runs[n].1 > 0);
        let fewer = kept.map(|n| {
            let mut fewer = path.clone();
            fewer.runs[n].1 -= 1;
            fewer
        });
        let mut better: Vec<Path> = fewer.collect();
        if better.is_empty() && path.first > 0 {
            // The layer goes to the first GPU, or that one's last to the next, and so on.
            for n in 0..path.runs.len() {
                let mut longer = path.clone();
                longer.first -= 1;
                for run in &mut longer.runs[..n] {
                    run.0 -= 1;
                }
                better.push(longer);
            }
        }
        better
    }

    /// What a path takes by the estimate, corrected, and what is left.
    fn levels(&self, path: &Path, given: &Given<'_>) -> Result<Levels, Error> {
        let look = self.look(path)?;
        let order = &self.orders[path.order];
        let mut footprints = look.footprints;
        for (footprint, gpu) in footprints.gpus.iter_mut().zip(order) {
            let more = given.corrections.gpus.get(gpu).copied().unwrap_or(0);
            footprint.compute = footprint.compute.saturating_add_signed(more);
        }
        let host = &mut footprints.host.compute;
        *host = host.saturating_add_signed(given.corrections.host);
        let estimates = self.estimates.borrow();
        let estimate = estimates.get(&(path.setting, path.order));
        let unsure = |footprint: &Footprint| match estimate {
            Some(estimate) if given.careful => estimate.uncertainty_of(look.exact, footprint),
            _ => 0,
        };
        Ok(self.room(path).levels(&footprints, unsure))
    }

    /// The same of what llama.cpp says.
    fn levels_of(&self, path: &Path, footprints: &Footprints) -> Levels {
        self.room(path).levels(footprints, |_| 0)
    }

    /// What a path takes by the estimate.
    fn look(&self, path: &Path) -> Result<Look, Error> {
        if let Some(look) = self.looked_at.borrow().get(path) {
            return Ok(look.clone());
        }
        let assignment = self.assignment(path);
        let estimate = self.estimate(path)?;
        let look = |estimate: &Estimate| Look {
            footprints: estimate.footprints_of(&assignment),
            exact: estimate.is_exact_for(&assignment),
        };
        let kept: HashSet<&str> = self.kept_names(path).collect();
        let look = if kept.is_empty() && !path.single_copy {
            look(&estimate)
        } else {
            look(&estimate.placing(|name| kept.contains(name).then_some(Place::Host)))
        };
        let mut seen = self.seen.borrow_mut();
        for ((n, run), footprint) in path.runs().enumerate().zip(&look.footprints.gpus) {
            let least = seen.entry(self.likeness(path, n, run)).or_insert(u64::MAX);
            *least = footprint.compute.min(*least);
        }
        let mut all = self.looked_at.borrow_mut();
        all.insert(path.clone(), look.clone());
        Ok(look)
    }

    /// The estimate for a path's setting and GPUs, nothing of it elsewhere.
    fn estimate(&self, path: &Path) -> Result<Estimate, Error> {
        let key = (path.setting, path.order);
        if let Some(known) = self.estimates.borrow().get(&key) {
            return Ok(known.clone());
        }
        let alone = &self.grounds[path.setting].alone;
        let estimate = match self.orders[path.order][..] {
            [gpu] if alone.contains_key(&gpu) => alone[&gpu].clone(),
            _ => Estimate::new(self.profile, &self.gpus_of(path), self.params(path))?,
        };
        self.estimates.borrow_mut().insert(key, estimate.clone());
        Ok(estimate)
    }

    /// Bytes of a path by the estimate.
    fn estimated(&self, path: &Path) -> Result<Footprints, Error> {
        Ok(self.look(path)?.footprints)
    }

    /// Bytes of the buffer of logits by the estimate.
    fn output_bytes(&self, path: &Path) -> u64 {
        self.look(path).map_or(0, |look| look.footprints.output)
    }

    /// The GPUs of a path, as indices.
    fn order_of(&self, path: &Path) -> &[usize] {
        &self.orders[path.order]
    }

    /// The devices of a path.
    fn room(&self, path: &Path) -> Room<'a> {
        Room {
            gpus: self.gpus_of(path),
            host: &self.machine.host,
            headroom: self.request.headroom,
            wsl: self.machine.wsl,
            workload: self.grounds[path.setting].workload,
        }
    }

    /// The parameters of a path's context.
    fn params(&self, path: &Path) -> &ContextParams {
        &self.grounds[path.setting].setting.params
    }

    fn assignment(&self, path: &Path) -> Assignment {
        Assignment::by_counts(self.profile.n_layer(), &path.counts())
    }

    /// What llama.cpp is told of a path.
    fn split(&self, path: &Path) -> Split {
        let split = match path.counts()[..] {
            [] => Split::layers(0),
            [n] => Split::layers(n),
            ref counts => Split::by_counts(counts),
        };
        if path.single_copy {
            return split.overrides([TensorOverride::new(NOTHING, Place::Host)]);
        }
        let kept: Vec<(u32, u32)> = path.runs().map(|run| (run.end, run.kept)).collect();
        split.overrides(self.parts.overrides(&kept))
    }

    /// Blocks on GPUs of which a part stays on the host.
    fn parted_blocks(&self, path: &Path) -> u32 {
        let table = &self.grounds[path.setting].table;
        let blocks = path.runs().map(|run| table.kept_blocks(run, &self.parts));
        blocks.sum()
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

    fn kept_names(&self, path: &Path) -> impl Iterator<Item = &str> {
        let kept: Vec<(u32, u32)> = path.runs().map(|run| (run.end, run.kept)).collect();
        let parts: Vec<_> = self.parts.kept(&kept).collect();
        parts
            .into_iter()
            .flat_map(|part| part.weights.iter().map(|weight| weight.name.as_str()))
    }

    fn gpus_of(&self, path: &Path) -> Vec<&'a Gpu> {
        let order = self.orders[path.order].iter();
        order.map(|&gpu| self.gpus[gpu]).collect()
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

impl Ground {
    fn new(
        profile: &ModelProfile,
        headroom: impl Fn(&Gpu, &Workload) -> u64,
        gpus: &[&Gpu],
        setting: Setting,
        parts: &Parts<'_>,
        traffic: &Traffic,
        rates: &Rates,
    ) -> Result<Self, Error> {
        let params = &setting.params;
        let mut alone = BTreeMap::new();
        let mut least_compute: Vec<Roles> = Vec::with_capacity(gpus.len());
        for (index, &gpu) in gpus.iter().enumerate() {
            let alike =
                |other: &Gpu| (&other.backend, other.alignment) == (&gpu.backend, gpu.alignment);
            let least = match gpus[..index].iter().position(|&other| alike(other)) {
                Some(known) => least_compute[known],
                None => {
                    let estimate = Estimate::new(profile, &[gpu], params)?;
                    let least = smallest_compute(profile, gpu, gpus.len() > 1, &estimate, params)?;
                    alone.insert(index, estimate);
                    least
                }
            };
            least_compute.push(least);
        }
        let estimate = match (gpus.len(), alone.get(&0)) {
            (1, Some(estimate)) => estimate.clone(),
            _ => Estimate::new(profile, gpus, params)?,
        };
        let workload = Workload::of(profile, estimate.sizes());
        let free = gpus
            .iter()
            .map(|gpu| gpu.free.saturating_sub(headroom(gpu, &workload)));
        let budgets: Vec<u64> = free.collect();
        let rooms: Vec<Roles> = budgets
            .iter()
            .zip(&least_compute)
            .map(|(&budget, &compute)| compute.map(|compute| budget.saturating_sub(compute)))
            .collect();
        let kv_on_host = !params.offload_kqv;
        let all_on_first = Assignment::by_counts(profile.n_layer(), &[profile.full_offload()]);
        let always_on_host = match gpus {
            [] => 0,
            _ => estimate.stored(&all_on_first).host.weights,
        };
        Ok(Self {
            always_on_host,
            table: Table::new(&estimate, &rooms, parts, traffic, rates, kv_on_host),
            budgets,
            alone,
            workload,
            setting,
        })
    }

    /// The table with as much more room as probes have shown the estimate to be too high by.
    fn corrected(&self, corrections: &Corrections) -> Table {
        let mut table = self.table.clone();
        for (&gpu, &more) in &corrections.gpus {
            let fewer = more.min(0).unsigned_abs();
            let rooms = &mut table.gpus[gpu].rooms;
            *rooms = rooms.map(|room| room.saturating_add(fewer));
        }
        table
    }
}

/// The smallest compute buffers that a GPU was seen to need, over placements on it alone, or as the first, a middle and the last one
/// of several. What a placement needs depends on the rest of it; three quarters leave room for what was not looked at.
fn smallest_compute(
    profile: &ModelProfile,
    gpu: &Gpu,
    one_of_several: bool,
    alone: &Estimate,
    params: &ContextParams,
) -> Result<Roles, Error> {
    let layers = profile.full_offload();
    let least = |estimate: &Estimate, ways: &[&[u32]]| {
        let seen = ways.iter().flat_map(|counts| {
            let assignment = Assignment::by_counts(profile.n_layer(), counts);
            let footprints = estimate.footprints_of(&assignment);
            let used = footprints.gpus.into_iter().zip(counts.iter());
            let used = used.filter(|&(_, &count)| count > 0);
            used.map(|(gpu, _)| gpu.compute).collect::<Vec<u64>>()
        });
        seen.min().unwrap_or(0)
    };
    let some = |n: u32| n.min(layers.saturating_sub(1)).max(2);
    let least_alone = Roles {
        output: least(alone, &[&[1]]),
        borrowing: least(alone, &[&[some(2)], &[some(layers / 2)], &[some(layers)]]),
        blocks: least(alone, &[&[layers]]),
    };
    if !one_of_several {
        return Ok(least_alone);
    }
    // A single copy of the graph is the smaller one.
    let several = Estimate::new(profile, &[gpu; 3], params)?.placing(|_| None);
    let third = (layers / 3).max(1);
    let rest = |n: u32| layers.saturating_sub(n);
    let least_of_several = least(
        &several,
        &[
            &[1, 1, rest(2)],
            &[1, rest(2), 1],
            &[third, third, rest(2 * third)],
            &[1, 1, 1],
            &[rest(1), 1, 0],
        ],
    );
    let least = |alone: u64| alone.min(least_of_several) / 4 * 3;
    Ok(least_alone.map(least))
}

/// What a token reads, by which placements are compared.
fn traffic(profile: &ModelProfile, request: &Request, params: &ContextParams) -> Traffic {
    let depth = request.depth.unwrap_or(params.n_ctx / 2);
    Traffic::of(profile, &counted(params), depth)
}
