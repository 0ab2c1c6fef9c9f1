//! Loads one placement after another, and computes with each.

use std::path::{Path, PathBuf};

use autoplace::generate::Statistics;
use autoplace::gguf::Header;
use autoplace::llama_sys::Token;
use autoplace::load::{self, Model, ModelBuilder};
use autoplace::plan::{Depth, GpuLayers, HostParts, Plan, Policy, Request, SavedPlan, Workload};
use autoplace::profile::ModelProfile;
use autoplace::watch::speed_model;

use super::Error;
use super::clock::{Clock, SystemClock};
use super::conditions::Observer;
use super::measurement::{Measured, MeasuredModel, Measurement, Point, Sample, rounded};
use super::protocol::{Protocol, Tokens};
use super::sweep::Steps;

/// Measures one model in several placements.
#[must_use = "nothing is measured until `sweep` or `run` is called"]
pub struct Measure<'a> {
    pub(super) path: PathBuf,
    pub(super) request: Request,
    pub(super) protocol: Box<dyn Fn(Protocol) -> Protocol + 'a>,
    prepare: Box<dyn Fn(ModelBuilder) -> ModelBuilder + 'a>,
    pub(super) progress: Box<dyn FnMut(&Progress<'_>) -> bool + 'a>,
    /// The folder that contains `proc` and `sys`.
    pub(super) system: PathBuf,
    pub(super) clock: Box<dyn Clock + 'a>,
}

/// A placement to measure.
#[derive(Debug, Clone)]
pub struct Variant {
    name: String,
    request: Request,
    /// The plan to follow instead of the request.
    saved: Option<Box<SavedPlan>>,
}

/// The progress of a measurement.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The name of the current placement or stage.
    pub name: &'a str,
    /// The finished share of the work, measured in predicted time: 0.0 to 1.0.
    pub done: f64,
}

/// Tokens that each load computes before the measurement starts.
const WARM_UP_TOKENS: usize = 8;

impl Variant {
    /// The placement planned for a request.
    pub fn asked(name: impl Into<String>, request: Request) -> Self {
        Self { name: name.into(), request, saved: None }
    }

    /// The placement of a saved plan. If the plan has two placements by depth, its main placement is used.
    pub fn saved(name: impl Into<String>, mut plan: SavedPlan) -> Self {
        plan.plan.by_depth = None;
        Self { name: name.into(), request: Request::new(), saved: Some(Box::new(plan)) }
    }
}

impl<'a> Measure<'a> {
    /// A measurement of this model.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            request: Request::new(),
            protocol: Box::new(|usual| usual),
            prepare: Box::new(|builder| builder),
            progress: Box::new(|_| true),
            system: PathBuf::from("/"),
            clock: Box::new(SystemClock::default()),
        }
    }

    /// Sets the request of a [`sweep`](Self::sweep)'s plans: context, cache types and so on.
    pub fn request(mut self, request: Request) -> Self {
        self.request = request;
        self
    }

    /// Changes the protocol. The default is [`Protocol::new`] for the smallest of the placements' contexts.
    pub fn protocol(mut self, change: impl Fn(Protocol) -> Protocol + 'a) -> Self {
        self.protocol = Box::new(change);
        self
    }

    /// Configures each load apart from its request: machine, threads, isolation, adapters.
    pub fn load_with(mut self, prepare: impl Fn(ModelBuilder) -> ModelBuilder + 'a) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// Sets a callback before each computation. If it returns `false`, the measurement ends with the results that it
    /// has.
    pub fn progress(mut self, progress: impl FnMut(&Progress<'_>) -> bool + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Sets the folder whose `proc` and `sys` describe the host, as
    /// [`Host::detect_under`](autoplace::machine::Host::detect_under) reads them. The default is `/`. A container
    /// may mount its host's files elsewhere.
    pub fn system(mut self, root: impl Into<PathBuf>) -> Self {
        self.system = root.into();
        self
    }

    /// Sets the clock by which [`ready`](Self::ready) spaces its runs. The default is the computer's.
    pub fn clock(mut self, clock: impl Clock + 'a) -> Self {
        self.clock = Box::new(clock);
        self
    }

    pub(super) fn builder(&self, variant: &Variant) -> ModelBuilder {
        let builder = Model::builder(&self.path);
        (self.prepare)(match &variant.saved {
            Some(plan) => builder.follow(SavedPlan::clone(plan)),
            None => builder.request(self.same_context(variant.request.clone())),
        })
    }

    /// Prepares a request for comparison. Compared placements need the same context, so a context that may grow stays
    /// at its minimum. A placement is measured at several depths, so it must not move.
    pub(super) fn same_context(&self, mut request: Request) -> Request {
        if request.depth == Depth::Follow {
            request.depth = Depth::All;
        }
        let profile = Header::open(&self.path).ok().and_then(|header| ModelProfile::from_header(&header).ok());
        profile.iter().fold(request, Request::without_growth)
    }

    /// The plan for a request.
    ///
    /// # Errors
    ///
    /// Those of [`ModelBuilder::plan`].
    pub fn plan(&self, request: Request) -> Result<Plan, load::Error> {
        self.builder(&Variant::asked("", request)).plan()
    }

    /// The placements of a sweep: the planner's choice and, if there are GPUs, various numbers of whole layers on them.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan).
    pub fn variants(&self, steps: Steps) -> Result<Vec<Variant>, Error> {
        let mut variants = vec![Variant::asked("plan", self.request.clone())];
        let chosen = self.plan(self.request.clone())?;
        let whole = self.request.clone().host_parts(HostParts::None);
        let most = whole.clone().policy(Policy::MostLayers).n_gpu_layers(GpuLayers::Auto);
        let fit = self.plan(most)?.n_gpu_layers;
        if fit == 0 {
            // Without a GPU that has memory for a layer, there is nothing to sweep.
            return Ok(variants);
        }
        let is_chosen = |n| n == chosen.n_gpu_layers && chosen.split_blocks == 0;
        let layers = steps.layers(chosen.layers(), fit).into_iter().filter(|&n| !is_chosen(n));
        variants.extend(
            layers.map(|n| Variant::asked(format!("ngl {n}"), whole.clone().n_gpu_layers(GpuLayers::Exactly(n)))),
        );
        Ok(variants)
    }

    /// Measures the placements of [`variants`](Self::variants).
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub fn sweep(self, steps: Steps) -> Result<Measurement, Error> {
        let variants = self.variants(steps)?;
        self.run(&variants)
    }

    /// Measures these placements in turns. If a placement cannot be planned or loaded, or fails while computing, its
    /// point contains the reason.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] if no placement has a plan or the first placement cannot be loaded; [`Error::Protocol`] and
    /// [`Error::Stopped`].
    pub fn run(mut self, variants: &[Variant]) -> Result<Measurement, Error> {
        let mut points: Vec<Point> =
            variants.iter().map(|variant| Point { name: variant.name.clone(), ..Point::default() }).collect();
        let (protocol, expected) = self.planned(variants, &mut points)?;
        let all: f64 = expected.iter().sum();
        let mut run = Run { protocol: &protocol, done: 0.0, all: all.max(f64::MIN_POSITIVE), measurement: None };
        let mut order: Vec<usize> = (0..variants.len()).collect();
        let mut is_stopped = false;
        'rounds: for round in 0..protocol.rounds {
            for &n in &order {
                let point = &mut points[n];
                if point.failure.is_some() {
                    continue;
                }
                let share = expected[n] / f64::from(protocol.rounds);
                match run.visit(&mut self, (&variants[n], share), round, point) {
                    Ok(goes_on) => is_stopped = !goes_on,
                    Err(error) if run.measurement.is_none() => return Err(error),
                    Err(error) => point.failure = Some(error.to_string()),
                }
                if is_stopped {
                    break 'rounds;
                }
            }
            order.reverse();
        }
        let mut measurement = run.measurement.ok_or(Error::Stopped)?;
        if is_stopped {
            measurement.notes.push("stopped before everything was measured".to_owned());
        }
        measurement.points = points;
        Ok(measurement)
    }

    /// The protocol, and the predicted seconds of each placement. If a placement has no plan, its point gets the
    /// reason.
    fn planned(&self, variants: &[Variant], points: &mut [Point]) -> Result<(Protocol, Vec<f64>), Error> {
        let mut why = None;
        let plans = variants.iter().zip(points).map(|(variant, point)| {
            let planned = self.builder(variant).plan();
            planned.map_err(|error| {
                point.failure = Some(error.to_string());
                why.get_or_insert(error);
            })
        });
        let plans: Vec<Option<Plan>> = plans.map(Result::ok).collect();
        // All placements compute the same texts, so the protocol must fit in the smallest context.
        let contexts = plans.iter().flatten().map(|plan| plan.context.n_ctx_seq());
        match (contexts.min(), why) {
            (Some(n_ctx), _) => {
                let protocol = (self.protocol)(Protocol::new(n_ctx));
                protocol.check()?;
                protocol.fits(protocol.n_prompt as usize, n_ctx)?;
                let expected = |plan: &Option<Plan>| plan.as_ref().map_or(0.0, |plan| seconds(plan, &protocol));
                let expected = plans.iter().map(expected).collect();
                Ok((protocol, expected))
            }
            (_, Some(why)) => Err(why.into()),
            (_, None) => Err(Error::Protocol("there is no placement to measure".to_owned())),
        }
    }
}

struct Run<'p> {
    protocol: &'p Protocol,
    /// Predicted seconds.
    done: f64,
    all: f64,
    /// `Some` from the first load on.
    measurement: Option<Measurement>,
}

impl Run<'_> {
    /// One round of one placement; `false` if stopped.
    fn visit(
        &mut self,
        measure: &mut Measure<'_>,
        (variant, share): (&Variant, f64),
        round: u32,
        point: &mut Point,
    ) -> Result<bool, Error> {
        if !(measure.progress)(&Progress { name: &variant.name, done: self.done / self.all }) {
            return Ok(false);
        }
        let model = measure.builder(variant).load()?;
        let plan = model.placement();
        let placed = Measured::from_report(&model.report());
        if let Some(first) = point.placement.as_ref().filter(|first| !first.is_where(&placed)) {
            let (before, now) = (first.n_gpu_layers, placed.n_gpu_layers);
            return Err(Error::Failed(format!(
                "the plan changed between two loads ({before} layers on GPUs, then {now}): free memory changed, or a load measured new figures"
            )));
        }
        point.placement.get_or_insert(placed);
        let tokens = self.protocol.tokens(&model, plan.context.n_ctx_seq())?;
        let profile = ModelProfile::from_header(model.header().map_err(load::Error::from)?);
        let prediction = profile.as_ref().ok().and_then(|profile| speed_model(profile, &plan, &model.machine()));
        let measurement = match &mut self.measurement {
            Some(begun) => begun,
            None => {
                let measured = MeasuredModel::new(&measure.path, &model)?;
                let begun = Measurement::new(measured, (*model.machine()).clone(), self.protocol.clone());
                self.measurement.insert(begun)
            }
        };
        for note in model.notes() {
            if !measurement.notes.contains(&note) {
                measurement.notes.push(note);
            }
        }
        // A load without layers on GPUs does not look for GPUs.
        if measurement.machine.gpus.is_empty() {
            measurement.machine = (*model.machine()).clone();
        }
        let predicted = |[n_prompt, n_gen, depth]: [u32; 3]| {
            let (speeds, assignment) = prediction.as_ref()?;
            Some(rounded(match n_gen {
                0 => {
                    let workload = Workload::new(n_prompt, 0).after(depth);
                    f64::from(n_prompt) / speeds.prompt_seconds(assignment, &workload)
                }
                _ => speeds.tokens_per_second(assignment, depth + n_gen / 2),
            }))
        };
        let mut observer = Observer::new(&model, &measure.system);
        compute(&model, tokens.before(WARM_UP_TOKENS as u32), WARM_UP_TOKENS, false)?;
        let rounds = self.protocol.rounds as usize;
        let texts: Vec<usize> = (round as usize..tokens.prompts.len()).step_by(rounds).collect();
        let steps = (texts.len() * self.protocol.depths.len()) as f64;
        for &depth in &self.protocol.depths {
            if depth > 0 {
                compute(&model, tokens.before(depth), 1, true)?;
            }
            for &which in &texts {
                let begun = now();
                let n_prompt = tokens.prompts[which].len() as u32;
                let n_gen = self.protocol.n_gen;
                let [prompt, generation] = text(&model, &tokens, (which, depth), n_gen)?;
                let shapes = [[n_prompt, 0, depth], [0, n_gen, depth + n_prompt]];
                for (shape, ns) in shapes.into_iter().zip([prompt, generation]) {
                    point.add(shape, Sample { round, ns }, &begun, predicted(shape));
                }
                observer.look(&mut point.conditions);
                self.done += share / steps;
                if !(measure.progress)(&Progress { name: &variant.name, done: self.done / self.all }) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The nanoseconds of a prompt at a depth, and of `n_gen` tokens after it.
pub(super) fn text(
    model: &Model,
    tokens: &Tokens,
    (which, depth): (usize, u32),
    n_gen: u32,
) -> Result<[u64; 2], Error> {
    let prompt = &tokens.prompts[which];
    let whole = tokens.before(depth).iter().chain(prompt).copied().collect();
    let statistics = compute(model, whole, n_gen as usize + 1, depth > 0)?;
    // The context may contain more or fewer tokens than the depth, so the time is divided by the number of computed
    // tokens.
    let computed = statistics.prompt_tokens - statistics.cached_tokens;
    let generated = statistics.generated_tokens.saturating_sub(1);
    Ok([
        per(statistics.prompt_time.as_nanos(), prompt.len() as u32, computed),
        per(statistics.generation_time.as_nanos(), n_gen, generated),
    ])
}

/// Computes a prompt and generates `n` tokens after it, even beyond the end of the text.
fn compute(model: &Model, prompt: Vec<Token>, n: usize, cached: bool) -> Result<Statistics, Error> {
    let mut stream = model.generate(prompt).cache_prompt(cached).temp(0.0).max_tokens(n).ignore_eos().stream()?;
    for piece in &mut stream {
        piece?;
    }
    Ok(stream.statistics())
}

/// The nanoseconds of `n` tokens, computed from the time that `tokens` tokens took.
fn per(ns: u128, n: u32, tokens: usize) -> u64 {
    let tokens = u128::try_from(tokens).unwrap_or_default().max(1);
    u64::try_from(ns * u128::from(n) / tokens).unwrap_or(u64::MAX)
}

/// The predicted seconds of a placement.
fn seconds(plan: &Plan, protocol: &Protocol) -> f64 {
    let texts = (protocol.n_texts() * protocol.depths.len()) as f64;
    // Without predictions, all placements count equally.
    plan.speed.as_ref().map_or(1.0, |speed| {
        let fast = speed.prompt.tokens_per_second;
        let prompt = if fast > 0.0 { f64::from(protocol.n_prompt) / fast } else { 0.0 };
        texts * (prompt + f64::from(protocol.n_gen) / speed.tokens_per_second.max(1e-9))
    })
}

/// The current second in UTC: `2026-11-24T11:59:33Z`.
pub(super) fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}
