//! The verb `plan`. In: its arguments. Out: a plan, its estimate by arithmetic, and how long the steps took, as text.

mod args;
pub(crate) mod json;

use std::cell::Cell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use autoplace::gguf::Header;
use autoplace::load::{self, NativeProbe};
use autoplace::machine::{Gpu, Host, Machine};
use autoplace::memory::companion::{CompanionRole, DraftOptions};
use autoplace::memory::{Companion, ContextParams, Estimate, Footprints, Split};
use autoplace::plan::{self, Advice, Placement, Plan, Planner, Probe, SavedPlan};
use autoplace::profile::ModelProfile;
use autoplace::{Model, ModelBuilder, llama_sys};

use crate::emit::{Tool, emit};
use crate::files;
use crate::gpu::{self, Simulated};
use crate::picture;
use crate::talk::here;
use crate::terminal::line_to_stderr;
pub(crate) use args::PlanArgs;
use json::Took;

/// Makes a plan, and returns it as text, as JSON, or in the form for another tool. `begin` is the time at which the
/// program started.
pub(crate) fn run(args: &PlanArgs, begin: Instant) -> Result<String, Box<dyn Error>> {
    let model = here(&args.model, &args.request(), || Ok(machines(args)?.1.0))?;
    if !args.rpc.is_empty() {
        return with_servers(args, &model, begin);
    }
    let is_draft = |(role, _): &(CompanionRole, PathBuf)| *role == CompanionRole::Draft;
    if args.draft.options() != DraftOptions::default() && !args.with.iter().any(is_draft) {
        return Err("settings of a draft model need a draft model: --with draft=FILE".into());
    }
    let reading = Instant::now();
    let header = Header::open(&model)?;
    let profile = adapted(args, ModelProfile::from_header(&header)?)?;
    let header_took = reading.elapsed();
    // The simulated cards must stay registered until the plan is made.
    let (described, (mut machine, _cards)) = machines(args)?;
    let request = args.devices.over(args.request(), &machine)?;
    if described.is_none() && args.with.is_empty() {
        machine = load::with_rates_for_advice(machine, &profile, &request);
    }

    let planning = Instant::now();
    let mut planner = Planner::new(&profile, &machine).request(request.clone());
    if described.is_none() {
        planner = planner
            .move_rates(load::move_rates(&model, profile.file_bytes, &machine))
            .expert_hits(Model::builder(&model).expert_hits(&machine, profile.file_bytes));
    }
    for beside in &args.with {
        planner = planner.beside(companion(beside, args, (&header, &machine))?);
    }
    let advised = |error| advised(&planner, error);
    let (plan, asked) = if args.no_probe {
        (planner.plan().map_err(advised)?, None)
    } else {
        let probe = Timed::new(&header, args)?;
        load::check_vocabulary(&header)?;
        let plan = planner.plan_probed(&probe).map_err(advised)?;
        (plan, Some(probe.spent.get()))
    };
    let estimate = planner.unknown().is_none().then(|| estimate(&profile, &machine, &plan)).transpose()?;
    let planning_took = planning.elapsed();
    // A saved plan contains the names of its GPUs. The name of a simulated device exists only in this process, so it is
    // not saved.
    let mut real = plan.clone();
    let others = real.by_depth.iter_mut().flat_map(|by_depth| &mut by_depth.plan.placements);
    let placements = real.placements.iter_mut().chain(others);
    for placement in placements.filter(|placement| described.is_some() && placement.device.is_some()) {
        let index = machine.gpus.iter().position(|gpu| gpu.device == placement.device);
        placement.device = index.and_then(|index| described.as_ref()?.gpus.get(index)?.device.clone());
    }
    let emitted = args.emit.map(|tool| with_companions(args, tool, emit(&real, tool)?)).transpose()?;
    if let Some(file) = &args.save {
        SavedPlan::new(real, request, &header)?.write(file)?;
    }
    if let Some(file) = &args.picture {
        picture::write_plan(file, &plan, &plan.to_string())?;
    }
    if let Some(text) = emitted {
        if plan.by_depth.is_some() {
            line_to_stderr(format_args!("note: {ONE_OF_TWO}"));
        }
        if text.contains("--moe-cache-mib") {
            line_to_stderr(format_args!("note: {NEEDS_MOE_CACHE}"));
        }
        return Ok(text.trim_end().to_owned());
    }
    if args.json {
        let took = Took {
            header: header_took,
            estimate: planning_took.saturating_sub(asked.unwrap_or_default()),
            probe: asked,
            total: begin.elapsed(),
        };
        return Ok(json::text(&plan, estimate.as_ref(), took));
    }
    let mut text = plan.to_string();
    // Advice is given only for a model without companions.
    if args.with.is_empty() {
        let advice = Advice::on(&planner, &plan);
        if !advice.is_empty() {
            advice.to_string().lines().for_each(|line| text += &format!("\n  {line}"));
        }
    }
    if let Some(note) = files::without_vocabulary(&header) {
        text += &format!("\n  note   {note}");
    }
    if let Some(projector) = projector_left_out(args, &model) {
        text += &format!("\n  `chat` and `serve` also load {0}: --with mmproj={0} plans it", projector.display());
    }
    if args.curve {
        text.push_str(&curve(&plan));
    }
    Ok(text)
}

/// The projector in the model's folder, if the plan leaves it out.
fn projector_left_out(args: &PlanArgs, model: &Path) -> Option<PathBuf> {
    let is_planned = args.with.iter().any(|(role, _)| *role == CompanionRole::Mmproj);
    let makes_texts = args.request().params.embeddings.is_none();
    if is_planned || !makes_texts { None } else { load::mmproj_beside(model) }
}

/// A note about which of a plan's two placements is written for another tool, because other tools do not move a model.
const ONE_OF_TWO: &str = "this is the placement that is faster over a whole conversation; --depth TOKENS emits the one \
    for that many live tokens";

/// A note that older versions of llama.cpp refuse the flag for a cache of experts.
const NEEDS_MOE_CACHE: &str =
    "--moe-cache-mib needs llama.cpp v0.8.0 or newer; --moe-cache off plans without a cache of experts";

/// Adds the files that are loaded together with the model to the settings for another tool.
fn with_companions(args: &PlanArgs, tool: Tool, text: String) -> Result<String, String> {
    let no_text = || format!("{tool} cannot be given a path that is not valid text");
    let mut words = args.adapters.words().ok_or_else(no_text)?;
    let takes = |words: &[String]| match tool {
        Tool::LlamaCpp => true,
        // KoboldCpp uses other flags for adapters, and other scales.
        Tool::KoboldCpp => words.is_empty(),
        _ => words.is_empty() && args.with.is_empty(),
    };
    if !takes(&words) {
        return Err(format!("{tool} has no setting for files loaded beside the model"));
    }
    let of_draft = args.draft.words();
    if tool != Tool::LlamaCpp && !of_draft.is_empty() {
        return Err(format!("`--emit {tool}` has no settings for a draft model"));
    }
    for (role, file) in &args.with {
        let flag = match (role, tool) {
            (CompanionRole::Draft, Tool::KoboldCpp) => "--draftmodel",
            (CompanionRole::Draft, _) => "-md",
            _ => "--mmproj",
        };
        words.extend([flag.to_owned(), file.to_str().ok_or_else(no_text)?.to_owned()]);
        words.extend(of_draft.iter().filter(|_| *role == CompanionRole::Draft).cloned());
    }
    if words.is_empty() {
        return Ok(text);
    }
    let words = shlex::try_join(words.iter().map(String::as_str)).map_err(|_| no_text())?;
    Ok(format!("{} {words}\n", text.trim_end()))
}

/// Makes a plan with devices of other machines, in a worker process.
fn with_servers(args: &PlanArgs, model: &Path, begin: Instant) -> Result<String, Box<dyn Error>> {
    let builder = args.devices.load(Model::builder(model), args.request())?.mtp(args.mtp.is_some());
    let builder = args.adapters.load(builder);
    let builder = args.rpc.iter().fold(builder, ModelBuilder::rpc);
    let plan = builder.rpc_trusted_network(args.rpc_trusted_network).plan()?;
    if let Some(file) = &args.picture {
        picture::write_plan(file, &plan, &plan.to_string())?;
    }
    if args.json {
        let (total, none) = (begin.elapsed(), Duration::ZERO);
        return Ok(json::text(&plan, None, Took { header: none, estimate: none, probe: Some(total), total }));
    }
    Ok(plan.to_string() + &if args.curve { curve(&plan) } else { String::new() })
}

/// The machine that was described, if it is not this one, and the machine that is planned for, with its simulated
/// cards.
fn machines(args: &PlanArgs) -> Result<(Option<Machine>, Simulated), Box<dyn Error>> {
    let is_described = args.machine.is_some() || !args.gpu.is_empty();
    let mut described = match &args.machine {
        Some(file) => Machine::read(file)?,
        None if is_described => gpu::machine(&args.gpu),
        None => load::detect()?,
    };
    args.devices.keep(&mut described)?;
    if let Some(host) = host(args, &described.host)? {
        described.host = host;
    }
    if let Some(rate) = args.disk_rate {
        described.host = described.host.disk(rate);
    } else if args.ask.allow_paging && !is_described {
        described.host.disk = load::measure_disk(&args.model);
    }
    let simulated = match is_described && !args.no_probe {
        true => gpu::simulated(described.clone())?,
        false => (described.clone(), Vec::new()),
    };
    Ok((is_described.then_some(described), simulated))
}

/// The host that was described, if it is not this one. It has the given processor and memory; nothing else is known
/// about it.
fn host(args: &PlanArgs, own: &Host) -> Result<Option<Host>, Box<dyn Error>> {
    let ram = args.ram.or_else(|| gpu::memory_of(&args.gpu));
    let stated = args.ram.and_then(|(_, rate)| rate);
    if stated.is_some() && args.memory.is_some() {
        return Err("--ram and --memory both state how fast memory is read: leave one of them out".into());
    }
    if ram.is_none() && args.cpu.is_none() && args.memory.is_none() {
        return Ok(None);
    }
    let (total, available) = ram.map_or((own.total, own.available), |(bytes, _)| (bytes, bytes));
    let mut host = match &args.cpu {
        Some(name) => Host::named(name, total)?,
        // If no size of memory is given, the memory and the cores are those of this computer.
        None if ram.is_none() => own.clone(),
        None => Host::new(total),
    };
    host = host.available(available);
    // The rates of this computer were measured with this computer's memory.
    host.rates = None;
    // A GPU of `--gpu` that shares the host's memory also gives that memory's bandwidth. But a processor named by
    // `--cpu` takes precedence, because it has a rated bandwidth of its own.
    let of_chip = ram.and_then(|(_, rate)| rate).filter(|_| args.cpu.is_none());
    if let Some(rate) = stated.or(of_chip) {
        host = host.bandwidth(rate);
    }
    host.bandwidth = args.memory.or(host.bandwidth);
    Ok(Some(host))
}

/// The predicted speed for each number of layers on the GPUs, as bars.
fn curve(plan: &Plan) -> String {
    const WIDTH: f64 = 40.0;
    let Some(speed) = plan.speed.as_ref().filter(|speed| !speed.curve.is_empty()) else {
        return "\n\nno curve: there is no GPU in the plan".to_owned();
    };
    let most = speed.curve.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut text = "\n\n  layers  tok/s".to_owned();
    for (n, tokens) in speed.curve.iter().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to WIDTH
        let bar = "#".repeat((tokens / most * WIDTH).round() as usize);
        let here = if n == plan.n_gpu_layers as usize { "  <- this plan" } else { "" };
        text.push_str(&format!("\n  {n:>6}  {tokens:>5.1}  {bar}{here}"));
    }
    text
}

/// An error message that includes the cheapest change with which a plan would be possible.
fn advised(planner: &Planner<'_>, error: plan::Error) -> String {
    let error = planner.advised(error);
    let mut said = error.to_string();
    // The model may still run if its weights are read from disk for each token.
    let paged = matches!(error, plan::Error::DoesNotFit { .. })
        .then(|| planner.clone().with_paging().plan().ok())
        .flatten()
        .filter(|plan| plan.paging.is_some());
    if let Some(speed) = paged.and_then(|plan| plan.speed) {
        let tokens = speed.tokens_per_second;
        said += &format!("; with --allow-paging it is read from disk for every token, about {tokens:.2} tok/s");
    }
    said
}

/// A file that is loaded together with the model. llama.cpp counts the bytes of a projector, as it counts the model's.
fn companion(
    (role, path): &(CompanionRole, PathBuf),
    args: &PlanArgs,
    (main, machine): (&Header, &Machine),
) -> Result<Companion, Box<dyn Error>> {
    if *role == CompanionRole::Mmproj && !args.no_probe && llama_sys::has_media() {
        let builder = Model::builder(main.path()).request(args.request()).mmproj(path);
        let counted = builder.image_max_tokens(args.image_max_tokens).projector(machine)?;
        return Ok(counted.expect("the builder has a projector"));
    }
    let header = Header::open(path)?;
    let companion = match role {
        CompanionRole::Draft => Companion::draft(&header).map(|draft| draft.draft_options(args.draft.options())),
        _ => Companion::mmproj(&header).map(|mmproj| mmproj.max_image_tokens(args.image_max_tokens)),
    };
    Ok(companion.and_then(|companion| companion.compatible_with(main).map(|()| companion))?)
}

/// The bytes of a plan's own placement, estimated by arithmetic.
fn estimate(profile: &ModelProfile, machine: &Machine, plan: &Plan) -> Result<Footprints, plan::Error> {
    let is = |gpu: &Gpu, placement: &Placement| {
        (&gpu.name, &gpu.device, gpu.total, gpu.free)
            == (&placement.name, &placement.device, placement.total, placement.free)
    };
    let gpus: Vec<&Gpu> =
        plan.gpus().filter_map(|placement| machine.gpus.iter().find(|gpu| is(gpu, placement))).collect();
    let estimate =
        Estimate::new(profile, &gpus, &plan.context)?.tensor_split(&plan.tensor_split)?.overrides(&plan.overrides)?;
    Ok(estimate.footprints(plan.n_gpu_layers))
}

/// The model's profile, with the options and companions that were asked for.
fn adapted(args: &PlanArgs, mut profile: ModelProfile) -> Result<ModelProfile, Box<dyn Error>> {
    if args.mtp.is_some() {
        profile = profile.with_mtp()?;
    }
    args.adapters.beside(profile)
}

/// A probe by llama.cpp. It measures the time that is spent in it.
struct Timed {
    probe: NativeProbe,
    spent: Cell<Duration>,
}

impl Timed {
    /// Writes the model's skeleton. The time for this counts as spent in the probe.
    fn new(header: &Header, args: &PlanArgs) -> Result<Self, load::Error> {
        let begin = Instant::now();
        let mut probe = args.adapters.probe(NativeProbe::new(header)?);
        if args.with.iter().any(|(role, _)| *role == CompanionRole::Mmproj) {
            probe = probe.projector();
        }
        Ok(Self { probe, spent: Cell::new(begin.elapsed()) })
    }
}

impl Probe for Timed {
    fn footprints(
        &self,
        gpus: &[&Gpu],
        params: &ContextParams,
        split: &Split,
    ) -> Result<Footprints, Box<dyn Error + Send + Sync>> {
        let begin = Instant::now();
        let footprints = self.probe.footprints(gpus, params, split);
        self.spent.set(self.spent.get() + begin.elapsed());
        footprints
    }
}
