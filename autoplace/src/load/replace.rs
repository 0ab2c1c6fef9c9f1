//! Re-placing a loaded model, here or in a worker: by a plan, by a better one, at once or between two tokens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use llama_sys::Context;
use serde::{Deserialize, Serialize};

use super::carry_out::Loaded;
use super::contract::{Contract, First};
use super::crossing::Failed;
use super::model::Model;
use super::placed::Placed;
use super::progress::Progress;
use super::remote::{Loading, Request};
use super::slot::Contents;
use super::{Error, LentWorker};
use crate::gguf::{self, Header};
use crate::machine::{GpuKind, Machine};
use crate::memory::Footprint;
use crate::memory::companion::Role;
use crate::plan::Plan;
use crate::profile::ModelProfile;
use crate::{lock, worker};

/// A plan that is better than the one that a model is loaded by, and by how much.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BetterPlan {
    /// The plan.
    pub plan: Plan,
    /// By how much it is better than what is loaded: 0.25 is a quarter more predicted tokens per second. Where nothing
    /// predicts a speed, it is the additional layers on GPUs as a share of the model's layers.
    pub gain: f64,
}

impl Model {
    /// The plan that the model would be loaded by if it were released now, from the request that it was loaded with:
    /// for what is free, and what it holds itself. On a machine that was given to the builder, no GPU counts with more
    /// free bytes than were stated.
    ///
    /// # Errors
    ///
    /// As [`ModelBuilder::plan`](super::ModelBuilder::plan), and [`gguf::Error::Changed`] where the file has another
    /// length than when the model was loaded. With [rpc-servers](super::ModelBuilder::rpc)
    /// [`worker::Error::Elsewhere`]: only the worker connects to them, and each has one client.
    pub fn replan(&self) -> Result<Plan, Error> {
        self.replan_for(0)
    }

    /// The same for at least so many tokens of context, where it [may grow](crate::plan::Context::may_grow).
    pub(crate) fn replan_for(&self, tokens: u32) -> Result<Plan, Error> {
        let recipe = &self.recipe().with_room_for(tokens);
        if self.is_elsewhere() && !recipe.servers.endpoints.is_empty() {
            return Err(worker::Error::Elsewhere { what: "the connection to its rpc-servers" }.into());
        }
        let (header, profile) = self.read_again()?;
        let mut machine = self.once_released(recipe.machine(true)?);
        if let Some(stated) = &recipe.machine {
            machine.host.available = stated.host.available;
            for (gpu, stated) in machine.gpus.iter_mut().zip(&stated.gpus) {
                gpu.free = gpu.free.min(stated.free);
            }
        }
        recipe.plan(&header, &profile, &machine)
    }

    /// The plan that the model would be loaded by now, if that is better than the one that it is loaded by.
    ///
    /// # Errors
    ///
    /// As [`replan`](Self::replan).
    pub fn better_plan(&self) -> Result<Option<BetterPlan>, Error> {
        Ok(self.better(self.replan()?))
    }

    /// This plan, if it is better than the one that the model is loaded by.
    pub(crate) fn better(&self, plan: Plan) -> Option<BetterPlan> {
        let gain = gain(&self.placement(), &plan);
        (gain > 0.0).then_some(BetterPlan { plan, gain })
    }

    /// The file's header, and what the model is: another one, where another file is in its place.
    fn read_again(&self) -> Result<(Header, ModelProfile), Error> {
        let (header, profile) = self.recipe().read()?;
        let (was, is) = (self.placement().model.file_bytes, profile.file_bytes);
        match was == is {
            true => Ok((header, profile)),
            false => Err(gguf::Error::Changed { path: self.recipe().path.clone(), was, is }.into()),
        }
    }

    /// The machine with what this model holds of it counted as free.
    fn once_released(&self, machine: Machine) -> Machine {
        if !self.is_elsewhere() && self.native().is_err() {
            return machine;
        }
        let (plan, allocated) = (self.placement(), self.allocated());
        let is_loaded = self.recipe().draft.is_some();
        let draft = plan.companions.iter().find(|one| is_loaded && one.role == Role::Draft);
        let on_gpus = plan.gpus().zip(&allocated.gpus).map(|(placement, held)| (&placement.device, held.total()));
        let on_gpus: Vec<_> = on_gpus.chain(draft.map(|it| (&it.device, it.bytes.gpu.total()))).collect();
        // A mapped file is in the page cache, which counts as available already.
        let mapped = if plan.context.mmap { plan.model.file_bytes } else { 0 };
        let of_draft = draft.map_or(0, |draft| unmapped(draft.bytes.host, mapped));
        released(machine, &on_gpus, unmapped(allocated.host, mapped).saturating_add(of_draft))
    }

    /// Re-places the model: releases it, and loads it again by this plan or, without one, by a plan for what is free
    /// then. All clones of it follow, and what they are asked meanwhile waits. Where this plan lacks memory, another is
    /// made, as for the first load, and the [report](Self::report) says so.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while a stream of this model lives, and [`Error::NativeHeld`] while somebody holds the model
    /// underneath; as [`replan`](Self::replan) where a model that works would have no other plan. It stays where it is
    /// then. Otherwise as [`ModelBuilder::load`](super::ModelBuilder::load), and nothing is loaded: streams are refused
    /// with [`Error::NotLoaded`] until a re-placement succeeds.
    pub fn replace(&self, plan: Option<Plan>) -> Result<(), Error> {
        if self.is_elsewhere() {
            return self.replace_in_worker(plan);
        }
        // Before anything is released.
        match plan.is_none() && self.native().is_ok() {
            true => drop(self.replan()?),
            false => drop(self.read_again()?),
        }
        let _replacing = self.slot().replacing();
        self.take_to_release()?;
        self.slot().give_back(self.reload(plan, 0)?, Contents::Unknown);
        Ok(())
    }

    /// Takes the context, if there is one, and drops it: nobody else holds the model then.
    pub(crate) fn take_to_release(&self) -> Result<(), Error> {
        let slot = self.slot();
        match slot.take_any() {
            Ok(Some((context, contents))) => {
                // The slot with its adapters, and the context's vocabulary.
                let holders = context.model().holders().saturating_sub(slot.holders().saturating_add(1));
                if holders > 0 {
                    slot.give_back(context, contents);
                    return Err(Error::NativeHeld { holders });
                }
                Ok(())
            }
            Ok(None) => Err(Error::Busy),
            // Nothing to release, or nothing that works.
            Err(_) => Ok(()),
        }
    }

    /// Releases the model, whose context was lent and is dropped, and loads it again: by this plan, or by one for what
    /// is free then, [for so many tokens](Self::replan_for) at least. Its context is lent again. After an error nothing
    /// is loaded.
    pub(crate) fn reload(&self, plan: Option<Plan>, tokens: u32) -> Result<Context, Error> {
        let slot = self.slot();
        slot.release();
        let read = self.read_again()?;
        let recipe = self.recipe().with_room_for(tokens);
        let contract = Contract::new(&recipe, read, First::Again(plan.map(Box::new)), Progress::default())?;
        let Loaded { native, context, drafts, placed, meter } = contract.load()?;
        slot.refill(native, drafts);
        self.pulse().paced_by(&placed.report.threads);
        self.pulse().metered_by(meter);
        self.set_placed(Arc::new(placed));
        Ok(context)
    }

    /// Asks whoever generates with this model to re-place it before the next token: streams in this process, and
    /// sessions, look after each token; an [`Engine`](crate::generate::Engine) also while it has nothing to do;
    /// streams, engines and embedders of a model in a worker when they begin. A later request replaces an earlier one.
    ///
    /// Where it is refused, the generation goes on as it was, and
    /// [`Session::last_replaced`](crate::generate::Session::last_replaced) says why, a log of a model in a worker.
    pub fn request_replace(&self, replacement: Replacement) {
        self.requests().ask(replacement);
    }

    /// Re-places the model at once if nobody generates, and else asks whoever does to do it before the next token.
    pub(crate) fn replace_soon(&self, replacement: Replacement) -> Result<(), Error> {
        match self.carry_out(&replacement) {
            Err(Error::Busy) => {
                self.request_replace(replacement);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Does what was requested, while nobody generates.
    pub(crate) fn carry_out(&self, replacement: &Replacement) -> Result<(), Error> {
        match replacement {
            Replacement::Replan => self.replace(None),
            Replacement::By(plan) => self.replace(Some(Plan::clone(plan))),
            Replacement::Better { min_gain } => match self.better_plan()? {
                Some(better) if better.gain >= *min_gain => self.replace(Some(better.plan)),
                _ => Ok(()),
            },
        }
    }

    /// How often a worker may be started again for one generation.
    pub(crate) fn worker_attempts(&self) -> u32 {
        self.remote().map_or(0, |remote| remote.process.attempts())
    }

    /// What a worker is still to say is waited for no longer than an abort may take.
    pub(crate) fn hurry_worker(&self, run: u64) {
        if let Some(remote) = self.remote() {
            remote.hurry(run);
        }
    }

    /// [`Model::replace`] of a model in a worker.
    fn replace_in_worker(&self, plan: Option<Plan>) -> Result<(), Error> {
        const DOING: &str = "re-placing the model";
        let _replacing = self.slot().replacing();
        let mut worker = LentWorker::take_as_it_is(self, 0)?;
        let plan = plan.map(Box::new);
        let placed: Result<Arc<Placed>, Failed> = worker.ask(&Request::Loading(Loading::Replace { plan }), DOING)?;
        self.set_placed(placed.map_err(|Failed(error)| error)?);
        Ok(())
    }
}

/// The machine with these bytes of its devices, and of the host, free again.
fn released(mut machine: Machine, on_gpus: &[(&Option<String>, u64)], on_host: u64) -> Machine {
    let host = &mut machine.host;
    host.available = with(host.available, on_host, host.total);
    for &(device, held) in on_gpus {
        let Some(gpu) = machine.gpus.iter_mut().find(|gpu| gpu.device == *device) else { continue };
        let own = gpu.own_free();
        gpu.free = with(gpu.free, held, gpu.total);
        if let Some(pools) = &mut gpu.pools {
            pools.own.free = pools.own.total.min(pools.own.free.saturating_add(held));
        }
        if gpu.kind == GpuKind::Integrated {
            // What its own pool does not take back is the host's.
            let of_host = held.saturating_sub(gpu.own_free().saturating_sub(own));
            host.available = with(host.available, of_host, host.total);
        }
    }
    machine
}

/// Bytes of the host beside a mapped file of so many: rearranged weights are ordinary memory.
fn unmapped(held: Footprint, mapped: u64) -> u64 {
    held.total().saturating_sub(held.weights.min(mapped))
}

/// Free bytes with those that are held; a total of 0 is unknown.
const fn with(free: u64, held: u64, total: u64) -> u64 {
    let sum = free.saturating_add(held);
    if total > 0 && sum > total { total } else { sum }
}

fn gain(loaded: &Plan, other: &Plan) -> f64 {
    match (&loaded.speed, &other.speed) {
        (Some(now), Some(then)) if then.seconds() > 0.0 => now.seconds() / then.seconds() - 1.0,
        _ => (f64::from(other.n_gpu_layers) - f64::from(loaded.n_gpu_layers)) / f64::from(loaded.layers()),
    }
}

/// How to re-place a model ([`Model::request_replace`](super::Model::request_replace)).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Replacement {
    /// By a plan for what is free once the model is released.
    Replan,
    /// By this plan.
    By(Box<Plan>),
    /// By the plan of [`Model::better_plan`](super::Model::better_plan), where that is better by this
    /// [gain](super::BetterPlan::gain) at least.
    Better {
        /// 0.25: a quarter more predicted tokens per second.
        min_gain: f64,
    },
}

/// A re-placement that was requested from outside and is not done yet: it is carried out between two tokens. A token
/// costs only a look at the flag.
#[derive(Debug, Default)]
pub(crate) struct Requested {
    waiting: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    replacement: Option<Replacement>,
    /// Whoever carries it out even while nothing is generated.
    listener: Option<Waker>,
}

impl Requested {
    /// Takes the place of an earlier request.
    pub(super) fn ask(&self, replacement: Replacement) {
        let mut held = lock(&self.held);
        held.replacement = Some(replacement);
        self.waiting.store(true, Ordering::Release);
        let listener = held.listener.clone();
        drop(held);
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// Sets what wakes the holder of the context when there is a request.
    pub(crate) fn listen(&self, listener: Option<Waker>) {
        let before = std::mem::replace(&mut lock(&self.held).listener, listener);
        // Whatever it does, it does without the lock.
        drop(before);
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<Replacement> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let mut held = lock(&self.held);
        self.waiting.store(false, Ordering::Release);
        held.replacement.take()
    }
}

#[cfg(test)]
mod tests {
    use super::{gain, released, unmapped, with};
    use crate::load::test_plan::plan;
    use crate::machine::{Gpu, GpuKind, Host, Machine, Pool, Pools, gib};
    use crate::memory::Footprint;

    #[test]
    fn a_plan_is_better_by_its_predicted_speed_and_by_its_layers_where_there_is_none() {
        let (loaded, mut other) = (plan(), plan());
        let faster = 1.25 * loaded.speed.as_ref().unwrap().tokens_per_second;
        other.speed.as_mut().unwrap().tokens_per_second = faster;
        assert!((gain(&loaded, &other) - 0.25).abs() < 1e-9);
        assert!(gain(&other, &loaded) < 0.0);
        assert!(gain(&loaded, &loaded) <= 0.0);
        (other.speed, other.n_gpu_layers) = (None, loaded.n_gpu_layers + 11);
        assert!((gain(&loaded, &other) - 11.0 / 33.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_released_is_free_where_it_was_and_nothing_has_more_free_than_it_has() {
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
