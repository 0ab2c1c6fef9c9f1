//! The load loop: reads the free memory, plans, carries the plan out, and compares the plan with the memory that the
//! load took. If memory runs short, everything is released. The next attempt plans with the memory that is free by
//! then, and with the ceilings that the failure has set.

use std::sync::Arc;
use std::time::Instant;

use llama_sys::FailureCause;

use super::ceilings::{HOST, MemoryCeilings, gpu};
use super::error::{Attempt, AttemptFailure, Stage};
use super::expert_meter::ExpertMeter;
use super::headroom::Work;
use super::in_use::UseMeter;
use super::lease::Lease;
use super::loaded::{Failure, Loaded};
use super::options::{LoadOptions, OnDifference};
use super::placed::Prepared;
use super::progress::Progress;
use super::report::GpuReport;
use super::{Error, devices, replay};
use crate::gguf::Header;
use crate::machine::Machine;
use crate::memory::{Headroom, Pooling};
use crate::plan::{Plan, SavedPlanError};
use crate::profile::ModelProfile;

/// The plan of the first attempt.
pub(super) enum FirstAttempt {
    /// The saved plan, or a new one for the described or detected machine.
    Fresh,
    /// This plan, or, with `None`, a new plan. The free memory is read again, because time has passed since the machine
    /// was described.
    Again(Option<Box<Plan>>),
}

pub(super) struct LoadLoop<'a> {
    options: &'a LoadOptions,
    header: Header,
    profile: ModelProfile,
    first: FirstAttempt,
    progress: Progress,
    tried: Vec<Attempt>,
    plans: Vec<Plan>,
    ceilings: MemoryCeilings,
    /// Whether the last attempt failed although there was room, so that the same plan would fail again.
    must_differ: bool,
    /// Number of live tokens. If a new plan has two placements, this number selects the one to load.
    depth: u32,
}

impl<'a> LoadLoop<'a> {
    /// `header` and `profile` come from [`LoadOptions::read`].
    pub(super) fn new(
        options: &'a LoadOptions,
        (header, profile): (Header, ModelProfile),
        first: FirstAttempt,
        progress: Progress,
    ) -> Result<Self, Error> {
        // The matrices of a classification head (llama-arch.cpp). Every model with such a head has at least the last
        // matrix.
        let has_head = || ["cls.weight", "cls.output.weight"].iter().any(|name| header.tensor(name).is_some());
        match options.request.params.embeddings {
            Some(Pooling::Model) if profile.hparams.pooling.is_none() => {
                return Err(Error::NoPooling { model: profile.name });
            }
            Some(Pooling::Rank) if !has_head() => {
                return Err(Error::NoRankHead { architecture: profile.architecture });
            }
            _ => {}
        }
        Ok(Self {
            options,
            header,
            profile,
            first,
            progress,
            tried: Vec::new(),
            plans: Vec::new(),
            ceilings: MemoryCeilings::default(),
            must_differ: false,
            depth: 0,
        })
    }

    /// If a new plan has two placements, loads the placement for this number of live tokens. Without this call, the
    /// number is 0.
    pub(super) const fn at_depth(mut self, tokens: u32) -> Self {
        self.depth = tokens;
        self
    }

    /// Loads the model within the allowed number of attempts.
    pub(super) fn load(mut self) -> Result<Loaded, Error> {
        loop {
            // The lease is held until the load's memory is taken and judged, or freed again.
            let (prepared, lease) = match self.prepare() {
                Ok(prepared) => prepared,
                Err(error) => return Err(self.no_plan(error)),
            };
            let begun = Instant::now();
            let carried_out = self.options.carry_out(&prepared, &self.header, &self.progress);
            let judged = carried_out.and_then(|loaded| self.judged(loaded, &prepared));
            match judged.and_then(|loaded| self.beside(loaded, &prepared)) {
                Ok(mut loaded) => {
                    Arc::make_mut(&mut loaded.placed.report).time = begun.elapsed();
                    if let (FirstAttempt::Fresh, Some(times)) = (&self.first, &loaded.times) {
                        self.options.learn_from_load(&prepared, times);
                    }
                    return Ok(self.reported(loaded, &lease));
                }
                Err(failure) => self.back_off(&prepared, *failure)?,
            }
        }
    }

    /// Reads the free memory, plans, and leases the GPUs of the plan.
    pub(super) fn prepare(&mut self) -> Result<(Prepared, Lease), Error> {
        // The first call of the callback comes at once, because a driver may take seconds to start.
        self.enter(Stage::Plan)?;
        if !self.tried.is_empty() {
            return self.prepare_again();
        }
        let (options, progress) = (self.options, &self.progress);
        let (plan, machine, lease) = match (&self.first, &options.saved) {
            (FirstAttempt::Again(Some(plan)), _) => {
                let (machine, lease) = options.leased_machine(true, progress)?;
                ((**plan).clone(), machine, lease)
            }
            (FirstAttempt::Fresh, Some(saved)) => {
                match replay::follow(options, saved, &self.header, &self.profile, progress) {
                    Err(Error::SavedPlan(changed @ SavedPlanError::Changed { .. })) if options.may_replan() => {
                        let (mut plan, machine, lease) = self.fresh(true)?;
                        plan.notes.push(format!("{changed}: planned again"));
                        (plan, machine, lease)
                    }
                    followed => {
                        let (plan, machine, lease) = followed?;
                        let moves = options.move_rates(&machine, self.profile.file_bytes);
                        (plan.with_move_rates(&moves).for_depth(self.depth), machine, lease)
                    }
                }
            }
            (first, _) => self.fresh(matches!(first, FirstAttempt::Again(_)))?,
        };
        Ok(self.prepared(plan, machine, lease))
    }

    /// Makes a plan for the memory that is free now.
    fn fresh(&self, again: bool) -> Result<(Plan, Machine, Lease), Error> {
        let (machine, lease) = self.options.leased_machine(again, &self.progress)?;
        // The lease keeps other loads from reading the free memory during a measurement, which itself takes memory and
        // computes.
        self.enter(Stage::Measure)?;
        let machine = self.options.measured(machine, &self.header, &self.profile);
        self.enter(Stage::Plan)?;
        // A model that is being moved gets no advice: its texts wait, it continues in its old placement, and no user
        // would read the advice.
        let plan = match again {
            true => self.plan(&machine)?,
            false => self.options.plan_or_advice(&self.header, &self.profile, &machine)?,
        };
        Ok((plan.for_depth(self.depth), machine, lease))
    }

    /// Plans again after a failure. The new plan must differ from plans that failed although there was room.
    fn prepare_again(&mut self) -> Result<(Prepared, Lease), Error> {
        let (machine, lease) = self.options.leased_machine(true, &self.progress)?;
        loop {
            let mut plan = self.plan(&self.ceilings.apply(machine.clone()))?.for_depth(self.depth);
            let is_new = !self.plans.iter().any(|tried| is_same(tried, &plan));
            if is_new || !self.must_differ || !self.ceilings.lower_further() {
                let n = self.tried.len();
                let s = if n == 1 { "" } else { "s" };
                plan.notes.push(format!("planned again for the memory free after {n} failed attempt{s}"));
                return Ok(self.prepared(plan, machine, lease));
            }
        }
    }

    /// Reports that the load enters this stage.
    fn enter(&self, stage: Stage) -> Result<(), Error> {
        self.options.enter(stage, &self.progress)
    }

    fn plan(&self, machine: &Machine) -> Result<Plan, Error> {
        self.options.plan(&self.header, &self.profile, machine)
    }

    fn prepared(&self, mut plan: Plan, machine: Machine, lease: Lease) -> (Prepared, Lease) {
        // A saved plan may have these notes already.
        let new = self.options.notes.iter().filter(|note| !plan.notes.contains(note)).cloned().collect::<Vec<_>>();
        plan.notes.splice(0..0, new);
        let lease = lease.hold(&plan, &machine);
        // A plan's sizes are always valid for llama.cpp, so the default value is never used.
        let work = plan.context.sizes().map(|sizes| Work::new(&self.profile, &sizes)).unwrap_or_default();
        (Prepared { plan, machine, work }, lease)
    }

    /// Compares the memory that the load took with the plan.
    fn judged(&mut self, mut loaded: Loaded, prepared: &Prepared) -> Result<Loaded, Box<Failure>> {
        let report = Arc::make_mut(&mut loaded.placed.report);
        let different: Vec<&GpuReport> = report.gpus.iter().filter(|gpu| gpu.difference() > 0).collect();
        let Some(worst) = different.iter().max_by_key(|gpu| gpu.difference()) else { return Ok(loaded) };
        let error = Error::Difference {
            device: worst.device.clone(),
            name: worst.name.clone(),
            planned: worst.planned.total(),
            headroom: worst.left(),
            taken: worst.counted(),
            difference: worst.difference(),
        };
        let is_kept = match self.options.on_difference {
            OnDifference::Accept => Some("the load is kept anyway, as requested"),
            OnDifference::Fail => None,
            OnDifference::BackOff => {
                for gpu in different {
                    self.ceilings.took_more(&prepared.plan, &gpu.device, gpu.difference());
                }
                // Plans again for the same machine with that difference left free.
                let again = self.plan(&self.ceilings.apply(prepared.machine.clone()));
                let is_same = again.is_ok_and(|again| is_same(&again.for_depth(self.depth), &prepared.plan));
                is_same.then_some("the load is kept, because the memory that is left exceeds this difference")
            }
        };
        if let Some(why) = is_kept {
            report.notes.push(format!("{error}; {why}"));
            return Ok(loaded);
        }
        Err(Failure::at(Stage::Verify)(error))
    }

    /// Loads the draft model and the projector of the loaded model.
    fn beside(&mut self, loaded: Loaded, prepared: &Prepared) -> Result<Loaded, Box<Failure>> {
        let with_draft = self.options.add_draft(loaded, prepared, &self.progress);
        let with_both = with_draft.and_then(|loaded| self.options.add_projector(loaded, prepared, &self.progress));
        with_both.inspect_err(|failure| {
            if let Error::Difference { device, difference, .. } = &failure.error {
                self.ceilings.took_more(&prepared.plan, device, *difference);
            }
        })
    }

    /// Records a failure, and what the next plan must change because of it. Returns the error if there is no further
    /// attempt.
    fn back_off(&mut self, prepared: &Prepared, failure: Failure) -> Result<(), Error> {
        if !failure.lacks_memory(&prepared.plan, self.options.on_difference) {
            return Err(failure.error);
        }
        let Failure { stage, error } = failure;
        let device = device(&prepared.plan, &error);
        self.tried.push(Attempt::new(&prepared.plan, Some(failed(&prepared.plan, stage, &error, device.clone()))));
        self.plans.push(prepared.plan.clone());
        let is_saved = matches!(self.first, FirstAttempt::Fresh) && self.options.saved.is_some();
        if is_saved && !self.options.may_replan() || self.tried.len() >= self.options.attempts as usize {
            return Err(self.given_up(error));
        }
        tracing::warn!("{error}; everything is released, and the model is planned again");
        // If another process took the memory, or if `judged` has already lowered the ceiling, the next plan differs
        // anyway.
        self.must_differ = !matches!(error, Error::OutOfMemory { .. });
        if let Some(device) = device.filter(|_| self.must_differ && stage != Stage::Verify) {
            let lacked = refused(&error).map_or_else(|| unknown_growth(prepared, &device), |(_, bytes)| bytes);
            self.ceilings.failed(&prepared.plan, &device, lacked);
        }
        Ok(())
    }

    /// The error of a load for which no plan was found.
    fn no_plan(&mut self, error: Error) -> Error {
        if self.tried.is_empty() || matches!(error, Error::Native(llama_sys::Error::LoadCancelled { .. })) {
            return error;
        }
        self.tried.push(Attempt::unplanned(error.to_string()));
        self.given_up(error)
    }

    /// The error of a load that is not tried again: the error of the only attempt, or the list of all attempts.
    fn given_up(&mut self, error: Error) -> Error {
        if self.tried.len() < 2 {
            return error;
        }
        Error::AllAttempts { attempts: std::mem::take(&mut self.tried), source: Box::new(error) }
    }

    /// Adds all attempts to the report of a successful load, and logs the plan.
    fn reported(mut self, mut loaded: Loaded, lease: &Lease) -> Loaded {
        let report = Arc::make_mut(&mut loaded.placed.report);
        self.tried.push(Attempt::new(&report.plan, None));
        report.attempts = self.tried;
        report.unleased.clone_from(&lease.unleased);
        say(&report.plan);
        let (plan, machine) = (&loaded.placed.plan, &loaded.placed.machine);
        loaded.meter = UseMeter::for_load(self.options, &self.profile, plan, machine);
        loaded.experts = ExpertMeter::for_load(self.options, plan, machine);
        loaded.native.said = self.options.leases.say_loaded(plan).map(Arc::new);
        loaded
    }
}

/// Logs the placement, the speed and the notes in one line.
fn say(plan: &Plan) {
    let (name, n, layers) = (&plan.model.name, plan.n_gpu_layers, plan.layers());
    let speed = plan.speed.as_ref().map(|speed| format!("about {:.1} tok/s", speed.tokens_per_second));
    let speed = speed.as_deref().unwrap_or("no predicted speed");
    tracing::info!("{name}: {n} of {layers} layers on GPUs, {speed}; {}", plan.notes.join("; "));
    if let Some(trained) = plan.trained_on_fewer() {
        let n_ctx = plan.context.n_ctx;
        tracing::warn!(n_ctx, trained, "{name} has a context of {n_ctx} tokens and was trained on {trained}");
    }
}

/// Whether loads by these two plans would do the same.
fn is_same(one: &Plan, other: &Plan) -> bool {
    let devices = |plan: &Plan| -> Vec<Option<String>> { plan.gpus().map(|gpu| gpu.device.clone()).collect() };
    one.split() == other.split() && one.context == other.context && devices(one) == devices(other)
}

/// The buffer type and the bytes of an allocation that llama.cpp could not make.
fn refused(error: &Error) -> Option<(&str, u64)> {
    match error {
        Error::Native(error) => error.out_of_memory().map(|failed| (failed.buffer_type.as_str(), failed.bytes)),
        _ => None,
    }
}

/// The device that failed. This is the device that the error names: a GPU or a buffer type of the host. If host memory
/// outside of a buffer was refused, it is the host. After a failed computation, it is the GPU with the least memory
/// left.
fn device(plan: &Plan, error: &Error) -> Option<String> {
    if let Error::OutOfMemory { device, .. } | Error::Difference { device, .. } = error {
        return Some(device.clone());
    }
    if let Some((buffer_type, _)) = refused(error) {
        return Some(buffer_type.to_owned());
    }
    if matches!(error, Error::Native(error) if error.failure().is_some_and(|failure| failure.cause == FailureCause::HostMemory))
    {
        return Some(HOST.to_owned());
    }
    plan.gpus().min_by_key(|gpu| gpu.free.saturating_sub(gpu.footprint.total() + gpu.companions))?.device.clone()
}

fn failed(plan: &Plan, stage: Stage, error: &Error, device: Option<String>) -> AttemptFailure {
    let needed = device.as_deref().and_then(|device| gpu(plan, device)).map(|gpu| gpu.footprint.total());
    let free = match error {
        Error::OutOfMemory { free, .. } => Some(*free),
        _ => device.as_deref().and_then(devices::free_of),
    };
    AttemptFailure { stage, device, needed, free, message: error.to_string() }
}

/// Maximum memory that the driver and pools of a GPU are known to take. If a computation failed, it may have lacked
/// this amount.
fn unknown_growth(prepared: &Prepared, device: &str) -> u64 {
    let Prepared { machine, work, .. } = prepared;
    let gpu = machine.gpus.iter().find(|gpu| gpu.device.as_deref() == Some(device));
    let parts = gpu.map(|gpu| Headroom::Tight.of_gpu(gpu, &work.with_output, 0, machine.wsl));
    parts.map_or(0, |parts| parts.driver.saturating_add(parts.growth))
}
