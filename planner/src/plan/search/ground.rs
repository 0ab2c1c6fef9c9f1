//! What holds for all placements of one setting: sums over the layers, and the room that each GPU has for them.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::machine::Gpu;
use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Estimate, Place, Workload};
use crate::plan::speed::{Rates, SpeedModel};
use crate::plan::{self, Error};
use crate::profile::ModelProfile;

use super::Corrections;
use super::parts::Parts;
use super::setting::Setting;
use super::table::{Roles, Table};

/// What holds for all placements of one setting.
pub(super) struct Ground {
    pub(super) setting: Setting,
    /// Bytes of weights that are on the host wherever the layers are.
    pub(super) always_on_host: u64,
    /// What each GPU has beside its headroom, in bytes.
    pub(super) budgets: Vec<u64>,
    /// The estimates of each GPU alone, but for those that are like an earlier one.
    pub(super) alone: BTreeMap<usize, Rc<Estimate>>,
    pub(super) table: Table,
    pub(super) workload: Workload,
}

impl Ground {
    pub(super) fn new(
        profile: &ModelProfile,
        headroom: impl Fn(&Gpu, &Workload) -> u64,
        gpus: &[&Gpu],
        setting: Setting,
        parts: &Parts<'_>,
        rates: &Rates,
        work: &plan::Workload,
    ) -> Result<Self, Error> {
        let params = &setting.params;
        let mut alone = BTreeMap::new();
        let mut least_compute: Vec<Roles> = Vec::with_capacity(gpus.len());
        for (index, &gpu) in gpus.iter().enumerate() {
            let alike = |other: &Gpu| (&other.backend, other.alignment) == (&gpu.backend, gpu.alignment);
            let least = match gpus[..index].iter().position(|&other| alike(other)) {
                Some(known) => least_compute[known],
                None => {
                    let estimate = Estimate::new(profile, &[gpu], params)?;
                    let several = gpus.len() > 1;
                    let least = smallest_compute(profile, gpu, several, &estimate, parts, params)?;
                    alone.insert(index, Rc::new(estimate));
                    least
                }
            };
            least_compute.push(least);
        }
        let estimate = match (gpus.len(), alone.get(&0)) {
            (1, Some(estimate)) => Rc::clone(estimate),
            _ => Rc::new(Estimate::new(profile, gpus, params)?),
        };
        let workload = Workload::of(profile, estimate.sizes());
        let free = gpus.iter().map(|gpu| gpu.free.saturating_sub(headroom(gpu, &workload)));
        let budgets: Vec<u64> = free.collect();
        let rooms: Vec<Roles> = budgets
            .iter()
            .zip(&least_compute)
            .map(|(&budget, &compute)| compute.map(|compute| budget.saturating_sub(compute)))
            .collect();
        let model = SpeedModel::new(profile, params, rates.clone());
        let all_on_first = Assignment::by_counts(profile.n_layer(), &[profile.full_offload()]);
        let always_on_host = match gpus {
            [] => 0,
            _ => estimate.stored(&all_on_first).host.weights,
        };
        Ok(Self {
            always_on_host,
            table: Table::new(&estimate, &rooms, parts, &model, work),
            budgets,
            alone,
            workload,
            setting,
        })
    }

    /// The table with as much more room as probes have shown the estimate to be too high by.
    pub(super) fn corrected(&self, corrections: &Corrections) -> Table {
        let mut table = self.table.clone();
        for (&gpu, &more) in &corrections.gpus {
            let fewer = more.min(0).unsigned_abs();
            let rooms = &mut table.gpus[gpu].rooms;
            *rooms = rooms.map(|room| room.saturating_add(fewer));
        }
        table
    }
}

/// The smallest compute buffers that a GPU was seen to need, over placements on it alone, or as the first, a
/// middle and the last one of several. What a placement needs depends on the rest of it; half leaves room for what
/// was not looked at.
fn smallest_compute(
    profile: &ModelProfile,
    gpu: &Gpu,
    one_of_several: bool,
    alone: &Estimate,
    parts: &Parts<'_>,
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
    let by_role = |estimate: &Estimate| Roles {
        output: least(estimate, &[&[1]]),
        borrowing: least(estimate, &[&[some(2)], &[some(layers / 2)], &[some(layers)]]),
        blocks: least(estimate, &[&[layers]]),
    };
    let mut least_alone = by_role(alone);
    if !parts.all.is_empty() {
        // What is not there need not be computed with.
        let names = parts.names();
        let parted = by_role(&alone.clone().placing(|name| names.contains(name).then_some(Place::Host)));
        least_alone = least_alone.least(parted);
    }
    if !one_of_several {
        return Ok(least_alone);
    }
    // A single copy of the graph is the smaller one.
    let several = Estimate::new(profile, &[gpu; 3], params)?.placing(|_| None);
    let third = (layers / 3).max(1);
    let rest = |n: u32| layers.saturating_sub(n);
    let least_of_several = least(
        &several,
        &[&[1, 1, rest(2)], &[1, rest(2), 1], &[third, third, rest(2 * third)], &[1, 1, 1], &[rest(1), 1, 0]],
    );
    let least = |alone: u64| alone.min(least_of_several) / 2;
    Ok(least_alone.map(least))
}
