//! Corrects the measured rates of a plan's devices with the speed of real use.
//!
//! In: the time of each token of a text that generates alone, and of each prompt that is computed alone. Out: corrected
//! rates of the devices ([`UsedRate`](crate::machine::UsedRate)), which are stored for later plans, and a corrected
//! speed if real use refutes the prediction. A time is ignored if other work ran on the processor meanwhile. The rates
//! follow the median of the measurements, so a single odd window does not matter.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::options::LoadOptions;
use super::rates::MIN_MODEL_BYTES;
use super::{build_name, devices, gpu_of};
use crate::machine::folder::ANSWER_WITHIN;
use crate::machine::{ConditionsWatch, Gpu, Machine, MeasuredRates, MeasurementCache};
use crate::memory::Place;
use crate::memory::estimate::{Assignment, split_points};
use crate::plan::speed::{Basis, InUse, Rate, Rates, SpeedModel};
use crate::plan::{Plan, Workload};
use crate::profile::ModelProfile;

/// The number of tokens in a window of generation, and the duration of a window.
const TOKENS: u64 = 16;
const WINDOW: Duration = Duration::from_millis(300);
/// Shortest prompt to measure, in tokens. Shorter prompts run at another speed.
const MIN_PROMPT: usize = 128;
/// Maximum number of windows and prompts kept per load.
const REMEMBERED: usize = 64;
/// Duration of undisturbed use after which a prediction with an error of more than [`WRONG`] counts as refuted, and the
/// rates are stored.
const BELIEVED: Duration = Duration::from_secs(60);
const WRONG: f64 = 0.15;
/// All running texts wait while the rates are stored, so a folder that does not answer is waited for only shortly.
const PATIENCE: Duration = Duration::from_millis(500);

/// The model of [`plan::speed`](crate::plan::speed) for a plan on this machine, and the assignment of its layers.
/// `None` if nothing is known about a device, so that its rate would be a guess.
pub fn speed_model(profile: &ModelProfile, plan: &Plan, machine: &Machine) -> Option<(SpeedModel, Assignment)> {
    let gpus: Option<Vec<&Gpu>> = plan.gpus().map(|gpu| gpu_of(machine, gpu)).collect();
    let rates = Rates::for_devices(&gpus?, &machine.host);
    let is_guess = |rate: &Rate| rate.basis == Basis::Guess;
    if rates.gpus.iter().any(is_guess) || is_guess(&rates.host) {
        return None;
    }
    let points = if rates.gpus.len() > 1 { split_points(&plan.tensor_split).ok()? } else { vec![1.0] };
    let n_gpu_layers = if rates.gpus.is_empty() { 0 } else { plan.n_gpu_layers };
    let assignment = Assignment::new(profile.n_layer(), n_gpu_layers, &points);
    let model = SpeedModel::new(profile, &plan.context, rates);
    Some((model.overrides(profile, &plan.overrides).ok()?, assignment))
}

/// Measures a loaded model in use, and corrects the rates of its devices.
#[derive(Debug)]
pub(crate) struct UseMeter {
    model: SpeedModel,
    assignment: Assignment,
    /// The machine. The GPUs of the plan come first, in the plan's order.
    machine: Machine,
    /// The number of threads with which the host's rates were measured; `None` if the host computes no layer.
    threads: Option<u32>,
    cache: Option<MeasurementCache>,
    watch: Option<ConditionsWatch>,
    window: Window,
    generation: Seen,
    prompts: Seen,
    prompt: Option<ConditionsWatch>,
    /// Undisturbed generation time since the last decision.
    since: Duration,
}

/// A run of successive tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    tokens: u64,
    time: Duration,
    depths: u64,
}

/// Measurements of one kind of work.
#[derive(Debug, Default)]
struct Seen {
    all: Vec<(InUse, f64)>,
    tokens: u64,
}

/// Ratios of the real speed to the predicted one, after real use has refuted the prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Refuted {
    pub(crate) generation: f64,
    pub(crate) prompt: f64,
}

impl Seen {
    /// Adds a measurement. `ratio` is the real time divided by the predicted one.
    fn add(&mut self, seen: InUse, ratio: f64, tokens: u64) {
        if self.all.len() == REMEMBERED {
            self.all.remove(0);
        }
        self.all.push((seen, ratio));
        self.tokens += tokens;
    }

    /// The median, which unusually long and short times do not affect.
    fn median(&self) -> Option<(InUse, f64)> {
        let mut all: Vec<&(InUse, f64)> = self.all.iter().collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        all.get(all.len() / 2).map(|entry| **entry)
    }
}

impl UseMeter {
    /// A meter for a load by this plan. `None` if its speed was not predicted from measured rates, or if no
    /// measurements are kept.
    pub(super) fn for_load(
        options: &LoadOptions,
        profile: &ModelProfile,
        plan: &Plan,
        machine: &Machine,
    ) -> Option<Self> {
        let mut devices = machine.gpus.iter().filter_map(|gpu| gpu.device.as_deref());
        let is_real = options.machine.is_none() && !devices.any(devices::is_simulated);
        let cache = options.learn.cache(false).filter(|_| is_real && profile.file_bytes >= MIN_MODEL_BYTES)?;
        Self::new(profile, plan, machine, Some(cache.patience(PATIENCE)))
    }

    fn new(profile: &ModelProfile, plan: &Plan, machine: &Machine, cache: Option<MeasurementCache>) -> Option<Self> {
        plan.speed.as_ref()?;
        if plan.moe_cache.is_some() {
            // The time of a token depends on the experts in the cache and not only on the rates of the devices.
            return None;
        }
        let (model, assignment) = speed_model(profile, plan, machine)?;
        let mut machine = machine.clone();
        machine.gpus = plan.gpus().filter_map(|gpu| gpu_of(&machine, gpu).cloned()).collect();
        let threads = match plan.full_offload && plan.context.offload_kqv {
            true => None,
            false => Some(machine.host.rates.as_ref()?.threads?),
        };
        // The stored rates apply to a host without a CPU quota.
        if threads.is_some_and(|threads| machine.host.share_of_time(threads) < 1.0) {
            return None;
        }
        Some(Self {
            model,
            assignment,
            machine,
            threads,
            cache,
            watch: None,
            window: Window::default(),
            generation: Seen::default(),
            prompts: Seen::default(),
            prompt: None,
            since: Duration::ZERO,
        })
    }

    /// Adds a generated token of the only text that is being generated. `took` is its time with `threads` threads,
    /// `depth` the number of tokens before it. Returns the refuted prediction, if there is one.
    pub(crate) fn token(&mut self, took: Duration, depth: usize, threads: u32) -> Option<Refuted> {
        if self.threads.is_some_and(|usual| usual != threads) {
            // The rates were measured with another number of threads, so this time says nothing about them.
            (self.watch, self.window) = (None, Window::default());
            return None;
        }
        let Some(watch) = &self.watch else {
            self.watch = Some(ConditionsWatch::begin());
            return None;
        };
        self.window.tokens += 1;
        self.window.time += took;
        self.window.depths += depth as u64;
        if self.window.tokens < TOKENS || self.window.time < WINDOW {
            return None;
        }
        let is_quiet = watch.so_far().is_quiet();
        (self.watch, self.prompt) = (Some(ConditionsWatch::begin()), None);
        let window = std::mem::take(&mut self.window);
        self.generated(window, is_quiet)
    }

    fn generated(&mut self, window: Window, is_quiet: bool) -> Option<Refuted> {
        if !is_quiet {
            return None;
        }
        let depth = u32::try_from(window.depths / window.tokens.max(1)).unwrap_or(u32::MAX);
        let seen = InUse::Generation { depth, seconds: window.time.as_secs_f64() / window.tokens as f64 };
        let ratio = seen.seconds() / seen.predicted(&self.model, &self.assignment);
        self.generation.add(seen, ratio, window.tokens);
        self.since += window.time;
        (self.since >= BELIEVED).then(|| self.decide(true)).flatten()
    }

    /// Begins the measurement of the prompt of the only text.
    pub(crate) fn prompt_begins(&mut self) {
        self.prompt = Some(ConditionsWatch::begin());
    }

    /// Ends the measurement because other texts compute in the same steps.
    pub(crate) fn has_company(&mut self) {
        (self.prompt, self.watch, self.window) = (None, None, Window::default());
    }

    /// Ends the measurement of a prompt. `before` is the number of cached tokens, `tokens` the number of computed ones,
    /// `took` their time.
    pub(crate) fn prompt(&mut self, before: usize, tokens: usize, took: Duration) {
        let Some(watch) = self.prompt.take().filter(|_| tokens >= MIN_PROMPT) else { return };
        let is_quiet = watch.so_far().is_quiet();
        self.computed(before, tokens, took, is_quiet);
    }

    fn computed(&mut self, before: usize, tokens: usize, took: Duration, is_quiet: bool) {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let workload = Workload::new(count(tokens), 0).after(count(before));
        let seen = InUse::Prompt { workload, seconds: took.as_secs_f64() };
        let ratio = seen.seconds() / seen.predicted(&self.model, &self.assignment);
        if is_quiet && ratio.is_finite() {
            self.prompts.add(seen, ratio, tokens as u64);
        }
    }

    /// Corrects the rates by the medians of the measurements, and stores them. `long` says that there was enough use to
    /// refute the prediction. Returns the refuted prediction and starts over.
    fn decide(&mut self, long: bool) -> Option<Refuted> {
        let (generation, prompts) = (std::mem::take(&mut self.generation), std::mem::take(&mut self.prompts));
        self.since = Duration::ZERO;
        let is_wrong = |ratio: f64| long && (ratio - 1.0).abs() > WRONG;
        let mut factors = [1.0, 1.0];
        for (seen, factor) in [&generation, &prompts].into_iter().zip(&mut factors) {
            let Some((in_use, ratio)) = seen.median() else { continue };
            if let Some(correction) = in_use.correction(&self.model, &self.assignment) {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                if let Some(rates) = rates_of(&mut self.machine, correction.place) {
                    correction.apply(&self.model, rates, seen.tokens, now, is_wrong(ratio));
                }
            }
            *factor = if is_wrong(ratio) { 1.0 / ratio } else { 1.0 };
        }
        if let Some(cache) = &self.cache {
            cache.put_rates(&self.machine, &build_name());
        }
        // Further measurements are compared with the corrected rates.
        let gpus: Vec<&Gpu> = self.machine.gpus.iter().collect();
        self.model = self.model.clone().with_rates(Rates::for_devices(&gpus, &self.machine.host));
        let [generation, prompt] = factors;
        (factors != [1.0, 1.0]).then_some(Refuted { generation, prompt })
    }
}

impl Drop for UseMeter {
    fn drop(&mut self) {
        if !self.generation.all.is_empty() || !self.prompts.all.is_empty() {
            // No text waits any more.
            self.cache = self.cache.take().map(|cache| cache.patience(ANSWER_WITHIN));
            self.decide(false);
        }
    }
}

fn rates_of(machine: &mut Machine, place: Place) -> Option<&mut MeasuredRates> {
    match place {
        Place::Host => machine.host.rates.as_mut(),
        Place::Gpu(gpu) => machine.gpus.get_mut(gpu)?.rates.as_mut(),
    }
}

#[cfg(test)]
mod tests;
