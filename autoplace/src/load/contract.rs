//! The load contract: ask what is free, plan, carry the plan out, hold what was taken against it; and where memory was
//! lacking, release everything, and again with what is free then and what the failure taught.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::carry_out::{Failure, Loaded};
use super::error::{Attempt, AttemptFailure, Stage};
use super::lease::{Lease, Section};
use super::placed::Prepared;
use super::progress::Progress;
use super::recipe::{OnDifference, Recipe};
use super::report::GpuReport;
use super::taught::{Place, Taught};
use super::{Error, replay};
use crate::gguf::Header;
use crate::machine::{Gpu, Host, Machine};
use crate::memory::{Footprints, Headroom, Pooling};
use crate::plan::{self, Confidence, Plan, Probe, Replay, SavedPlan};
use crate::profile::ModelProfile;

/// What the first attempt follows.
pub(super) enum First {
    /// A plan for what is free, on the machine as it was described, if it was.
    Fresh,
    /// A plan for what is free now: time has passed since the machine was described.
    Again,
    /// This plan, for this machine; if it lacks memory, one for what is free then.
    Given(Box<Plan>, Box<Machine>),
    /// A saved plan, which is followed, refused, or made anew.
    Saved(Box<SavedPlan>, Replay),
}

pub(super) struct Contract<'a> {
    recipe: &'a Recipe,
    header: Header,
    profile: ModelProfile,
    first: First,
    progress: Progress,
    tried: Vec<Attempt>,
    plans: Vec<Plan>,
    taught: Taught,
    /// Whether the last attempt failed although there was room, so that the same plan would fail again.
    must_differ: bool,
}

impl<'a> Contract<'a> {
    /// Reads the model's header.
    pub(super) fn new(recipe: &'a Recipe, first: First, progress: Progress) -> Result<Self, Error> {
        let header = Header::open(&recipe.path)?;
        let profile = recipe.profile(&header)?;
        let by_model = recipe.request.params.embeddings == Some(Pooling::Model);
        if by_model && profile.hparams.pooling.is_none() {
            return Err(Error::NoPooling { model: profile.name });
        }
        let ranks = recipe.request.params.embeddings == Some(Pooling::Rank);
        // llama-arch.cpp: the head's matrices, of which a model has the last at least.
        let head = ["cls.weight", "cls.output.weight"];
        if ranks && !head.iter().any(|name| header.tensor(name).is_some()) {
            return Err(Error::NoRankHead { architecture: profile.architecture });
        }
        Ok(Self {
            recipe,
            header,
            profile,
            first,
            progress,
            tried: Vec::new(),
            plans: Vec::new(),
            taught: Taught::default(),
            must_differ: false,
        })
    }

    /// Loads, in as many attempts as it may take.
    pub(super) fn load(mut self) -> Result<Loaded, Error> {
        loop {
            // Held until all that the plan takes is taken and judged, or nothing of it any more.
            let (prepared, lease) = match self.prepare() {
                Ok(prepared) => prepared,
                Err(error) => return Err(self.no_plan(error)),
            };
            let model = (&self.header, &self.profile);
            let carried_out = self.recipe.carry_out(&prepared, model, &self.progress);
            let judged = carried_out.and_then(|loaded| self.judged(loaded, &prepared));
            match judged.and_then(|loaded| self.beside(loaded, &prepared)) {
                Ok(loaded) => return Ok(self.told(loaded, &lease)),
                Err(failure) => self.back_off(&prepared, *failure)?,
            }
        }
    }

    /// Asks what is free, plans with it, and tells others what is going to be taken.
    pub(super) fn prepare(&mut self) -> Result<(Prepared, Lease), Error> {
        if !self.tried.is_empty() {
            return self.prepare_again();
        }
        let leases = &self.recipe.leases;
        match &self.first {
            First::Fresh | First::Again => {
                let again = matches!(self.first, First::Again);
                // Nobody else reads what is free while a measurement takes some of it.
                let (machine, section) = leases.machine(|| {
                    let machine = self.recipe.machine(again)?;
                    Ok::<_, Error>(self.recipe.measured(machine, &self.header, &self.profile))
                })?;
                Ok(leased(self.planned(machine)?, section))
            }
            First::Given(plan, machine) => {
                let (machine, section) = leases.machine(|| Ok::<_, Error>((**machine).clone()))?;
                Ok(leased(self.prepared((**plan).clone(), machine)?, section))
            }
            First::Saved(saved, replay) => {
                let machine = self.recipe.machine.as_ref();
                let (header, profile) = (&self.header, &self.profile);
                let probe = self.recipe.adapters.probe(header)?;
                let model = (header, profile, &probe);
                let (plan, machine, lease) = replay::follow(saved, *replay, model, machine, leases)?;
                Ok((self.prepared(plan, machine)?, lease))
            }
        }
    }

    /// The same after a failure: another plan than those that failed although there was room.
    fn prepare_again(&mut self) -> Result<(Prepared, Lease), Error> {
        let leases = &self.recipe.leases;
        let (now, section) = leases.machine(|| self.recipe.machine(true))?;
        loop {
            let bounded = self.taught.apply(now.clone());
            let withheld = withheld(&now, &bounded);
            let mut prepared = self.planned(bounded)?;
            prepared.withheld = withheld;
            let is_new = !self.plans.iter().any(|plan| is_same(plan, &prepared.plan));
            if is_new || !self.must_differ || !self.taught.lower_further() {
                let n = self.tried.len();
                prepared.plan.notes.push(format!(
                    "planned anew for what was free after {n} failed attempt{}",
                    if n == 1 { "" } else { "s" }
                ));
                return Ok(leased(prepared, section));
            }
        }
    }

    fn planned(&self, mut machine: Machine) -> Result<Prepared, Error> {
        if self.recipe.request.allow_paging && machine.host.disk.is_none() {
            machine.host.disk = Host::measure_disk(&self.recipe.path);
        }
        let plan = self.recipe.plan(&self.header, &self.profile, &machine)?;
        self.prepared(plan, machine)
    }

    /// A plan with what llama.cpp says that it takes, which a probed one says itself.
    fn prepared(&self, plan: Plan, machine: Machine) -> Result<Prepared, Error> {
        let probed = if plan.confidence == Confidence::Probed {
            let gpus = plan.gpus().map(|gpu| gpu.footprint).collect();
            let host = plan.host().map(|host| host.footprint);
            Footprints::new(gpus, host.unwrap_or_default())
        } else {
            self.probe(&plan)?
        };
        Ok(Prepared::new(plan, machine, probed, &self.profile))
    }

    fn probe(&self, plan: &Plan) -> Result<Footprints, Error> {
        let gpus = plan.gpus().map(|placement| {
            let mut gpu = Gpu::new(placement.name.as_str()).backend(placement.backend.as_str());
            gpu.device.clone_from(&placement.device);
            gpu
        });
        let gpus: Vec<Gpu> = gpus.collect();
        let gpus: Vec<&Gpu> = gpus.iter().collect();
        let probe = self.recipe.adapters.probe(&self.header)?;
        let probed = probe.footprints(&gpus, &plan.context, &plan.split());
        Ok(probed.map_err(|source| plan::Error::Probe { n_gpu_layers: plan.n_gpu_layers, source })?)
    }

    /// Holds what was taken against what was left for it.
    fn judged(&mut self, mut loaded: Loaded, prepared: &Prepared) -> Result<Loaded, Box<Failure>> {
        let report = Arc::make_mut(&mut loaded.placed.report);
        let different = report.gpus.iter().filter(|gpu| gpu.difference() > 0);
        let different: Vec<&GpuReport> = different.collect();
        let Some(worst) = different.iter().max_by_key(|gpu| gpu.difference()) else {
            return Ok(loaded);
        };
        let error = Error::Difference {
            device: worst.device.clone(),
            name: worst.name.clone(),
            planned: worst.planned.total(),
            headroom: worst.left(),
            taken: worst.counted(),
            difference: worst.difference(),
        };
        let is_kept = match self.recipe.terms.on_difference {
            OnDifference::Accept => Some("kept all the same, as was asked"),
            OnDifference::Fail => None,
            OnDifference::BackOff => {
                for gpu in different {
                    let more = gpu.difference();
                    self.taught.took_more(&prepared.plan, &gpu.device, more);
                }
                // With that much more left free on the machine as it was.
                let machine = self.taught.apply(prepared.machine.clone());
                let again = self.recipe.plan(&self.header, &self.profile, &machine);
                again
                    .is_ok_and(|again| is_same(&again, &prepared.plan))
                    .then_some("there is more room than the plan needs")
            }
        };
        if let Some(why) = is_kept {
            report.notes.push(format!("{error}; {why}"));
            return Ok(loaded);
        }
        Err(self.recipe.differs(error))
    }

    /// Loads what belongs beside the model.
    fn beside(&mut self, loaded: Loaded, prepared: &Prepared) -> Result<Loaded, Box<Failure>> {
        let added = self.recipe.add_draft(loaded, prepared, &self.progress);
        added.inspect_err(|failure| {
            if let Error::Difference { device, difference, .. } = &failure.error {
                (self.taught).took_more(&prepared.plan, device, *difference);
            }
        })
    }

    /// Notes a failure down, and what it taught. An error where it ends the load.
    fn back_off(&mut self, prepared: &Prepared, failure: Failure) -> Result<(), Error> {
        let Failure { stage, error, lacks_memory, refused, free } = failure;
        if !lacks_memory {
            return Err(error);
        }
        let place = place(prepared, &error, refused.as_ref(), &free);
        let device = match (&place, &refused) {
            (Some(Place::Gpu(device)), _) => Some(device.clone()),
            (_, Some((buffer_type, _))) => Some(buffer_type.clone()),
            _ => None,
        };
        self.tried.push(Attempt::of(&prepared.plan, Some(failed(prepared, stage, &error, device))));
        self.plans.push(prepared.plan.clone());
        let may_plan = !matches!(self.first, First::Saved(_, Replay::Refuse));
        let attempts = usize::try_from(self.recipe.terms.attempts.get()).unwrap_or(usize::MAX);
        if !may_plan || self.tried.len() >= attempts {
            return Err(self.given_up(error));
        }
        tracing::warn!("{error}; all of it is released, and planned anew");
        // What somebody else took, or what `judged` has taught, needs no other lesson.
        let is_explained = matches!(error, Error::OutOfMemory { .. });
        self.must_differ = !is_explained;
        if let Some(place) = place.filter(|_| self.must_differ && stage != Stage::Verify) {
            let refused = refused.map(|(_, bytes)| bytes);
            let lacked = refused.unwrap_or_else(|| unknown_growth(prepared, &place));
            self.taught.failed(&prepared.plan, place, lacked);
        }
        Ok(())
    }

    /// The error of a load that found no plan.
    fn no_plan(&mut self, error: Error) -> Error {
        if self.tried.is_empty() {
            return error;
        }
        self.tried.push(Attempt::unplanned(error.to_string()));
        self.given_up(error)
    }

    /// The error of a load that is not tried again: the only attempt's own, or all of them.
    fn given_up(&mut self, error: Error) -> Error {
        if self.tried.len() < 2 {
            return error;
        }
        Error::AllAttempts { attempts: std::mem::take(&mut self.tried), source: Box::new(error) }
    }

    /// A load that worked, with all that was tried before.
    fn told(mut self, mut loaded: Loaded, lease: &Lease) -> Loaded {
        let report = Arc::make_mut(&mut loaded.placed.report);
        self.tried.push(Attempt::of(&report.plan, None));
        report.attempts = self.tried;
        report.unleased.clone_from(&lease.unleased);
        say(&report.plan);
        loaded
    }
}

/// A line for people who watch: what went where, how fast, what to know.
fn say(plan: &Plan) {
    let (name, n, layers) = (&plan.model.name, plan.n_gpu_layers, plan.layers());
    let speed = plan.speed.as_ref().map(|speed| speed.tokens_per_second);
    let speed = speed.map_or_else(|| "no predicted speed".to_owned(), |it| format!("about {it:.1} tok/s"));
    tracing::info!("{name}: {n} of {layers} layers on GPUs, {speed}; {}", plan.notes.join("; "));
    if let Some(trained) = plan.trained_on_fewer() {
        let n_ctx = plan.context.n_ctx;
        tracing::warn!(n_ctx, trained, "{name} has a context of {n_ctx} tokens and was trained on {trained}");
    }
}

fn leased(prepared: Prepared, section: Section) -> (Prepared, Lease) {
    let lease = section.hold(&prepared.plan, &prepared.machine);
    (prepared, lease)
}

/// Whether two plans load the same.
fn is_same(one: &Plan, other: &Plan) -> bool {
    let devices = |plan: &Plan| -> Vec<Option<String>> { plan.gpus().map(|gpu| gpu.device.clone()).collect() };
    one.split() == other.split() && one.context == other.context && devices(one) == devices(other)
}

/// What of each GPU does not count as free though it is.
fn withheld(now: &Machine, bounded: &Machine) -> BTreeMap<String, u64> {
    let gpus = now.gpus.iter().zip(&bounded.gpus);
    gpus.filter_map(|(now, bounded)| {
        let bytes = now.free.saturating_sub(bounded.free);
        Some((now.device.clone()?, bytes))
    })
    .collect()
}

/// The device that failed: the one that is named; of a computation that failed, the GPU with the least left.
fn place(prepared: &Prepared, error: &Error, refused: Option<&(String, u64)>, free: &[Option<u64>]) -> Option<Place> {
    if let Error::OutOfMemory { device, .. } | Error::Difference { device, .. } = error {
        return Some(Place::Gpu(device.clone()));
    }
    let gpus = || prepared.plan.gpus();
    let device = match refused {
        Some((name, _)) => gpus().find(|gpu| gpu.device.as_ref() == Some(name)),
        None => gpus().zip(free).min_by_key(|(_, free)| free.unwrap_or(u64::MAX)).map(|(gpu, _)| gpu),
    };
    match (device.and_then(|gpu| gpu.device.clone()), refused) {
        (Some(device), _) => Some(Place::Gpu(device)),
        // Plain, pinned or repacked: it is the host's.
        (None, Some(_)) => Some(Place::Host),
        (None, None) => None,
    }
}

fn failed(prepared: &Prepared, stage: Stage, error: &Error, device: Option<String>) -> AttemptFailure {
    let needed = prepared.plan.gpus().find(|gpu| gpu.device == device).map(|gpu| gpu.footprint.total());
    let free = match error {
        Error::OutOfMemory { free, .. } => Some(*free),
        _ => device.as_deref().and_then(free_now),
    };
    AttemptFailure { stage, device, needed, free, message: error.to_string() }
}

fn free_now(device: &str) -> Option<u64> {
    let devices = llama_sys::Backend::init().ok()?.devices();
    let device = devices.iter().find(|known| known.name() == device)?;
    super::devices::memory(device).map(|memory| memory.free)
}

/// What driver and pools of a GPU are known to take at the most: what a computation may have lacked.
fn unknown_growth(prepared: &Prepared, place: &Place) -> u64 {
    let Place::Gpu(device) = place else { return 0 };
    let has_name = |gpu: &&Gpu| gpu.device.as_ref() == Some(device);
    let gpu = prepared.machine.gpus.iter().find(has_name);
    gpu.map_or(0, |gpu| {
        let work = prepared.work.largest();
        let parts = Headroom::Tight.of_gpu(gpu, work, 0, prepared.machine.wsl);
        parts.driver.saturating_add(parts.growth)
    })
}
