//! What holds for all placements of one setting: sums over the layers, and the room that each device has for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::machine::Gpu;
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate, Workload};
use crate::plan::speed::SpeedModel;
use crate::plan::{Error, kv_cache};

use super::footprints::keeping;
use super::order::Order;
use super::setting::Setting;
use super::table::{ROLES, Run, Table};
use super::{Correction, Placements};

/// What holds for all placements of one setting.
pub(super) struct Ground<'a> {
    pub(super) params: ContextParams,
    /// How often the tokens that are computed at once were doubled, and how many types of the cache are wider.
    pub(super) doubled: u32,
    pub(super) smaller_kv: u32,
    /// By how much seconds count more than they last.
    pub(super) surcharge: f64,
    /// Whether each GPU fuses attention over this cache: where it does not, a smaller type is no choice.
    pub(super) fused: Vec<bool>,
    /// Bytes of weights and caches that are on the host wherever the layers are.
    pub(super) always_on_host: u64,
    /// The estimates of orders of GPUs, as far as they were made.
    estimates: RefCell<BTreeMap<Order, Rc<Estimate>>>,
    /// The smallest compute buffers of each GPU, and of the host beside it.
    least: Vec<Least>,
    pub(super) table: Table<'a>,
    pub(super) workload: Workload,
}

/// The smallest compute buffers among some placements, with what they may be larger by where that is kept free: of a
/// GPU by the role of a run on it, and of the host beside it by its role.
#[derive(Debug, Clone, Copy)]
struct Least {
    gpu: [u64; ROLES],
    host: [u64; HOST_ROLES],
}

/// The number of roles that the host may have beside GPUs.
pub(super) const HOST_ROLES: usize = 4;

/// What the host's compute buffer beside GPUs depends on, but for details: whether it holds layers, and parts of
/// others.
pub(super) const fn host_role(layers: u32, parts: u32) -> usize {
    2 * (layers > 0) as usize + (parts > 0) as usize
}

impl<'a> Ground<'a> {
    /// `model` is over all GPUs.
    pub(super) fn new(of: &Placements<'a>, setting: Setting, model: &SpeedModel) -> Result<Self, Error> {
        let (profile, gpus) = (of.profile, &of.gpus);
        let Setting { params, doubled, smaller_kv, surcharge } = setting;
        let order: Order = (0..gpus.len()).collect();
        let all = Rc::new(estimate(of, &order, &params)?);
        let workload = Workload::of(profile, all.sizes());
        let headroom = |gpu: &Gpu| of.request.headroom.of_gpu(gpu, &workload, 0, of.machine.wsl).total();
        let budgets: Vec<u64> = gpus.iter().map(|gpu| gpu.free.saturating_sub(headroom(gpu))).collect();
        let all_on_first = Assignment::by_counts(profile.n_layer(), &[profile.full_offload()]);
        let always_on_host = if gpus.is_empty() { 0 } else { all.stored(&all_on_first).host.total() };
        let mut ground = Self {
            doubled,
            smaller_kv,
            surcharge,
            fused: gpus.iter().map(|gpu| kv_cache::is_fused(&gpu.backend, profile, &params)).collect(),
            always_on_host,
            table: Table::new(&all, &budgets, &of.parts, model, &of.request.work(profile)),
            estimates: RefCell::new(BTreeMap::from([(order, all)])),
            least: Vec::with_capacity(gpus.len()),
            workload,
            params,
        };
        for (index, &gpu) in gpus.iter().enumerate() {
            let alike = |other: &&Gpu| (&other.backend, other.alignment) == (&gpu.backend, gpu.alignment);
            let least = match gpus[..index].iter().position(alike) {
                Some(known) => ground.least[known],
                None => ground.least_compute(of, index)?,
            };
            ground.least.push(least);
        }
        Ok(ground)
    }

    /// Whether the GPUs have room for all layers and for one more each.
    pub(super) fn holds_all(&self) -> bool {
        let layers = self.table.layers as usize;
        let rooms = self.table.gpus.iter().zip(&self.least).map(|(gpu, least)| {
            let compute = least.gpu.into_iter().filter(|bytes| *bytes > 0).min().unwrap_or(0);
            gpu.budget.saturating_sub(compute).saturating_sub(gpu.bytes[layers] / u64::from(self.table.layers))
        });
        let room = rooms.fold(0, u64::saturating_add);
        self.table.gpus.iter().all(|gpu| gpu.bytes[layers] <= room)
    }

    /// The estimate for GPUs in this order, nothing of it elsewhere.
    pub(super) fn estimate(&self, of: &Placements<'_>, order: &[usize]) -> Result<Rc<Estimate>, Error> {
        if let Some(known) = self.estimates.borrow().get(order) {
            return Ok(Rc::clone(known));
        }
        let estimate = Rc::new(estimate(of, order, &self.params)?);
        self.estimates.borrow_mut().insert(order.to_vec(), Rc::clone(&estimate));
        Ok(estimate)
    }

    /// The table, with the room that compute buffers leave which are off by what a probe has shown.
    pub(super) fn corrected(&self, correction: &Correction) -> Table<'a> {
        let mut table = self.table.clone();
        for (gpu, (table, least)) in table.gpus.iter_mut().zip(&self.least).enumerate() {
            let more = correction.of_gpu(gpu);
            let room = |least: u64| table.budget.saturating_sub(least.saturating_add_signed(more));
            table.rooms = least.gpu.map(room);
        }
        table
    }

    /// The smallest compute buffer of the host beside these GPUs, by its role; without any it is not known.
    pub(super) fn least_on_host(&self, order: &[usize]) -> [u64; HOST_ROLES] {
        let all = order.iter().map(|&gpu| self.least[gpu].host);
        all.reduce(|a, b| std::array::from_fn(|role| a[role].min(b[role]))).unwrap_or_default()
    }

    /// The smallest compute buffers that a GPU and the host beside it need, over placements on it alone, and on three
    /// like it where there are several: with nothing elsewhere, with the smallest part that may be, and with all.
    fn least_compute(&self, of: &Placements<'_>, gpu: usize) -> Result<Least, Error> {
        let mut least = Least { gpu: [u64::MAX; ROLES], host: [u64::MAX; HOST_ROLES] };
        let parts = &self.table.parts;
        let last = parts.all.iter().zip(parts.are_last()).filter(|(_, is_last)| *is_last);
        let smallest = last.map(|(part, _)| part).min_by_key(|part| part.bytes);
        let all = (!parts.all.is_empty()).then_some(&parts.all[..]);
        let elsewhere = [Some(&[][..]), smallest.map(std::slice::from_ref), all];
        for order in [vec![gpu], vec![gpu; 3]].into_iter().take(of.gpus.len().min(2)) {
            let estimate = self.estimate(of, &order)?;
            for kept in elsewhere.into_iter().flatten() {
                let estimate = match kept.is_empty() && order.len() == 1 {
                    true => Estimate::clone(&estimate),
                    // A single copy of the graph is the smaller one.
                    false => keeping(&estimate, kept.iter()),
                };
                let kept = u32::try_from(kept.len()).unwrap_or(u32::MAX);
                for counts in samples(self.table.layers, order.len()) {
                    self.see(of, &estimate, &counts, kept, &mut least);
                }
            }
        }
        // Of a role that no sample has nothing is known.
        let known = |bytes: u64| if bytes == u64::MAX { 0 } else { bytes };
        Ok(Least { gpu: least.gpu.map(known), host: least.host.map(known) })
    }

    /// Takes into account what a placement needs of which so many parts are on the host.
    fn see(&self, of: &Placements<'_>, estimate: &Estimate, counts: &[u32], kept: u32, least: &mut Least) {
        let layers = self.table.layers;
        let (footprints, unsure) = estimate.with_uncertainty(&Assignment::by_counts(layers - 1, counts));
        let on_gpus = of.probe.is_none() && !of.request.headroom.is_exact();
        let first = layers - counts.iter().sum::<u32>();
        let mut begin = first;
        for (n, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let end = begin + count;
            let parts = self.table.parts.count(begin, end);
            let role = Run::of(n, begin, end, kept.min(parts)).role(layers, parts);
            let unsure = if on_gpus { unsure.gpus[n] } else { 0 };
            let bytes = footprints.gpus[n].compute.saturating_add(unsure);
            least.gpu[role] = least.gpu[role].min(bytes);
            begin = end;
        }
        let unsure = if of.probe.is_none() { unsure.host } else { 0 };
        let role = &mut least.host[host_role(first, kept)];
        *role = footprints.host.compute.saturating_add(unsure).min(*role);
    }
}

/// The estimate for GPUs in this order. Their weights are the same under all settings.
fn estimate(of: &Placements<'_>, order: &[usize], params: &ContextParams) -> Result<Estimate, Error> {
    let gpus: Vec<&Gpu> = order.iter().map(|&gpu| of.gpus[gpu]).collect();
    Ok(match of.grounds.first() {
        Some(first) if !std::ptr::eq(&first.params, params) => {
            first.estimate(of, order)?.with_params(of.profile, &gpus, params)
        }
        _ => Estimate::new(of.profile, &gpus, params),
    }?)
}

/// Layers on each of one or three GPUs: few and many, with the host and without, and single blocks, of which some may
/// keep windows and others everything.
fn samples(layers: u32, gpus: usize) -> impl Iterator<Item = Vec<u32>> {
    let some = [0, 1, 2, 3, 4, 5, 6, layers / 3, layers / 2];
    let rest = move |n: u32| layers.saturating_sub(n);
    let of = move |n: u32| match gpus {
        1 => vec![vec![n], vec![rest(n)]],
        _ => vec![vec![n, 1, rest(n + 1)], vec![1, rest(n + 2), 1], vec![1, rest(n + 1), 0]],
    };
    some.into_iter().flat_map(of).filter(move |counts| (1..=layers).contains(&counts.iter().sum()))
}
