//! Re-places a loaded model, in this process or in a worker, at once or between two tokens. The caller states the plan,
//! or a better plan is made.

use std::borrow::Cow;
use std::sync::Arc;

use llama_sys::Context;

use super::ipc_error::Failed;
use super::load_loop::{FirstAttempt, LoadLoop};
use super::loaded::Loaded;
use super::model::Model;
use super::options::LoadOptions;
use super::placed::Placed;
use super::progress::Progress;
use super::remote::{Loading, Request};
use super::requested::{Found, Replacement};
use super::slot::Contents;
use super::{Error, LentWorker, Stage};
use crate::gguf::{self, Header};
use crate::machine::{GpuKind, Machine};
use crate::memory::Footprint;
use crate::memory::companion::CompanionRole;
use crate::plan::{MoeCache, Plan, PlannedCompanion};
use crate::profile::ModelProfile;
use crate::worker;

/// A plan that is better than the model's present one, with its gain.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BetterPlan {
    /// The plan.
    pub plan: Plan,
    /// The gain. A gain of 0.25 means 25 % more predicted tokens per second. Without a predicted speed, it is the
    /// number of additional layers on GPUs as a share of the model's layers.
    pub gain: f64,
}

impl Model {
    /// Makes a plan from the original request, for the memory that would be free if the model were released now. If the
    /// machine was passed to the builder, no GPU counts more free bytes than that machine states.
    ///
    /// # Errors
    ///
    /// The errors of [`ModelBuilder::plan`](super::ModelBuilder::plan), and [`gguf::Error::Changed`] if the length of
    /// the file has changed since the load. For a model with [rpc-servers](super::ModelBuilder::rpc),
    /// [`worker::Error::Elsewhere`], because only the worker connects to the servers, and each server accepts one
    /// client.
    pub fn replan(&self) -> Result<Plan, Error> {
        self.replan_for(0)
    }

    /// Like [`replan`](Self::replan), with at least `tokens` tokens of context if the context [may
    /// grow](crate::plan::Context::may_grow).
    pub(crate) fn replan_for(&self, tokens: u32) -> Result<Plan, Error> {
        let options = &self.options_now(tokens);
        if self.is_in_worker() && !options.servers.endpoints.is_empty() {
            return Err(worker::Error::Elsewhere { what: "the connection to its rpc-servers" }.into());
        }
        let (header, profile) = self.read_again()?;
        options.plan(&header, &profile, &self.machine_once_released()?)
    }

    /// Whether the request states the size of the cache of experts. If so, another plan would have a cache of the same
    /// size.
    pub(crate) fn states_moe_cache(&self) -> bool {
        let request = &self.options().request;
        request.moe_cache != MoeCache::Auto || request.params.moe_cache_size > 0
    }

    /// The options for another load, with room for `tokens` tokens, and with the locality of experts that was measured
    /// for this model.
    fn options_now(&self, tokens: u32) -> Cow<'_, LoadOptions> {
        let mut options = self.options().with_room_for(tokens);
        if let Some(locality) = self.counters().expert_locality() {
            options.to_mut().expert_locality = Some(locality);
        }
        options
    }

    /// The machine as it would be if the model were released now. If the machine was passed to the builder, no GPU
    /// counts more free bytes than that machine states.
    pub(super) fn machine_once_released(&self) -> Result<Machine, Error> {
        let options = self.options();
        let mut machine = self.once_released(options.machine(true)?);
        if let Some(stated) = &options.machine {
            machine.host.available = stated.host.available;
            for (gpu, stated) in machine.gpus.iter_mut().zip(&stated.gpus) {
                gpu.free = gpu.free.min(stated.free);
            }
        }
        Ok(machine)
    }

    /// Makes a plan as [`replan`](Self::replan) does. Returns the new plan only if it is better than the present plan.
    ///
    /// # Errors
    ///
    /// The errors of [`replan`](Self::replan).
    pub fn better_plan(&self) -> Result<Option<BetterPlan>, Error> {
        Ok(self.better(self.replan()?))
    }

    /// The plan with its gain, if it is better than the model's present plan.
    pub(crate) fn better(&self, plan: Plan) -> Option<BetterPlan> {
        let gain = gain(&self.placement(), self.seconds_today(), &plan);
        (gain > 0.0).then_some(BetterPlan { plan, gain })
    }

    /// The seconds that the present plan is now predicted to take for its workload, with the locality of experts that
    /// was measured since the plan was made. A new plan uses the same locality, so the two can be compared. `None` if
    /// there is no measurement, or if nothing can be predicted.
    fn seconds_today(&self) -> Option<f64> {
        let plan = self.placement();
        if plan.moe_cache.is_none() || self.counters().expert_locality().is_none() {
            return None;
        }
        let predicted = || -> Result<Option<f64>, Error> {
            let (header, profile) = self.read_again()?;
            let machine = self.machine_once_released()?;
            let options = self.options_now(0);
            let planner = options.planner(&header, &profile, &machine)?;
            Ok(planner.workload_seconds_of(&plan)?)
        };
        predicted().unwrap_or_else(|error| {
            tracing::debug!(
                "the speed of the present placement cannot be predicted again, so its first prediction is used: {error}"
            );
            None
        })
    }

    /// Checks that the model can be loaded again from its file: the header can be read, and the length is the same.
    pub(crate) fn check_file(&self) -> Result<(), Error> {
        self.read_again().map(drop)
    }

    /// Reads the header and the profile again. Refuses a file whose length has changed.
    fn read_again(&self) -> Result<(Header, ModelProfile), Error> {
        let (header, profile) = self.options().read()?;
        let (was, is) = (self.placement().model.file_bytes, profile.file_bytes);
        match was == is {
            true => Ok((header, profile)),
            false => Err(gguf::Error::Changed { path: self.options().path.clone(), was, is }.into()),
        }
    }

    /// The machine as it would be if the model were released: the bytes that llama.cpp reports for the model count as
    /// free. The bytes of the prompt store count as free up to the limit that plans reserve for it. The driver's own
    /// memory does not count as free.
    #[must_use]
    pub fn once_released(&self, machine: Machine) -> Machine {
        if !self.is_in_worker() && self.native().is_err() {
            return machine;
        }
        let (plan, allocated) = (self.placement(), self.allocated());
        let companions: Vec<_> = plan.companions.iter().filter(|one| self.options().is_loaded(one)).collect();
        let on_gpus = plan.gpus().zip(&allocated.gpus).map(|(placement, held)| (&placement.device, held.total()));
        let on_gpus: Vec<_> = on_gpus
            .chain(companions.iter().map(|companion| (&companion.device, companion.bytes.gpu.total())))
            .collect();
        // A mapped file lies in the page cache, which counts as available already.
        let mapped = if plan.context.mmap { plan.model.file_bytes } else { 0 };
        // The file of a projector is read and not mapped.
        let of_companion = |companion: &&PlannedCompanion| match companion.role {
            CompanionRole::Draft => unmapped(companion.bytes.host, mapped),
            _ => companion.bytes.host.total(),
        };
        let of_companions: u64 = companions.iter().map(of_companion).sum();
        let on_host = unmapped(allocated.host, mapped).saturating_add(of_companions);
        released(machine, &on_gpus, on_host.saturating_add(self.stored(on_host)))
    }

    /// Bytes of host memory that the prompt store takes now, but at most the number that plans reserve for it. `loaded`
    /// is the number of bytes of the model itself that are not in a mapped file.
    fn stored(&self, loaded: u64) -> u64 {
        let Some(store) = &self.options().prompt_store else { return 0 };
        let taken = match self.worker_id() {
            // A worker's memory beyond the model belongs to its store, except for some megabytes. If the system does
            // not report this memory, the store counts as full, because plans reserve these bytes for it in any case.
            Some(process) => anonymous_memory(process).map_or(u64::MAX, |bytes| bytes.saturating_sub(loaded)),
            None if store.is_opened() => store.usage().memory_bytes,
            None => 0,
        };
        taken.min(store.options().reserved())
    }

    /// Re-places the model: releases it and loads it again by this plan. If no plan is passed, makes a plan for the
    /// memory that is free after the release. All clones of this handle then refer to the new placement, and calls on
    /// them wait until the model is loaded. If memory runs short, further plans are tried as in the first load, and the
    /// [report](Self::report) lists the attempts.
    ///
    /// The model is loaded again from its file, so the header of the file is read first. If the length of the file (or
    /// of its shards together) is not what it was at the load, nothing is released. A file that has the same length but
    /// another content is not noticed: the model then has the new content.
    ///
    /// # Errors
    ///
    /// After the following errors, the model stays loaded where it is:
    ///
    /// - [`Error::Busy`] while a stream of this model lives;
    /// - [`Error::NativeHeld`] while other objects use the native model;
    /// - [`gguf::Error::Changed`] if the length of the file has changed, and the other errors of [`gguf::Error`] if the
    ///   file is gone or its header is damaged (all in [`Error::Gguf`]), and the errors of reading an adapter's file;
    /// - the errors of [`replan`](Self::replan) if no plan was passed and the model is loaded.
    ///
    /// Any other error is an error of [`ModelBuilder::load`](super::ModelBuilder::load). The model is then unloaded,
    /// and streams fail with [`Error::NotLoaded`] until a re-placement succeeds.
    pub fn replace(&self, plan: Option<Plan>) -> Result<(), Error> {
        if self.is_in_worker() {
            return self.replace_in_worker(plan);
        }
        // If no plan can be made, this fails before anything is released.
        match plan.is_none() && self.native().is_ok() {
            true => drop(self.replan()?),
            false => self.check_file()?,
        }
        let _replacing = self.replacing();
        self.take_to_release()?;
        self.slot()?.give_back(self.reload(plan, (0, 0))?, Contents::Unknown);
        Ok(())
    }

    /// Takes the context, if there is one, and drops it. Fails if anything else still uses the native model.
    pub(crate) fn take_to_release(&self) -> Result<(), Error> {
        let slot = self.slot()?;
        match slot.take_any() {
            Ok(Some((context, contents))) => {
                // The slot, its adapters and the context's vocabulary are not counted as other holders.
                let holders = context.model().holders().saturating_sub(slot.holders().saturating_add(1));
                if holders > 0 {
                    slot.give_back(context, contents);
                    return Err(Error::NativeHeld { holders });
                }
                Ok(())
            }
            Ok(None) => Err(Error::Busy),
            // The model is not loaded, or its context has failed.
            Err(_) => Ok(()),
        }
    }

    /// Releases the model and loads it again by this plan. The caller had borrowed the context and has dropped it. If
    /// no plan is passed, makes a plan for the memory that is free after the release, with [room for `tokens`
    /// tokens](Self::replan_for). If the plan has two placements by depth, the placement for `live` live tokens is
    /// loaded. Returns the new context, lent to the caller. After an error, the model is unloaded.
    pub(crate) fn reload(&self, plan: Option<Plan>, (tokens, live): (u32, u32)) -> Result<Context, Error> {
        let slot = self.slot()?;
        slot.release();
        let read = self.read_again()?;
        let options = self.options_now(tokens);
        let counters = Arc::clone(self.counters());
        let progress = Progress::new(move |progress| {
            if progress.stage == Stage::Weights {
                counters.has_loaded(progress.done);
            }
            true
        });
        let attempts = LoadLoop::new(&options, read, FirstAttempt::Again(plan.map(Box::new)), progress)?;
        let Loaded { native, context, drafts, placed, meter, experts, times } = attempts.at_depth(live).load()?;
        self.counters().said_in(native.said.as_ref());
        slot.refill(native, drafts);
        self.counters().paced_by(&placed.report.threads);
        self.counters().placed_by(&placed.plan, placed.report.time, times);
        self.counters().metered_by(meter);
        self.counters().experts_metered_by(experts);
        self.set_placed(Arc::new(placed));
        Ok(context)
    }

    /// Requests a re-placement before the next token. Streams in this process and sessions check for a request after
    /// each token. An [`Engine`](crate::generate::Engine) also checks while idle. If the model is in a worker, its
    /// streams, engines and embedders check when they begin. A later request replaces an earlier request.
    ///
    /// A refused request leaves the generation unchanged.
    /// [`Session::last_replaced`](crate::generate::Session::last_replaced) has the reason. If the model is in a worker,
    /// the log has the reason.
    pub fn request_replace(&self, replacement: Replacement) {
        self.requests().ask(replacement);
    }

    /// Withdraws a [requested](Self::request_replace) re-placement that has not begun, whoever has requested it.
    /// Returns whether there was one. If there was none, a re-placement that was requested before may be under way now:
    /// the [report](Self::report) is another one once it is done.
    pub fn withdraw_replace(&self) -> bool {
        self.requests().withdraw()
    }

    /// Carries out a [requested](Self::request_replace) re-placement now, if it has not begun and nothing is being
    /// generated. Returns whether there was a request. `false` also means that no earlier request is under way any
    /// more: it was carried out, refused or withdrawn. So a request is never carried out twice.
    ///
    /// # Errors
    ///
    /// - [`Error::Busy`] while a stream of this model lives: the request stays. The same error while another part of
    ///   the application carries a request out.
    /// - The other errors of [`replace`](Self::replace) and [`better_plan`](Self::better_plan). Then the request is
    ///   gone.
    pub fn replace_as_requested(&self) -> Result<bool, Error> {
        // While a text runs, the request stays where the text looks for it.
        if self.requests().is_waiting() && self.is_lent() {
            return Err(Error::Busy);
        }
        let (replacement, _under_way) = match self.requests().take_or_look() {
            Found::Waiting(replacement, under_way) => (replacement, under_way),
            Found::UnderWay => return Err(Error::Busy),
            Found::Nothing => return Ok(false),
        };
        match self.carry_out(&replacement) {
            Err(Error::Busy) => {
                self.requests().put_back(replacement);
                Err(Error::Busy)
            }
            outcome => outcome.map(|()| true),
        }
    }

    /// Re-places the model at once if its context is free. Otherwise requests the re-placement before the next token.
    pub(crate) fn replace_soon(&self, replacement: Replacement) -> Result<(), Error> {
        match self.carry_out(&replacement) {
            Err(Error::Busy) => {
                self.request_replace(replacement);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Carries out a request while nothing is being generated.
    pub(crate) fn carry_out(&self, replacement: &Replacement) -> Result<(), Error> {
        match replacement {
            Replacement::Replan => self.replace(None),
            Replacement::By(plan) | Replacement::ForDepth(plan) => self.replace(Some(Plan::clone(plan))),
            Replacement::Better { min_gain } => match self.better_plan()? {
                Some(better) if better.gain >= *min_gain => self.replace(Some(better.plan)),
                _ => Ok(()),
            },
        }
    }

    /// How many times a worker may be restarted for one generation.
    pub(crate) fn worker_attempts(&self) -> u32 {
        self.remote().map_or(0, |remote| remote.process.attempts())
    }

    /// Limits the wait for the worker's remaining messages to the time that an abort may take.
    pub(crate) fn hurry_worker(&self, run: u64) {
        if let Some(remote) = self.remote() {
            remote.hurry(run);
        }
    }

    /// Like [`Model::replace`], for a model in a worker.
    fn replace_in_worker(&self, plan: Option<Plan>) -> Result<(), Error> {
        const DOING: &str = "re-placing the model";
        let _replacing = self.replacing();
        let mut worker = LentWorker::take_as_it_is(self, 0)?;
        let plan = plan.map(Box::new);
        let placed: Result<Arc<Placed>, Failed> = worker.ask(&Request::Loading(Loading::Replace { plan }), DOING)?;
        self.set_placed(placed.map_err(|Failed(error)| error)?);
        Ok(())
    }
}

/// The machine after these bytes of its devices and of the host have become free again.
fn released(mut machine: Machine, on_gpus: &[(&Option<String>, u64)], on_host: u64) -> Machine {
    let host = &mut machine.host;
    let most = host.usable_total();
    host.available = with(host.available, on_host, most);
    for &(device, held) in on_gpus {
        let Some(gpu) = machine.gpus.iter_mut().find(|gpu| gpu.device == *device) else { continue };
        let own = gpu.own_free();
        gpu.free = with(gpu.free, held, gpu.total);
        if let Some(pools) = &mut gpu.pools {
            pools.own.free = pools.own.total.min(pools.own.free.saturating_add(held));
        }
        if gpu.kind == GpuKind::Integrated {
            // Bytes beyond the GPU's own pool belong to the host.
            let of_host = held.saturating_sub(gpu.own_free().saturating_sub(own));
            host.available = with(host.available, of_host, most);
        }
    }
    machine
}

/// The bytes on the host that are not in a mapped file of `mapped` bytes. Rearranged weights are in ordinary memory.
fn unmapped(held: Footprint, mapped: u64) -> u64 {
    held.total().saturating_sub(held.weights.min(mapped))
}

/// Resident bytes of a process that do not belong to files (proc_pid_status(5), `RssAnon`); `None` on systems other
/// than Linux.
fn anonymous_memory(process: u32) -> Option<u64> {
    let status = cfg!(target_os = "linux").then(|| std::fs::read_to_string(format!("/proc/{process}/status")))?.ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The free bytes after `held` bytes were released. A `total` of 0 means that the total is unknown.
const fn with(free: u64, held: u64, total: u64) -> u64 {
    let sum = free.saturating_add(held);
    if total > 0 && sum > total { total } else { sum }
}

/// The gain of another plan over the loaded plan. `today` is the number of seconds that the loaded plan takes for its
/// workload. `None` means the number that the plan itself predicted.
fn gain(loaded: &Plan, today: Option<f64>, other: &Plan) -> f64 {
    match (today.or_else(|| loaded.workload_seconds()), other.workload_seconds()) {
        (Some(now), Some(then)) if then > 0.0 => now / then - 1.0,
        _ => (f64::from(other.n_gpu_layers) - f64::from(loaded.n_gpu_layers)) / f64::from(loaded.layers()),
    }
}

#[cfg(test)]
mod tests {
    use super::{gain, released, unmapped, with};
    use crate::load::test_plan::plan;
    use crate::machine::{Gpu, GpuKind, Host, Machine, Pool, Pools, gib};
    use crate::memory::Footprint;

    #[test]
    fn plans_are_compared_by_predicted_speed_or_else_by_layers() {
        let (loaded, mut other) = (plan(), plan());
        let faster = 1.25 * loaded.speed.as_ref().unwrap().tokens_per_second;
        other.speed.as_mut().unwrap().tokens_per_second = faster;
        assert!((gain(&loaded, None, &other) - 0.25).abs() < 1e-9);
        assert!(gain(&other, None, &loaded) < 0.0);
        assert!(gain(&loaded, None, &loaded) <= 0.0);
        // The gain follows the time that is known today, and not the first prediction.
        let today = loaded.workload_seconds().map(|seconds| seconds / 1.25);
        assert!(gain(&loaded, today, &other).abs() < 1e-9);
        (other.speed, other.n_gpu_layers) = (None, loaded.n_gpu_layers + 11);
        assert!((gain(&loaded, None, &other) - 11.0 / 33.0).abs() < 1e-9);
    }

    #[test]
    fn released_memory_is_free_on_its_device_and_never_exceeds_the_total() {
        assert_eq!((with(3, 4, 10), with(8, 4, 10), with(8, 4, 0)), (7, 10, 12));
        let held = Footprint::new(10, 2, 1);
        assert_eq!((unmapped(held, 0), unmapped(held, 7), unmapped(held, 11)), (13, 6, 3));
        let device = Some("GPU0".to_owned());
        let gpu = || Gpu::new("gpu").device("GPU0").total(gib(32)).free(gib(2));
        let pools = Pools::new(Pool::new(gib(4), gib(1)), Pool::new(gib(28), gib(1)));
        for (gpu, of_host) in
            [(gpu(), 0), (gpu().kind(GpuKind::Integrated), 5), (gpu().kind(GpuKind::Integrated).pools(pools), 2)]
        {
            let mut host = Host::new(gib(64));
            host.available = gib(8);
            let machine = released(Machine::new(host).with_gpu(gpu), &[(&device, gib(5))], gib(1));
            assert_eq!((machine.host.available, machine.gpus[0].free), (gib(9 + of_host), gib(7)));
        }
    }
}
