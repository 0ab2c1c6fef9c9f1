//! What is loaded beside the main model: where it goes, and what it leaves.

use serde::{Deserialize, Serialize};

use crate::machine::{Bytes, Machine};
use crate::memory::companion::Role;
use crate::memory::{CompanionBytes, ContextParams, Headroom, Workload};

use super::{Error, Plan, Planner, Probe};

/// As many GPUs are tried for a companion: those with most free memory.
const MOST_GPUS: usize = 4;

/// A companion as it was planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedCompanion {
    /// What it is for.
    pub role: Role,
    /// Its name for people.
    pub name: String,
    /// The GPU that it is on, by its name for people; `None` on the host.
    pub gpu: Option<String>,
    /// That GPU's name in ggml, which a load uses: it may hold nothing of the model, and then has no placement.
    #[serde(default)]
    pub device: Option<String>,
    /// What it takes.
    pub bytes: CompanionBytes,
}

/// Where each companion goes: on the GPU of this index, or on the host.
type Spots = Vec<Option<usize>>;

/// A machine on which the companions have their places already.
struct Arrangement {
    machine: Machine,
    placed: Vec<PlannedCompanion>,
    /// Bytes that the companions take of each GPU, pools included, and of the host.
    taken: Vec<u64>,
    taken_of_host: u64,
}

impl Planner<'_> {
    /// The best plan over all places of the companions. On a GPU they come first: an image takes a hundred times as
    /// long on the host, and a draft that is no faster than the model is none.
    pub(super) fn beside_companions(&self, probe: Option<&dyn Probe>) -> Result<Plan, Error> {
        let params = self.params();
        let mut request = self.request.clone();
        if self.companions.iter().any(|one| one.role() == Role::Draft) {
            // The context of a draft is as long as the model's, and has been counted so.
            request = request.without_growth(&self.profile);
        }
        let mut best: Option<(Plan, Arrangement)> = None;
        let mut failed = None;
        let mut fewest_on_host = 0;
        for spots in self.all_spots() {
            if on_host(&spots) > fewest_on_host && best.is_some() {
                break;
            }
            fewest_on_host = on_host(&spots);
            let Some(arrangement) = self.arrange(&spots, &params)? else {
                continue;
            };
            let planner = Planner::new(&self.profile, &arrangement.machine).request(request.clone());
            match planner.plan_by(probe.filter(|_| planner.unknown().is_some())) {
                Ok(found) => {
                    let better = |(known, _): &(Plan, _)| is_better(&found, known);
                    if best.as_ref().is_none_or(better) {
                        best = Some((found, arrangement));
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        let names: Vec<String> = self.companions.iter().map(ToString::to_string).collect();
        let beside =
            |source: Option<Error>| Error::Beside { companions: names.join(" and "), source: source.map(Box::new) };
        let Some((_, arrangement)) = best else {
            return Err(beside(failed));
        };
        let planner = Planner::new(&self.profile, &arrangement.machine).request(request);
        let found = planner.plan_by(probe).map_err(|error| beside(Some(error)))?;
        Ok(arrangement.on_whole_machine(found, &self.machine))
    }

    /// Every way to place the companions, those with fewer on the host first.
    fn all_spots(&self) -> Vec<Spots> {
        let free = |gpu: &usize| self.machine.gpus[*gpu].free;
        let mut gpus: Vec<usize> = (0..self.machine.gpus.len()).collect();
        gpus.retain(|gpu| free(gpu) > 0);
        gpus.sort_by_key(|gpu| std::cmp::Reverse(free(gpu)));
        gpus.truncate(MOST_GPUS);
        gpus.sort_unstable();
        let spots: Vec<Option<usize>> = gpus.into_iter().map(Some).chain([None]).collect();
        let mut all = vec![Spots::new()];
        for _ in &self.companions {
            let longer = |begun: &Spots| spots.iter().map(|&spot| [&begun[..], &[spot]].concat()).collect::<Vec<_>>();
            all = all.iter().flat_map(longer).collect();
        }
        all.sort_by_key(on_host);
        all
    }

    /// What is left with the companions in these places; `None` where one finds no room.
    fn arrange(&self, spots: &Spots, params: &ContextParams) -> Result<Option<Arrangement>, Error> {
        let mut machine = Machine::clone(&self.machine);
        let mut taken = vec![0_u64; machine.gpus.len()];
        let mut taken_of_host = 0_u64;
        let mut placed = Vec::new();
        for (companion, &spot) in self.companions.iter().zip(spots) {
            let gpu = spot.map(|gpu| &self.machine.gpus[gpu]);
            let bytes = companion.bytes(gpu, params)?;
            taken_of_host = taken_of_host.saturating_add(bytes.host.total().saturating_add(bytes.host_uncertainty));
            if let (Some(index), Some(gpu)) = (spot, gpu) {
                // Its own, what that may be wrong by, and the pools of its backend.
                let workload = companion.workload(params)?;
                let pools = Headroom::Default.of_gpu(gpu, &workload, 0, self.machine.wsl).growth;
                let of_gpu = [bytes.gpu.total(), bytes.gpu_uncertainty, pools];
                taken[index] = of_gpu.into_iter().fold(taken[index], u64::saturating_add);
            }
            placed.push(PlannedCompanion {
                role: companion.role(),
                name: companion.name().to_owned(),
                gpu: gpu.map(|gpu| gpu.name.clone()),
                device: gpu.and_then(|gpu| gpu.device.clone()),
                bytes,
            });
        }
        for (gpu, &taken) in machine.gpus.iter_mut().zip(&taken) {
            // Its driver and a margin are needed there, whether or not the model has a layer there too.
            let headroom = self.request.headroom;
            let beside = headroom.of_gpu(gpu, &Workload::default(), 0, self.machine.wsl);
            if taken > 0 && taken.saturating_add(beside.total()) > gpu.free {
                return Ok(None);
            }
            let of_host = gpu.bytes_of_host(taken, beside.total());
            taken_of_host = taken_of_host.saturating_add(of_host);
            gpu.take(taken);
        }
        if taken_of_host > machine.host.available {
            return Ok(None);
        }
        machine.host.available -= taken_of_host;
        Ok(Some(Arrangement { machine, placed, taken, taken_of_host }))
    }
}

impl Arrangement {
    /// The plan on this arrangement, as a plan on the whole machine.
    fn on_whole_machine(self, mut plan: Plan, machine: &Machine) -> Plan {
        for (index, gpu) in self.machine.gpus.iter().enumerate() {
            let whole = &machine.gpus[index];
            let mut of_gpu = plan.placements.iter_mut().filter(|placement| {
                (&placement.name, &placement.device, placement.free) == (&gpu.name, &gpu.device, gpu.free)
                    && placement.companions == 0
            });
            if let Some(placement) = of_gpu.next() {
                placement.free = whole.free;
                placement.companions = self.taken[index];
            }
        }
        if let Some(host) = plan.placements.last_mut() {
            host.free = machine.host.available;
            host.companions = self.taken_of_host;
        }
        for PlannedCompanion { role, name, gpu, bytes, .. } in &self.placed {
            let bytes = Bytes(bytes.gpu.total().saturating_add(bytes.host.total()));
            let place = gpu.as_deref().unwrap_or("the host");
            plan.notes.push(format!("{role} {name} on {place}: {bytes}"));
        }
        plan.companions = self.placed;
        plan
    }
}

/// Companions that are on the host.
fn on_host(spots: &Spots) -> usize {
    spots.iter().filter(|spot| spot.is_none()).count()
}

/// Whether a plan is faster, or, of those that embed, has more layers on GPUs.
fn is_better(plan: &Plan, known: &Plan) -> bool {
    match (&plan.speed, &known.speed) {
        (Some(plan), Some(known)) => plan.seconds() < known.seconds(),
        _ => (plan.n_gpu_layers, known.parted_blocks) > (known.n_gpu_layers, plan.parted_blocks),
    }
}
