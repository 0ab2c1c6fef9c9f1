//! Compares our plans with llama.cpp's own fit, for models of every kind on cards of every size, by the seconds that
//! the planner's speed model predicts for both.
//!
//!     cargo xtask fit-table [WORD...] [--host-parts=auto]
//!     cargo xtask fit-table --caches
//!
//! With `--caches`, compares plans that have a cache of experts with two alternatives: with plans without a cache, and
//! with llama.cpp's fit plus a cache of a tenth of the experts.
//!
//! In: optional words of model names. Out: tables in Markdown. The program fails if a plan is slower than the fit.
//! Nothing is computed: the cards are simulated, and the models are headers only. Without `--bench`, as in `cargo
//! test`, only two models are compared.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use autoplace::gguf::Header;
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::{self, NativeProbe};
use autoplace::machine::{Gpu, Host, Machine, PcieLink, PcieRate, gib};
use autoplace::memory::{self, ContextParams, Estimate, Split};
use autoplace::plan::speed::{Rates, SpeedModel};
use autoplace::plan::{HostParts, MoeCache, Plan, PlannedMoeCache, Planner, Request, Workload};
use autoplace::profile::ModelProfile;

use bare_llama::FitRequest;
use test_support::synthetic::{Sketch, at_size};

/// Machines, with the names of their cards in the catalogue, which has the sizes and bandwidths.
const MACHINES: [(&str, &[&str]); 7] = [
    ("8 GiB", &["RTX 4060"]),
    ("12 GiB", &["RTX 3060 12GB"]),
    ("16 GiB", &["RTX 4060 Ti 16GB"]),
    ("24 GiB", &["RTX 4090"]),
    ("48 GiB", &["RTX 6000 Ada Generation"]),
    ("2 x 12 GiB", &["RTX 3060 12GB", "RTX 3060 12GB"]),
    ("24 + 8 GiB", &["RTX 4090", "RTX 4060"]),
];
/// Context lengths in tokens.
const CONTEXTS: [u32; 2] = [4096, 32768];
/// The host: bytes, bandwidth, cores. Its memory is enough for the largest model, because the fit assumes unlimited
/// host memory. The bandwidth is a round figure below the nominal 76.8 GB/s of two channels of DDR5-4800.
const HOST: (u64, u64, u32) = (gib(512), 60_000_000_000, 8);
/// Live tokens at which generation is compared if a plan has two placements.
const DEPTHS: [u32; 3] = [2_000, 8_000, 30_000];
/// The lowest ratio that does not count as slower. Smaller differences are within the error of the speed model.
const NOT_BEHIND: f64 = 0.99;

/// The flag that lets parts of blocks stay on the host.
const AUTO_PARTS: &str = "--host-parts=auto";

/// The flag that compares caches of experts.
const CACHES: &str = "--caches";
/// The models for the comparison of caches: one with 3 billion active parameters, and one with 5 billion.
const CACHED: [&str; 2] = ["Qwen3 30B A3B", "gpt-oss 120B"];
/// The number of machines for the comparison of caches. They have a single card of up to 24 GiB with PCIe 4.0 x16.
const CACHED_ON: usize = 4;

/// The models of `cargo test`: one that fits on most cards, and one that fits on few.
const TESTED: [&str; 2] = ["Llama 3.1 8B", "Mistral Small 24B"];

fn main() -> ExitCode {
    match compare() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("a plan is behind llama.cpp's fit: see the cells with BEHIND");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Compares all models, or those whose names contain one of the words, and prints the tables. Returns whether no plan
/// is slower than the fit.
fn compare() -> Result<bool> {
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let words = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut flags, mut words): (Vec<String>, Vec<String>) = words.partition(|word| word.starts_with("--"));
    if !is_measured {
        // `cargo test` passes its own flags, so the arguments are ignored.
        (flags, words) = (Vec::new(), TESTED.map(str::to_owned).to_vec());
    }
    let host_parts = match flags.as_slice() {
        [] => HostParts::default(),
        [flag] if flag == AUTO_PARTS => HostParts::Auto,
        [flag] if flag == CACHES => return compare_caches(),
        _ => bail!("{flags:?}: the options are {AUTO_PARTS} and {CACHES}"),
    };
    let folder = tempfile::tempdir()?;
    // This opens the backends.
    load::detect()?;
    let models = at_size();
    let models = models.iter().filter(|sketch| words.is_empty() || words.iter().any(|word| sketch.name.contains(word)));
    let mut rows = Vec::new();
    for sketch in models {
        let model = Model::new(sketch, folder.path())?;
        for n_ctx in CONTEXTS {
            let cells = MACHINES.map(|(_, cards)| model.compare(cards, n_ctx, host_parts));
            let cells = cells.into_iter().collect::<Result<Vec<_>>>()?;
            for ((name, _), cell) in MACHINES.iter().zip(&cells) {
                eprintln!("{}, {n_ctx} tokens, {name}: {}", model.name, cell.words());
            }
            rows.push((model.name, n_ctx, cells));
        }
    }
    ensure!(!rows.is_empty(), "no model's name has one of {words:?}");
    print_ratios(&rows);
    print_depths(&rows);
    print_speeds(&rows);
    print_times(&rows);
    Ok(rows.iter().all(|(_, _, cells)| cells.iter().all(|cell| !cell.is_behind())))
}

/// Prints the table of caches of experts. Returns whether no plan with a cache is slower than the same plan without a
/// cache.
fn compare_caches() -> Result<bool> {
    let folder = tempfile::tempdir()?;
    load::detect()?;
    println!(
        "| model | tokens | card | cache | holds, hits | generation | without | times | prompts, times | the fit with a tenth |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    let (mut times, mut keeps_up) = (Vec::new(), true);
    for sketch in at_size().iter().filter(|sketch| CACHED.contains(&sketch.name)) {
        let model = Model::new(sketch, folder.path())?;
        for n_ctx in CONTEXTS {
            for (name, cards) in &MACHINES[..CACHED_ON] {
                let row = model.compare_cache(cards, n_ctx)?;
                let [generation, prompt] = row.times();
                keeps_up &= generation >= NOT_BEHIND && prompt >= 0.9;
                times.push(generation);
                println!("| {} | {n_ctx} | {name} | {} |", model.name, row.words());
            }
        }
    }
    times.sort_by(f64::total_cmp);
    println!("\nmedian {:.2}", (times[times.len() / 2 - 1] + times[times.len() / 2]) / 2.0);
    Ok(keeps_up)
}

/// Three placements: a plan that may have a cache of experts, a plan without a cache, and the fit with a cache of a
/// tenth of the experts.
struct CacheRow {
    cache: Option<PlannedMoeCache>,
    with: Score,
    without: Score,
    theirs: Result<Score>,
}

impl CacheRow {
    /// The speed of generation and of prompts, as multiples of the speeds without a cache.
    fn times(&self) -> [f64; 2] {
        [self.with.generation / self.without.generation, self.with.prompt / self.without.prompt]
    }

    fn words(&self) -> String {
        let cache = self.cache.map_or_else(
            || "- | -".to_owned(),
            |cache| {
                let [share, hits] = [cache.share, cache.hits].map(|part| 100.0 * part);
                format!("{:.1} GiB | {share:.0} %, {hits:.0} %", cache.bytes as f64 / gib(1) as f64)
            },
        );
        let [generation, prompt] = self.times();
        let theirs = self.theirs.as_ref().map_or_else(|_| "-".to_owned(), |score| format!("{:.1}", score.generation));
        let [with, without] = [&self.with, &self.without].map(|score| score.generation);
        format!("{cache} | {with:.1} | {without:.1} | {generation:.2} | {prompt:.2} | {theirs}")
    }
}

type Row = (&'static str, u32, Vec<Cell>);

fn print_ratios(rows: &[Row]) {
    let names = MACHINES.map(|(name, _)| name).join(" | ");
    println!("| model | tokens | {names} |");
    println!("|---|--:|{}", "--:|".repeat(MACHINES.len()));
    for (model, n_ctx, cells) in rows {
        let ratios: Vec<String> = cells.iter().map(Cell::ratio_in_words).collect();
        println!("| {model} | {n_ctx} | {} |", ratios.join(" | "));
    }
}

/// Prints, for each plan with two placements, the fit's time for a token divided by ours at each depth. A loaded model
/// moves between the two placements.
fn print_depths(rows: &[Row]) {
    let names = DEPTHS.map(|depth| depth.to_string()).join(" | ");
    println!("\n| model | machine | cross at | {names} |");
    println!("|---|---|--:|{}", "--:|".repeat(DEPTHS.len()));
    let deep = |n_ctx: u32| DEPTHS.iter().all(|&depth| depth <= n_ctx);
    for (model, _, cells) in rows.iter().filter(|(_, n_ctx, _)| deep(*n_ctx)) {
        for ((machine, _), cell) in MACHINES.iter().zip(cells) {
            if let Some((crossing, ratios)) = &cell.by_depth {
                let ratios = ratios.map(|ratio| format!("{ratio:.2}")).join(" | ");
                println!("| {model} | {machine} | {crossing} | {ratios} |");
            }
        }
    }
}

fn print_speeds(rows: &[Row]) {
    println!("\n| model | tokens | machine | ours: generation | prompts | the fit: generation | prompts |");
    println!("|---|--:|---|--:|--:|--:|--:|");
    for (model, n_ctx, cells) in rows {
        for ((machine, _), cell) in MACHINES.iter().zip(cells) {
            println!("| {model} | {n_ctx} | {machine} | {} | {} |", speeds(&cell.ours), speeds(&cell.theirs));
        }
    }
}

/// Prints median times over the machines, measured in one process on this machine.
fn print_times(rows: &[Row]) {
    println!("\n| model | tokens | our plan, ms: by arithmetic | probed | the fit, ms |");
    println!("|---|--:|--:|--:|--:|");
    for (model, n_ctx, cells) in rows {
        let median = |of: fn(&Cell) -> f64| {
            let mut all: Vec<f64> = cells.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        println!(
            "| {model} | {n_ctx} | {:.1} | {:.0} | {:.0} |",
            median(|cell| cell.arithmetic_ms),
            median(|cell| cell.probed_ms),
            median(|cell| cell.fit_ms)
        );
    }
}

fn milliseconds<T>(of: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let answer = of();
    (answer, begin.elapsed().as_secs_f64() * 1e3)
}

fn speeds(score: &Result<Score, String>) -> String {
    match score {
        Ok(score) => format!("{:.1} | {:.0}", score.generation, score.prompt),
        Err(_) => "- | -".to_owned(),
    }
}

/// A model that exists only as a header.
struct Model {
    name: &'static str,
    path: PathBuf,
    profile: ModelProfile,
    probe: NativeProbe,
}

/// Both sides of one cell. An error is the reason for a missing placement.
struct Cell {
    ours: Result<Score, String>,
    theirs: Result<Score, String>,
    /// The crossing of our two placements, and the fit's time for a token divided by ours at each depth; `None` if our
    /// plan has one placement.
    by_depth: Option<(u32, [f64; DEPTHS.len()])>,
    arithmetic_ms: f64,
    probed_ms: f64,
    fit_ms: f64,
}

/// A placement and its predicted speed.
#[derive(Debug)]
struct Score {
    /// Seconds for the workload.
    seconds: f64,
    /// Tokens per second in the middle of the reply, and tokens per second of the prompt.
    generation: f64,
    prompt: f64,
    /// Seconds of a token at each of [`DEPTHS`] within the context.
    tokens: [f64; DEPTHS.len()],
    placement: String,
}

impl Model {
    fn new(sketch: &Sketch, folder: &Path) -> Result<Self> {
        let path = sketch.write(folder);
        let header = Header::open(&path)?;
        Ok(Self {
            name: sketch.name,
            profile: ModelProfile::from_header(&header)?,
            probe: NativeProbe::new(&header)?,
            path,
        })
    }

    /// Gives all sides the same tokens and the same free bytes. The fit does not plan for caches of experts, so its
    /// margin includes the bytes of the cache.
    fn compare_cache(&self, cards: &[&str], n_ctx: u32) -> Result<CacheRow> {
        let link = PcieRate::new(4, 16).map(PcieLink::new);
        let (machine, _registered) = simulated(cards, link)?;
        let plan = |cache| {
            let request = Request::new().n_ctx(n_ctx).moe_cache(cache);
            Planner::new(&self.profile, &machine).request(request).plan_probed(&self.probe)
        };
        let (with, without) = (plan(MoeCache::Auto)?, plan(MoeCache::Off)?);
        let mut params = Request::new().params;
        params.n_ctx = n_ctx;
        let blocks = self.profile.weights.blocks.iter().flatten();
        let experts: u64 = blocks.filter(|weight| weight.name.contains("_exps.")).map(|weight| weight.bytes).sum();
        params.moe_cache_size = experts / 10;
        let theirs = self.theirs(&machine, params, Some(&without));
        let score = |plan: &Plan| self.score(&machine, &used(plan, &machine)?, plan);
        Ok(CacheRow { cache: with.moe_cache, with: score(&with)?, without: score(&without)?, theirs })
    }

    /// Gives both sides the same tokens and the same free bytes; the fit keeps llama.cpp's other defaults.
    fn compare(&self, cards: &[&str], n_ctx: u32, host_parts: HostParts) -> Result<Cell> {
        let (machine, _registered) = simulated(cards, None)?;
        let request = Request::new().n_ctx(n_ctx);
        let request = request.host_parts(host_parts);
        let planner = Planner::new(&self.profile, &machine).request(request.clone());
        let (_, arithmetic_ms) = milliseconds(|| planner.plan());
        let (plan, probed_ms) = milliseconds(|| planner.plan_probed(&self.probe));
        let ours = match &plan {
            Ok(plan) => Ok(self.score(&machine, &used(plan, &machine)?, plan)?),
            Err(error) => Err(error.to_string()),
        };
        let mut params = request.params;
        params.n_ctx = n_ctx;
        let (theirs, fit_ms) = milliseconds(|| self.theirs(&machine, params, plan.as_ref().ok()));
        let by_depth = match (&plan, &theirs) {
            (Ok(plan), Ok(theirs)) => self.by_depth(&machine, plan, theirs)?,
            _ => None,
        };
        let theirs = theirs.map_err(|error| format!("{error:#}"));
        Ok(Cell { ours, theirs, by_depth, arithmetic_ms, probed_ms, fit_ms })
    }

    /// The depth at which a plan changes between its two placements; and, for each of [`DEPTHS`], the fit's time per
    /// token divided by the plan's.
    fn by_depth(&self, machine: &Machine, plan: &Plan, theirs: &Score) -> Result<Option<(u32, [f64; DEPTHS.len()])>> {
        let Some(by_depth) = &plan.by_depth else { return Ok(None) };
        let mut ratios = [0.0; DEPTHS.len()];
        for ((ratio, depth), (index, theirs)) in ratios.iter_mut().zip(DEPTHS).zip(theirs.tokens.iter().enumerate()) {
            let ours = plan.clone().for_depth(depth);
            *ratio = theirs / self.score(machine, &used(&ours, machine)?, &ours)?.tokens[index];
        }
        Ok(Some((by_depth.crossing, ratios)))
    }

    fn theirs(&self, machine: &Machine, mut params: ContextParams, plan: Option<&Plan>) -> Result<Score> {
        let gpus: Vec<&Gpu> = machine.gpus.iter().collect();
        let sizes = params.sizes()?;
        let workload = memory::PeakSizes::new(&self.profile, &sizes);
        let margins: Vec<u64> = gpus
            .iter()
            .map(|gpu| {
                let mut placements = plan.iter().flat_map(|plan| plan.gpus());
                let same = placements.find(|placement| placement.device == gpu.device);
                let unused = || Request::new().headroom.of_gpu(gpu, &workload, 0, false);
                let headroom = same.map_or_else(unused, |placement| placement.headroom).total();
                headroom + params.moe_cache_size / gpus.len() as u64
            })
            .collect();
        if let Some(plan) = plan {
            params.n_outputs_max = plan.context.n_outputs_max;
        }
        let devices: Vec<String> = gpus.iter().filter_map(|gpu| gpu.device.clone()).collect();
        let request =
            FitRequest { path: &self.path, devices: &devices, params: &params, margins: &margins, threads: HOST.2 };
        let split = request.read(request.fit()?)?;
        self.score_split(machine, &gpus, &params, &split)
    }

    fn score(&self, machine: &Machine, gpus: &[&Gpu], plan: &Plan) -> Result<Score> {
        self.score_split(machine, gpus, &plan.context, &plan.split())
    }

    fn score_split(&self, machine: &Machine, gpus: &[&Gpu], params: &ContextParams, split: &Split) -> Result<Score> {
        let profile = &self.profile;
        let workload = Workload::typical(params.n_ctx);
        let assignment =
            Estimate::new(profile, gpus, params)?.tensor_split(&split.tensor_split)?.assignment(split.n_gpu_layers);
        let model = SpeedModel::new(profile, params, Rates::for_devices(gpus, &machine.host))
            .overrides(profile, &split.overrides)?;
        let patterns: Vec<&str> = split.overrides.iter().map(|one| one.pattern.as_str()).collect();
        Ok(Score {
            seconds: model.seconds(&assignment, &workload),
            generation: model.tokens_per_second(&assignment, workload.depth()),
            prompt: f64::from(workload.prompt) / model.prompt_seconds(&assignment, &workload),
            tokens: DEPTHS.map(|depth| model.token_seconds(&assignment, depth)),
            placement: format!(
                "{} layers {:?} on {:?}, {} at once, but for {}",
                split.n_gpu_layers,
                split.tensor_split,
                gpus.iter().map(|gpu| &gpu.name).collect::<Vec<_>>(),
                params.n_ubatch,
                patterns.join(" ")
            ),
        })
    }
}

/// A machine with simulated cards of these names. A card exists as long as its handle. `link` replaces the cards' own
/// links.
fn simulated(cards: &[&str], link: Option<PcieLink>) -> Result<(Machine, Vec<SimGpu>)> {
    let mut machine = Machine::new(host());
    let mut registered = Vec::new();
    for name in cards {
        let mut gpu = Gpu::named(name)?;
        gpu.pcie = link.or(gpu.pcie);
        let card = SimGpu::builder(&gpu.name)
            .backend("CUDA")
            .rules(Rules::Cuda)
            .total(gpu.total)
            // The taken bytes are the driver's own memory.
            .taken(gpu.total - gpu.free)
            .register()?;
        gpu.device = Some(card.device().name());
        registered.push(card);
        machine = machine.with_gpu(gpu);
    }
    Ok((machine, registered))
}

fn host() -> Host {
    let (bytes, bandwidth, cores) = HOST;
    Host::new(bytes).bandwidth(bandwidth).physical_cores(cores)
}

/// The GPUs of a plan, in its order.
fn used<'m>(plan: &Plan, machine: &'m Machine) -> Result<Vec<&'m Gpu>> {
    let find = |device: &Option<String>| machine.gpus.iter().find(|gpu| &gpu.device == device);
    plan.gpus().map(|placement| find(&placement.device).context("a plan for the machine's own GPUs")).collect()
}

impl Cell {
    /// The speed of our plan divided by the speed of the fit.
    fn ratio(&self) -> Option<f64> {
        match (&self.ours, &self.theirs) {
            (Ok(ours), Ok(theirs)) => Some(theirs.seconds / ours.seconds),
            _ => None,
        }
    }

    fn is_behind(&self) -> bool {
        match self.ratio() {
            Some(ratio) => ratio < NOT_BEHIND,
            // There is no ratio if a side found no placement. Even if the fit found none, our side must at least find
            // the host.
            None => self.ours.is_err(),
        }
    }

    fn ratio_in_words(&self) -> String {
        match (self.ratio(), &self.ours, &self.theirs) {
            (Some(ratio), ..) => format!("{ratio:.2}"),
            (None, Ok(_), Err(_)) => "ours alone".to_owned(),
            (None, Err(_), Ok(_)) => "**the fit alone**".to_owned(),
            _ => "neither".to_owned(),
        }
    }

    fn words(&self) -> String {
        let side = |score: &Result<Score, String>| match score {
            Ok(score) => format!(
                "{:.3} s, {:.2} and {:.0} tok/s: {}",
                score.seconds, score.generation, score.prompt, score.placement
            ),
            Err(error) => error.clone(),
        };
        let ratio = match self.ratio() {
            Some(ratio) => format!("{ratio:.4}"),
            None => self.ratio_in_words(),
        };
        let behind = if self.is_behind() { " BEHIND" } else { "" };
        format!(
            "{ratio}{behind} ({:.1} ms, {:.0} ms, {:.0} ms)\n    ours {}\n    fit  {}",
            self.arithmetic_ms,
            self.probed_ms,
            self.fit_ms,
            side(&self.ours),
            side(&self.theirs)
        )
    }
}
