//! Compares the placement of a running program with the plan that autoplace makes for the same card. In: the program.
//! Out: evidence about both placements.

use std::error::Error;
use std::path::Path;

use autoplace::Model;
use autoplace::gguf::Header;
use autoplace::machine::Machine;
use autoplace::memory::Headroom;
use autoplace::plan::speed::ExpertHits;
use autoplace::plan::{self, GpuLayers, HostParts, Placement, Plan, Planner, Request};
use autoplace::profile::ModelProfile;
use autoplace_measure::{Evidence, ModelEvidence, Running};

use super::{Found, Program, Seen};
use crate::ask::AskArgs;
use crate::emit::{Tool, emit};

/// Adds the program's model to the evidence: the placement that it has now, and autoplace's plan on the same machine.
/// If `ask` leaves a setting open, the program's setting is used. The error is one line, and contains the missing file
/// or the setting that cannot be read.
pub(crate) fn compare(
    mut evidence: Evidence,
    found: &Found,
    model: Option<&Path>,
    ask: &AskArgs,
) -> Result<Evidence, Box<dyn Error>> {
    let (seen, program) = (&found.seen, found.program);
    let Some(model) = model.or(seen.model.as_deref()) else {
        let name = seen.name.as_ref().map_or_else(String::new, |name| format!(" of `{name}`"));
        return Err(format!("{program} does not report the model's file{name}: run `doctor FILE --watch ...`").into());
    };
    let profile = ModelProfile::from_header(&Header::open(model)?)?;
    let mut notes = seen.notes.clone();
    let request = requested(&found.seen, &profile, &mut notes)?;
    let ours = ask.over(request.clone());
    // The program already runs with this placement, so it does fit.
    let request = request.host_parts(HostParts::None).headroom(Headroom::Tight);
    let hits = Model::builder(model).expert_hits(&evidence.machine, profile.file_bytes);
    let theirs = Theirs { profile: &profile, request, hits };

    let machine = &mut evidence.machine;
    let held = held(found, machine);
    let is_simulated = machine.gpus.iter().all(|gpu| gpu.device.is_none());
    let is_room_known = match (held, theirs.stated()) {
        (Some(_), _) => true,
        _ if is_simulated || seen.on_gpus.is_some_and(|(on_gpus, _)| on_gpus == 0) => true,
        (None, Some(layers)) => theirs.give_back(machine, layers),
        (None, None) => false,
    };
    let mut running = Running::default();
    running.program = [program.to_string()].into_iter().chain(seen.version.clone()).collect::<Vec<_>>().join(" ");
    running.pid = Some(found.pid);
    running.tokens_per_second = seen.speed;
    running.on_gpus = seen.on_gpus.map(|(bytes, _)| bytes).or(held.filter(|&bytes| bytes > 0));
    notes.extend(seen.unlike.iter().map(|reason| format!("{reason}, so the program is not compared with a plan")));
    if seen.unlike.is_empty() {
        running.n_gpu_layers = theirs.layers(found, held, running.on_gpus, machine, &mut notes);
    }
    match running.n_gpu_layers.map(|layers| theirs.plan(machine, layers)) {
        Some(Ok(plan)) => running.predicted = plan.speed.map(|speed| speed.tokens_per_second),
        Some(Err(error)) => notes.push(format!("the program's settings cannot be planned: {error}")),
        None => {}
    }

    let mut evidence = evidence.with_model(model, &ours)?;
    let added = evidence.model.get_or_insert_default();
    if let Some(mut plan) = added.plan.clone().filter(|_| is_room_known) {
        // The path in the output must be valid for the program itself, so the root folder of its container is removed.
        let root = format!("/proc/{}/root", found.pid);
        let inside = model.strip_prefix(root).map(|path| Path::new("/").join(path));
        plan.model.path = Some(inside.unwrap_or_else(|_| model.to_owned()));
        let tool = match program {
            Program::LlamaServer => Tool::LlamaCpp,
            Program::Ollama => Tool::Ollama,
            Program::LmStudio => Tool::LmStudio,
            Program::KoboldCpp => Tool::KoboldCpp,
        };
        match emit(&plan, tool) {
            // The comments of `plan --emit` are left out, except for the environment variables of Ollama's server.
            Ok(text) => {
                let said = |line: &&str| !line.starts_with('#') || line.starts_with("#   ");
                let lines = text.lines().filter(said);
                running.otherwise = Some(lines.collect::<Vec<_>>().join("\n"));
            }
            Err(error) => notes.push(error),
        }
    } else {
        let unknown = "the program's memory is unknown, and so is the memory that is free for layers: run this again after the program has ended";
        notes.push(unknown.to_owned());
        *added = ModelEvidence::default();
        added.path = model.to_owned();
    }
    running.notes = notes;
    added.running = Some(running);
    Ok(evidence)
}

const NOTHING_HELD: &str = "the program was started with layers on GPUs but holds no GPU memory: its build has no GPU backend, or its container has no GPU";

/// The request that expresses the program's settings.
fn requested(seen: &Seen, profile: &ModelProfile, notes: &mut Vec<String>) -> Result<Request, String> {
    let mut usual = Request::new();
    usual.max_ubatch = None;
    let mut request = seen.flags.request(&usual, profile.full_offload())?;
    if let Some((sequences, unified)) = seen.sequences {
        (request.params.n_seq_max, request.params.kv_unified) = (sequences, unified);
    }
    if seen.flags.get("-c").is_none_or(|tokens| tokens == "0") {
        request = request.n_ctx(profile.hparams.n_ctx_train);
        notes.push("the program does not report its context: the model's training context is assumed".to_owned());
    }
    Ok(request)
}

/// Changes the machine so that the program's memory counts as free. Returns the program's bytes on GPUs; `None` if they
/// are not known.
fn held(found: &Found, machine: &mut Machine) -> Option<u64> {
    let held = found.given_back(machine);
    let Some((on_gpus, _)) = found.seen.on_gpus.filter(|(on_gpus, _)| held.unwrap_or(0) == 0 && *on_gpus > 0) else {
        return held;
    };
    // Some drivers do not report the bytes of a program. Then the number is used that the program itself reports.
    let [gpu] = machine.gpus.as_mut_slice() else { return None };
    gpu.free = gpu.free.saturating_add(on_gpus).min(gpu.total);
    Some(on_gpus)
}

/// The model of the program, with the placement that the program's settings ask for.
struct Theirs<'a> {
    profile: &'a ModelProfile,
    request: Request,
    hits: ExpertHits,
}

impl Theirs<'_> {
    /// The number of layers on GPUs that the settings ask for.
    fn stated(&self) -> Option<u32> {
        match self.request.gpu_layers {
            GpuLayers::Exactly(layers) => Some(layers),
            GpuLayers::All => Some(self.profile.full_offload()),
            _ => None,
        }
    }

    /// The number of layers that are on GPUs now, if it is known.
    fn layers(
        &self,
        found: &Found,
        held: Option<u64>,
        on_gpus: Option<u64>,
        machine: &Machine,
        notes: &mut Vec<String>,
    ) -> Option<u32> {
        let layers = match (self.stated(), found.seen.on_gpus, on_gpus) {
            (Some(layers), None, None) if held == Some(0) && layers > 0 => {
                notes.push(NOTHING_HELD.to_owned());
                Some(0)
            }
            (Some(layers), ..) => Some(layers),
            (_, Some((on_gpus, bytes)), _) if on_gpus >= bytes => Some(self.profile.full_offload()),
            (_, Some((0, _)), _) => Some(0),
            // llama.cpp's fit moves experts off a GPU first, and layers only after that.
            (_, _, Some(bytes)) if found.program != Program::LlamaServer || self.profile.hparams.experts.is_none() => {
                self.layers_in(bytes, machine)
            }
            _ if held == Some(0) => Some(0),
            _ => None,
        };
        if layers.is_none() {
            notes.push("it is not known how many layers the program has on GPUs".to_owned());
        }
        layers
    }

    fn plan(&self, machine: &Machine, layers: u32) -> Result<Plan, plan::Error> {
        let request = self.request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
        Planner::new(self.profile, machine).request(request).expert_hits(self.hits).plan()
    }

    /// The number of layers that take as many bytes on GPUs as the program does.
    fn layers_in(&self, held: u64, machine: &Machine) -> Option<u32> {
        let bytes = |layers| {
            let plan = self.plan(machine, layers).ok()?;
            let gpus = plan.gpus().filter(|gpu| gpu.layers > 0);
            Some(gpus.map(taken).fold(0, u64::saturating_add))
        };
        let plans = (0..=self.profile.full_offload()).filter_map(|layers| Some((layers, bytes(layers)?)));
        // The closest number is used, because the program may count its buffers in another way.
        plans.min_by_key(|(_, bytes)| bytes.abs_diff(held)).map(|(layers, _)| layers)
    }

    /// Changes the machine so that the memory of these layers counts as free on each GPU. Returns false if that memory
    /// is not known.
    fn give_back(&self, machine: &mut Machine, layers: u32) -> bool {
        let mut empty = machine.clone();
        empty.gpus.iter_mut().for_each(|gpu| gpu.free = gpu.total);
        let Ok(plan) = self.plan(&empty, layers) else { return false };
        for placed in plan.gpus() {
            let Some(gpu) = machine.gpus.iter_mut().find(|gpu| gpu.device == placed.device) else { return false };
            gpu.free = gpu.free.saturating_add(taken(placed)).min(gpu.total);
        }
        true
    }
}

/// The bytes that a placement takes on a GPU, including those of the driver.
fn taken(gpu: &Placement) -> u64 {
    gpu.footprint.total().saturating_add(gpu.headroom.driver)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use autoplace::machine::{Gpu, GpuProcess, Host, Machine, gib, mib};
    use autoplace::memory::{Place, TensorOverride};
    use autoplace::plan::speed::ExpertHits;
    use autoplace::plan::{MoeCache, Request};
    use autoplace::profile::ModelProfile;
    use autoplace_measure::{Evidence, FindingCause};
    use clap::Parser;
    use test_support::synthetic::named;

    use super::super::{Found, Program, Seen};
    use super::{Theirs, compare};
    use crate::args::{Args, Verb};
    use crate::ask::AskArgs;
    use crate::flags::Flags;

    /// A process id that no process has.
    const PID: u32 = u32::MAX;

    fn ask() -> AskArgs {
        let args = Args::parse_from(["autoplace", "plan", "a.gguf", "--headroom", "0"]);
        let Verb::Plan(args) = args.verb else { unreachable!() };
        args.ask
    }

    /// The evidence for a server with these flags, on a card with 4 GiB.
    fn watched(flags: &str, free: u64, processes: Option<Vec<GpuProcess>>) -> Evidence {
        let mut gpu = Gpu::new("A card").total(gib(4)).free(free).bandwidth(1 << 40);
        (gpu.device, gpu.processes) = (Some("CUDA0".to_owned()), processes);
        let seen = Seen { flags: Flags::of_script(flags).unwrap(), ..Seen::default() };
        let found = Found { program: Program::LlamaServer, pid: PID, family: vec![PID], seen };
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
        let mut machine = Machine::new(Host::new(gib(8)));
        machine.gpus.push(gpu);
        compare(Evidence::new(machine), &found, Some(Path::new(demo)), &ask()).unwrap()
    }

    /// How many layers are on the card in the program and in the plan, and whether a finding says that the program
    /// could be faster.
    fn layers(evidence: &Evidence) -> (Option<u32>, Option<u32>, bool) {
        let model = evidence.model.as_ref().unwrap();
        let running = model.running.as_ref().unwrap();
        let plan = model.plan.as_ref().map(|plan| plan.n_gpu_layers);
        let is_slower = evidence.diagnose().iter().any(|finding| finding.cause == FindingCause::RunsSlower);
        (running.n_gpu_layers, plan, is_slower)
    }

    #[test]
    fn the_prediction_for_a_cache_of_experts_uses_observed_hits() {
        let sketch = named("qwen3moe Qwen3 30B A3B");
        let profile = ModelProfile::from_header(&sketch.builder().header().unwrap()).unwrap();
        let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::named("RTX 3060 12GB").unwrap());
        let on_host = TensorOverride::new("_exps", Place::Host);
        let request = Request::new().n_ctx(4096).overrides(vec![on_host]).moe_cache(MoeCache::Bytes(gib(4)));
        let speed = |locality: f64| {
            let hits = ExpertHits::new(locality);
            let plan = Theirs { profile: &profile, request: request.clone(), hits }.plan(&machine, 49).unwrap();
            assert!(plan.moe_cache.is_some(), "{plan}");
            plan.speed.unwrap().tokens_per_second
        };
        assert!(speed(30.0) > 1.1 * speed(3.0));
    }

    #[test]
    fn memory_that_the_program_holds_counts_as_free_for_it() {
        let own = || Some(vec![GpuProcess::new(PID).bytes(gib(3))]);
        assert_eq!(layers(&watched("-ngl 2 -c 512", mib(4), own())), (Some(2), Some(7), true));
        // No driver reports whose bytes these are, but the number of layers is known.
        assert_eq!(layers(&watched("-ngl 7 -c 512", 0, None)), (Some(7), Some(7), false));
        let of_nobody = Some(vec![GpuProcess::new(PID)]);
        assert_eq!(layers(&watched("-ngl 7 -c 512", 0, of_nobody)), (Some(7), Some(7), false));
        // Neither the bytes nor the number of layers is known, so there is no finding.
        let unknown = watched("-c 512", 0, None);
        assert_eq!((layers(&unknown), unknown.diagnose().len()), ((None, None, false), 0));
    }

    #[test]
    fn a_program_without_memory_on_the_card_has_no_layers_there() {
        for flags in ["-ngl 99 -c 512", "-c 512"] {
            let on_host = watched(flags, gib(4), Some(Vec::new()));
            assert_eq!(layers(&on_host), (Some(0), Some(7), true), "{flags}");
        }
    }
}
