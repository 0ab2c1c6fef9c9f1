//! Loading one placement after the other and computing with each.

use std::path::{Path, PathBuf};

use autoplace::generate::Statistics;
use autoplace::gguf::Header;
use autoplace::llama_sys::Token;
use autoplace::load::{self, Model, ModelBuilder};
use autoplace::plan::{GpuLayers, HostParts, Plan, Policy, Request, SavedPlan, Workload};
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
    /// The folder that holds `proc` and `sys`.
    pub(super) system: PathBuf,
    pub(super) clock: Box<dyn Clock + 'a>,
}

/// A placement to be measured.
#[derive(Debug, Clone)]
pub struct Arm {
    name: String,
    request: Request,
    /// Which is followed instead of what is asked.
    saved: Option<Box<SavedPlan>>,
}

/// How far a measurement is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The placement that is measured.
    pub name: &'a str,
    /// The share that is done, by predicted time: 0.0 to 1.0.
    pub done: f64,
}

/// Tokens that a load computes before any counts.
const WARM_UP: usize = 8;

impl Arm {
    /// Where a plan for this request puts the model.
    pub fn asked(name: impl Into<String>, request: Request) -> Self {
        Self { name: name.into(), request, saved: None }
    }

    /// Where a saved plan puts it.
    pub fn saved(name: impl Into<String>, plan: SavedPlan) -> Self {
        Self { name: name.into(), request: Request::new(), saved: Some(Box::new(plan)) }
    }
}

impl<'a> Measure<'a> {
    /// Of this model.
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

    setters! {
        /// What is asked of the plans of a [`sweep`](Self::sweep): context, types of the cache and so on.
        request(request: Request) request = request;
        /// Changes what is computed of each placement, from the default: [`Protocol::new`] of the least of
        /// their contexts.
        protocol(change: impl Fn(Protocol) -> Protocol + 'a) protocol = Box::new(change);
        /// Describes each load further, beside its request: machine, threads, isolation, adapters.
        load_with(prepare: impl Fn(ModelBuilder) -> ModelBuilder + 'a) prepare = Box::new(prepare);
        /// Called before each computation; `false` ends the measurement with what there is by then.
        progress(progress: impl FnMut(&Progress<'_>) -> bool + 'a) progress = Box::new(progress);
        /// The folder whose `proc` and `sys` describe the host, as
        /// [`Host::detect_under`](autoplace::machine::Host::detect_under) reads them. Default: `/`. A container may
        /// have its host's mounted elsewhere.
        system(root: impl Into<PathBuf>) system = root.into();
        /// The clock by which [`ready`](Self::ready) spreads its runs. Default: the computer's.
        clock(clock: impl Clock + 'a) clock = Box::new(clock);
    }

    pub(super) fn builder(&self, arm: &Arm) -> ModelBuilder {
        let builder = Model::builder(&self.path);
        (self.prepare)(match &arm.saved {
            Some(plan) => builder.follow(SavedPlan::clone(plan)),
            None => builder.request(self.same_context(arm.request.clone())),
        })
    }

    /// Placements that are compared have one context: one that may grow stays the least.
    pub(super) fn same_context(&self, request: Request) -> Request {
        let profile = Header::open(&self.path).ok().and_then(|it| ModelProfile::from_header(&it).ok());
        profile.iter().fold(request, Request::without_growth)
    }

    /// The plan that a request gets here.
    ///
    /// # Errors
    ///
    /// As [`ModelBuilder::plan`].
    pub fn plan(&self, request: Request) -> Result<Plan, load::Error> {
        self.builder(&Arm::asked("", request)).plan()
    }

    /// The placements that a sweep measures: the planner's own choice, and numbers of whole layers on the GPUs, if any.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn arms(&self, steps: Steps) -> Result<Vec<Arm>, Error> {
        let mut arms = vec![Arm::asked("plan", self.request.clone())];
        let chosen = self.plan(self.request.clone())?;
        let whole = self.request.clone().host_parts(HostParts::None);
        let most = whole.clone().policy(Policy::MostLayers).n_gpu_layers(GpuLayers::Auto);
        let fit = self.plan(most)?.n_gpu_layers;
        if fit == 0 {
            // No GPU, or none with room for a layer: a sweep says nothing then.
            return Ok(arms);
        }
        let is_chosen = |n| n == chosen.n_gpu_layers && chosen.split_blocks == 0;
        let layers = steps.layers(chosen.layers(), fit).into_iter().filter(|&n| !is_chosen(n));
        arms.extend(layers.map(|n| Arm::asked(format!("ngl {n}"), whole.clone().n_gpu_layers(GpuLayers::Exactly(n)))));
        Ok(arms)
    }

    /// Measures what [`arms`](Self::arms) lists.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn sweep(self, steps: Steps) -> Result<Measurement, Error> {
        let arms = self.arms(steps)?;
        self.run(&arms)
    }

    /// Measures these placements, in turns. One that cannot be planned, loaded or computed with is a point that says
    /// why.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] where no placement has a plan or the first cannot be loaded, [`Error::Protocol`], and
    /// [`Error::Stopped`].
    pub fn run(mut self, arms: &[Arm]) -> Result<Measurement, Error> {
        let mut points: Vec<Point> =
            arms.iter().map(|arm| Point { name: arm.name.clone(), ..Point::default() }).collect();
        let (protocol, expected) = self.planned(arms, &mut points)?;
        let all: f64 = expected.iter().sum();
        let mut run = Run { protocol: &protocol, done: 0.0, all: all.max(f64::MIN_POSITIVE), measurement: None };
        let mut order: Vec<usize> = (0..arms.len()).collect();
        let mut is_stopped = false;
        'rounds: for round in 0..protocol.rounds {
            for &n in &order {
                let point = &mut points[n];
                if point.failure.is_some() {
                    continue;
                }
                let share = expected[n] / f64::from(protocol.rounds);
                match run.visit(&mut self, (&arms[n], share), round, point) {
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
            measurement.notes.push("stopped before all was measured".to_owned());
        }
        measurement.points = points;
        Ok(measurement)
    }

    /// What is computed of each placement, and the seconds that it is predicted to take. Points that have no plan say
    /// why.
    fn planned(&self, arms: &[Arm], points: &mut [Point]) -> Result<(Protocol, Vec<f64>), Error> {
        let mut why = None;
        let plans = arms.iter().zip(points).map(|(arm, point)| {
            let planned = self.builder(arm).plan();
            planned.map_err(|error| {
                point.failure = Some(error.to_string());
                why.get_or_insert(error);
            })
        });
        let plans: Vec<Option<Plan>> = plans.map(Result::ok).collect();
        // All compute the same, so that it has room in the least context.
        let contexts = plans.iter().flatten().map(|plan| plan.context.n_ctx_seq());
        match (contexts.min(), why) {
            (Some(n_ctx), _) => {
                let protocol = (self.protocol)(Protocol::new(n_ctx));
                protocol.check()?;
                protocol.fits(protocol.n_prompt as usize, n_ctx)?;
                let expected = |plan: &Option<Plan>| plan.as_ref().map_or(0.0, |it| seconds(it, &protocol));
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
    /// Seconds, as predicted.
    done: f64,
    all: f64,
    /// From the first load on.
    measurement: Option<Measurement>,
}

impl Run<'_> {
    /// One round of one placement. `false`: stopped.
    fn visit(
        &mut self,
        measure: &mut Measure<'_>,
        (arm, share): (&Arm, f64),
        round: u32,
        point: &mut Point,
    ) -> Result<bool, Error> {
        if !(measure.progress)(&Progress { name: &arm.name, done: self.done / self.all }) {
            return Ok(false);
        }
        let model = measure.builder(arm).load()?;
        let plan = model.placement();
        let placed = Measured::of(&model.report());
        if let Some(first) = point.placement.as_ref().filter(|first| !first.is_where(&placed)) {
            let (before, now) = (first.n_gpu_layers, placed.n_gpu_layers);
            return Err(Error::Failed(format!(
                "it was planned otherwise the next time ({before} layers on GPUs, then {now}): memory was taken or given back, or a load has taught something"
            )));
        }
        point.placement.get_or_insert(placed);
        let tokens = self.protocol.tokens(&model, plan.context.n_ctx_seq())?;
        let profile = ModelProfile::from_header(model.header().map_err(load::Error::from)?);
        let law = profile.as_ref().ok().and_then(|profile| speed_model(profile, &plan, &model.machine()));
        let measurement = match &mut self.measurement {
            Some(begun) => begun,
            None => {
                let measured = MeasuredModel::of(&measure.path, &model)?;
                let begun = Measurement::new(measured, (*model.machine()).clone(), self.protocol.clone());
                self.measurement.insert(begun)
            }
        };
        // A load that uses no GPU looks for none.
        if measurement.machine.gpus.is_empty() {
            measurement.machine = (*model.machine()).clone();
        }
        let predicted = |[n_prompt, n_gen, depth]: [u32; 3]| {
            let (speeds, assignment) = law.as_ref()?;
            Some(rounded(match n_gen {
                0 => {
                    let workload = Workload::new(n_prompt, 0).after(depth);
                    f64::from(n_prompt) / speeds.prompt_seconds(assignment, &workload)
                }
                _ => speeds.tokens_per_second(assignment, depth + n_gen / 2),
            }))
        };
        let mut observer = Observer::new(&model, &measure.system);
        compute(&model, tokens.before(WARM_UP as u32), WARM_UP, false)?;
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
                if !(measure.progress)(&Progress { name: &arm.name, done: self.done / self.all }) {
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
    // The context may hold more or less than the depth: the time is that of the tokens that were computed.
    let computed = statistics.prompt_tokens - statistics.cached_tokens;
    let generated = statistics.generated_tokens.saturating_sub(1);
    Ok([
        per(statistics.prompt_time.as_nanos(), prompt.len() as u32, computed),
        per(statistics.generation_time.as_nanos(), n_gen, generated),
    ])
}

/// Computes a prompt and so many tokens after it, the end of the text or not.
fn compute(model: &Model, prompt: Vec<Token>, n: usize, cached: bool) -> Result<Statistics, Error> {
    let mut stream = model.generate(prompt).cache_prompt(cached).temp(0.0).max_tokens(n).ignore_eos().stream()?;
    for piece in &mut stream {
        piece?;
    }
    Ok(stream.statistics())
}

/// Nanoseconds of `n` tokens, where so many took so long.
fn per(ns: u128, n: u32, tokens: usize) -> u64 {
    let tokens = u128::try_from(tokens).unwrap_or_default().max(1);
    u64::try_from(ns * u128::from(n) / tokens).unwrap_or(u64::MAX)
}

/// What a plan says that its part takes.
fn seconds(plan: &Plan, protocol: &Protocol) -> f64 {
    let texts = (protocol.n_texts() * protocol.depths.len()) as f64;
    // Without a prediction all count the same.
    plan.speed.as_ref().map_or(1.0, |speed| {
        let fast = speed.prompt.tokens_per_second;
        let prompt = if fast > 0.0 { f64::from(protocol.n_prompt) / fast } else { 0.0 };
        texts * (prompt + f64::from(protocol.n_gen) / speed.tokens_per_second.max(1e-9))
    })
}

/// This second, in UTC: `2026-11-24T11:59:33Z`.
pub(super) fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}
