//! Placement of companions (files that are loaded together with the main model), and the machine that remains for the
//! model.

use serde::{Deserialize, Serialize};

use crate::json;
use crate::machine::{Bytes, Machine};
use crate::memory::companion::{self, CompanionRole, DraftOptions};
use crate::memory::{Companion, CompanionBytes, ContextParams, Headroom, PeakSizes};

use super::{Depth, Error, Plan, Planner, Probe};

/// Maximum number of GPUs that are candidates for companions: those with the most free memory.
const MAX_COMPANION_GPUS: usize = 4;

/// A planned companion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedCompanion {
    /// The companion's purpose.
    pub role: CompanionRole,
    /// The companion's name for people.
    pub name: String,
    /// The name of the companion's GPU, for people; `None` if it is on the host.
    pub gpu: Option<String>,
    /// The name of the companion's GPU in ggml, which a load uses. The plan has no placement for this GPU if no part of
    /// the model is on it.
    #[serde(default)]
    pub device: Option<String>,
    /// Bytes that the companion takes.
    pub bytes: CompanionBytes,
    /// The options of a draft; for another companion, the defaults.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub draft: DraftOptions,
}

/// For each companion, the index of its GPU, or `None` for the host.
type Spots = Vec<Option<usize>>;

/// The machine after the companions have taken their memory.
struct Arrangement {
    machine: Machine,
    placed: Vec<PlannedCompanion>,
    /// Bytes that the companions take on each GPU, memory pools included.
    taken: Vec<u64>,
    /// Bytes that the companions take on the host.
    taken_of_host: u64,
}

impl Planner<'_> {
    /// The best plan over all placements of the companions. Companions get GPUs before the model's layers: an image
    /// takes a hundred times as long on the host, and a draft model that is as slow as the main model is of no use.
    pub(super) fn beside_companions(&self, probe: Option<&dyn Probe>) -> Result<Plan, Error> {
        if let Some((raised, note)) = self.with_rows_at_once() {
            let mut plan = raised.beside_companions(probe)?;
            plan.notes.push(note);
            return Ok(plan);
        }
        let params = self.params();
        let mut request = self.request.clone();
        if request.depth == Depth::Follow {
            // A companion stays on its device when the model moves, and a second placement of the model could need that
            // memory.
            request.depth = Depth::All;
        }
        if self.companions.iter().any(|companion| companion.role() == CompanionRole::Draft) {
            // The companion's bytes were computed for a draft whose context is as long as the requested context of the
            // model.
            request = request.without_growth(&self.profile);
        }
        let mut best: Option<(Plan, Arrangement)> = None;
        let mut failed = None;
        let mut fewest_on_host = 0;
        for spots in self.all_spots()? {
            if on_host(&spots) > fewest_on_host && best.is_some() {
                break;
            }
            fewest_on_host = on_host(&spots);
            let Some(arrangement) = self.arrange(&spots, &params)? else {
                continue;
            };
            let planner =
                Planner::new(&self.profile, &arrangement.machine).request(request.clone()).expert_hits(self.hits);
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
        let planner = Planner::new(&self.profile, &arrangement.machine).request(request).expert_hits(self.hits);
        let found = planner.plan_by(probe).map_err(|error| beside(Some(error)))?;
        Ok(arrangement.on_whole_machine(found, &self.machine))
    }

    /// The planner with an ubatch large enough for the rows that a companion needs at once, and a note about it. `None`
    /// if every ubatch of the request is large enough.
    fn with_rows_at_once(&self) -> Option<(Self, String)> {
        let rows = self.companions.iter().filter_map(Companion::rows_at_once).max()?;
        let mut raised = self.clone();
        let request = &mut raised.request;
        if request.params.computed() < rows {
            request.params.n_ubatch = rows;
            request.params.n_batch = request.params.n_batch.max(rows);
        }
        request.min_ubatch = request.min_ubatch.map(|least| least.max(rows));
        let is_raised = raised.request != self.request;
        let note = format!("an image has up to {rows} rows, which are computed at once: n_ubatch is at least that");
        is_raised.then_some((raised, note))
    }

    /// Every assignment of the companions to GPUs and host, in ascending order of the number of companions on the host.
    fn all_spots(&self) -> Result<Vec<Spots>, companion::Error> {
        let free = |gpu: &usize| self.machine.gpus[*gpu].free;
        let mut gpus: Vec<usize> = (0..self.machine.gpus.len()).collect();
        gpus.retain(|gpu| free(gpu) > 0);
        gpus.sort_by_key(|gpu| std::cmp::Reverse(free(gpu)));
        gpus.truncate(MAX_COMPANION_GPUS);
        gpus.sort_unstable();
        let mut all = vec![Spots::new()];
        for companion in &self.companions {
            let spots = self.spots_of(companion, &gpus)?;
            let longer = |begun: &Spots| spots.iter().map(|&spot| [&begun[..], &[spot]].concat()).collect::<Vec<_>>();
            all = all.iter().flat_map(longer).collect();
        }
        all.sort_by_key(on_host);
        Ok(all)
    }

    /// The possible places of one companion: the place that its options name; without one, the candidate GPUs, and the
    /// host unless the options state GPU layers.
    fn spots_of(&self, companion: &Companion, gpus: &[usize]) -> Result<Spots, companion::Error> {
        let options = companion.options();
        if options.is_on_host() {
            return Ok(vec![None]);
        }
        if let Some(device) = options.device {
            let there = self.machine.gpu_named(&device);
            let draft = || companion.name().to_owned();
            return match there {
                Ok(gpu) => Ok(vec![Some(gpu)]),
                Err(there) => Err(companion::Error::Device { draft: draft(), device, there }),
            };
        }
        let host = (options.n_gpu_layers.is_none() || gpus.is_empty()).then_some(None);
        Ok(gpus.iter().copied().map(Some).chain(host).collect())
    }

    /// The machine that remains after the companions were placed at `spots`; `None` if a companion does not fit there.
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
                // The bytes of the companion, the uncertainty of these bytes, and the memory pools of its backend.
                let peak_sizes = companion.peak_sizes(params)?;
                let pools = Headroom::Default.of_gpu(gpu, &peak_sizes, 0, self.machine.wsl).growth;
                let of_gpu = [bytes.gpu.total(), bytes.gpu_uncertainty, pools];
                taken[index] = of_gpu.into_iter().fold(taken[index], u64::saturating_add);
            }
            placed.push(PlannedCompanion {
                role: companion.role(),
                name: companion.name().to_owned(),
                gpu: gpu.map(|gpu| gpu.name.clone()),
                device: gpu.and_then(|gpu| gpu.device.clone()),
                bytes,
                draft: companion.options(),
            });
        }
        for (gpu, &taken) in machine.gpus.iter_mut().zip(&taken) {
            // On the GPU, the driver's memory and a margin are needed too, whether or not the GPU has a layer of the
            // model.
            let headroom = self.request.headroom;
            let beside = headroom.of_gpu(gpu, &PeakSizes::default(), 0, self.machine.wsl);
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
    /// Turns a plan on this arrangement into a plan on the whole machine.
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
        for PlannedCompanion { role, name, gpu, bytes, draft, .. } in &self.placed {
            let bytes = Bytes(bytes.gpu.total().saturating_add(bytes.host.total()));
            let place = gpu.as_deref().unwrap_or("the host");
            let layers = draft.n_gpu_layers.filter(|_| gpu.is_some());
            let layers = layers.map_or_else(String::new, |layers| format!("{layers} layers of "));
            plan.notes.push(format!("{layers}{role} {name} on {place}: {bytes}"));
        }
        plan.companions = self.placed;
        plan
    }
}

/// Number of companions on the host.
fn on_host(spots: &Spots) -> usize {
    spots.iter().filter(|spot| spot.is_none()).count()
}

/// Whether `plan` is faster than `known`. Plans for embeddings are compared by their numbers of layers on GPUs.
fn is_better(plan: &Plan, known: &Plan) -> bool {
    match (&plan.speed, &known.speed) {
        (Some(plan), Some(known)) => plan.seconds() < known.seconds(),
        _ => (plan.n_gpu_layers, known.split_blocks) > (known.n_gpu_layers, plan.split_blocks),
    }
}
