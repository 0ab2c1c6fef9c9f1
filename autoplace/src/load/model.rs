//! A loaded model: the handle that everything else is asked of.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak};

use llama_sys::Context;

use super::contract::{Contract, First};
use super::headroom::LoadReadings;
use super::progress::Progress;
use super::recipe::{Loaded, Prepared, Recipe};
use super::remote::{self, Remote};
use super::requested::Requested;
use super::slot::Native;
use super::terms::Terms;
use super::threads::Threads;
use super::warm_up::WarmedUp;
use super::{
    Adapter, Added, Contents, ContextSlot, Error, LoadReport, ModelBuilder, Pulse, Scales,
    Unreadable, measure,
};
use crate::gguf::{self, Header};
use crate::machine::Machine;
use crate::memory::Footprints;
use crate::plan::{PlacementKind, Plan};

/// A loaded model. Cloning is cheap; everything is freed when the last clone and the last stream are dropped.
#[derive(Debug, Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    recipe: Recipe,
    slot: ContextSlot,
    /// The worker that the model is in, where that is another process: the slot is empty then.
    remote: Option<Remote>,
    placed: RwLock<Arc<Placed>>,
    requested: Requested,
    pulse: Arc<Pulse>,
    /// Once it was asked for.
    header: OnceLock<Header>,
    /// What a later room made of it.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A model that is not kept loaded by it.
#[derive(Debug, Clone)]
pub(crate) struct WeakModel {
    inner: Weak<Inner>,
}

impl WeakModel {
    /// The model, if it is still loaded.
    pub(crate) fn upgrade(&self) -> Option<Model> {
        self.inner.upgrade().map(|inner| Model { inner })
    }
}

/// Where a model went.
#[derive(Debug)]
pub(super) struct Placed {
    plan: Arc<Plan>,
    machine: Arc<Machine>,
    allocated: Footprints,
    pub(super) report: Arc<LoadReport>,
}

impl Placed {
    pub(super) fn new(
        prepared: &Prepared,
        readings: &LoadReadings,
        run: &WarmedUp,
        threads: Threads,
        terms: &Terms,
    ) -> Self {
        Self {
            plan: Arc::new(prepared.plan.clone()),
            machine: Arc::new(prepared.machine.clone()),
            allocated: run.allocated.clone(),
            report: Arc::new(measure::report(prepared, readings, run, threads, terms)),
        }
    }
}

impl Placed {
    /// Of a model in a worker.
    pub(super) fn told(machine: Machine, allocated: Footprints, report: LoadReport) -> Self {
        Self {
            plan: Arc::new(report.plan.clone()),
            machine: Arc::new(machine),
            allocated,
            report: Arc::new(report),
        }
    }
}

impl Model {
    /// Loads a GGUF file (of a split one, the first part) with as many layers on the GPU as are safe: plans, loads,
    /// warms up, and holds what was taken against the plan. See [`ModelBuilder::load`].
    ///
    /// # Errors
    ///
    /// As [`ModelBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).load()
    }

    /// Describes a load: context, KV type, headroom, layers, progress.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(path.as_ref())
    }

    pub(super) fn new(recipe: Recipe, loaded: Loaded) -> Self {
        let Loaded {
            native: model,
            context,
            drafts,
            params,
            attached,
            placed,
        } = loaded;
        let native = Native {
            model,
            params,
            attached,
        };
        let pulse = Pulse::default();
        pulse.paced_by(&placed.report.threads);
        Self {
            inner: Arc::new(Inner {
                recipe,
                slot: ContextSlot::new(native, context, drafts),
                remote: None,
                placed: RwLock::new(Arc::new(placed)),
                requested: Requested::default(),
                pulse: Arc::new(pulse),
                header: OnceLock::new(),
                kept: OnceLock::new(),
            }),
        }
    }

    /// The handle of a model in a worker.
    pub(super) fn in_worker(recipe: Recipe, remote: Remote, placed: Placed) -> Self {
        Self {
            inner: Arc::new(Inner {
                recipe,
                slot: ContextSlot::empty(),
                remote: Some(remote),
                placed: RwLock::new(Arc::new(placed)),
                requested: Requested::default(),
                pulse: Arc::default(),
                header: OnceLock::new(),
                kept: OnceLock::new(),
            }),
        }
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        self.inner.remote.as_ref()
    }

    /// What went where, and why. Its `Display` is a table.
    pub fn placement(&self) -> Arc<Plan> {
        Arc::clone(&self.placed().plan)
    }

    /// What the model's file says of itself: read when first asked for, and then kept.
    ///
    /// # Errors
    ///
    /// Where the file is no longer what was loaded.
    pub fn header(&self) -> Result<&Header, gguf::Error> {
        if let Some(header) = self.inner.header.get() {
            return Ok(header);
        }
        let header = Header::open(&self.inner.recipe.path)?;
        Ok(self.inner.header.get_or_init(|| header))
    }

    /// The machine as it was when the plan was made.
    pub fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.placed().machine)
    }

    /// What the load came to: plan, llama.cpp's account and the devices' own side by side, the warm-up, every attempt.
    /// Its `Display` says it in words.
    pub fn report(&self) -> Arc<LoadReport> {
        Arc::clone(&self.placed().report)
    }

    /// What llama.cpp says it has allocated, GPUs in the order of the plan: to stand beside the plan's footprints. The
    /// buffer of logits is not in it, and a mapped file counts with its span. What compute buffers grew by in the
    /// warm-up is in it ([`GpuReport::grown`](super::GpuReport::grown)).
    pub fn allocated(&self) -> Footprints {
        self.placed().allocated.clone()
    }

    /// The LoRA adapters beside it, in the order in which they were added.
    pub fn adapters(&self) -> &[Adapter] {
        &self.inner.recipe.adapters.lora
    }

    /// What each adapter is multiplied by: as loaded, or where this is asked for, only those.
    pub(crate) fn scales(&self, asked: Option<&[(String, f32)]>) -> Result<Scales, Error> {
        Ok(self.inner.recipe.adapters.scales(asked)?)
    }

    /// What changes a computation at these scales, for a file. Reads the files of all that does.
    pub(crate) fn added(&self, scales: &Scales) -> Result<Added, Unreadable> {
        Added::of(&self.inner.recipe.adapters, scales)
    }

    /// The scales at which the same changes a computation; `None` where the model was not loaded with all of it, or
    /// with more control vectors. Reads the files of all adapters, if any is among it.
    pub(crate) fn scales_of(&self, added: &Added) -> Result<Option<Scales>, Unreadable> {
        added.scales(&self.inner.recipe.adapters)
    }

    /// The model underneath, for what this crate does not cover. Contexts made of it take memory that the plan did not
    /// count, and as long as it is held the model cannot be placed anew.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`] after a re-placement that failed; [`Error::Worker`] for a model in a worker process.
    pub fn native(&self) -> Result<llama_sys::Model, Error> {
        if self.is_elsewhere() {
            return Err(remote::elsewhere("the model underneath"));
        }
        self.inner.slot.native().ok_or(Error::NotLoaded)
    }

    pub(super) fn placed(&self) -> Arc<Placed> {
        Arc::clone(
            &self
                .inner
                .placed
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// How it was loaded, and is loaded again.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.inner.recipe
    }

    /// What others ask of whoever generates.
    pub(super) fn requests(&self) -> &Requested {
        &self.inner.requested
    }

    /// Whether both are handles of one load.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(super) fn placed_mut(&self) -> RwLockWriteGuard<'_, Arc<Placed>> {
        self.inner
            .placed
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the host that checkpoints may take: as many as were asked for, and no more than the plan has left of
    /// it.
    pub(crate) fn checkpoints(&self) -> u64 {
        let plan = self.placement();
        let shared = plan.gpus().filter(|it| it.kind == PlacementKind::SharedGpu);
        let shared: u64 = shared.map(|it| it.footprint.total()).sum();
        let left = plan
            .host()
            .map_or(0, |host| host.budget.saturating_sub(host.footprint.total()));
        self.inner
            .recipe
            .checkpoints
            .min(left.saturating_sub(shared))
    }

    /// The one context, lent to whoever generates.
    pub(crate) fn slot(&self) -> &ContextSlot {
        &self.inner.slot
    }

    /// What it has generated so far.
    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.inner.pulse
    }

    /// What is made of the model once, when it is first asked for, and stays with it wherever it is placed: it must
    /// hold nothing of the loaded model. One type of value is kept; others are made each time.
    #[cfg_attr(
        not(feature = "constraints"),
        expect(dead_code, reason = "constraints keep their vocabulary")
    )]
    pub(crate) fn kept<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Any + Clone + Send + Sync,
    {
        let kept = self.inner.kept.get();
        if let Some(kept) = kept.and_then(|it| it.downcast_ref::<T>()) {
            return Ok(kept.clone());
        }
        let made = make()?;
        // Another thread may have been first: its is as good.
        let _ = self.inner.kept.set(Box::new(made.clone()));
        Ok(made)
    }

    pub(crate) fn downgrade(&self) -> WeakModel {
        WeakModel {
            inner: Arc::downgrade(&self.inner),
        }
    }

    /// Places the model anew: releases it, and loads it again by this plan or, without one, by a plan for what is free
    /// then. All clones of it follow. The same contract holds as for the first load: where this plan lacks memory,
    /// another is made, and the [report](Self::report) says so.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while a stream of this model lives, and [`Error::NativeHeld`] while somebody holds the model
    /// underneath; otherwise as [`ModelBuilder::load`], and nothing is loaded then: streams are refused with
    /// [`Error::NotLoaded`] until it is placed anew.
    pub fn replace(&self, plan: Option<Plan>) -> Result<(), Error> {
        if self.is_elsewhere() {
            return self.replace_in_worker(plan);
        }
        self.take_to_release()?;
        let context = self.reload(plan)?;
        self.slot().give_back(context, Contents::Unknown);
        Ok(())
    }

    /// Takes the context, if there is one, and drops it: nobody else holds the model then.
    pub(crate) fn take_to_release(&self) -> Result<(), Error> {
        let slot = self.slot();
        match slot.take_any() {
            Ok(Some((context, contents))) => {
                // The slot with its adapters, and the context's vocabulary.
                let own = slot.holders().saturating_add(1);
                let holders = context.model().holders().saturating_sub(own);
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
    /// is free then. Its context is lent again. After an error nothing is loaded.
    pub(crate) fn reload(&self, plan: Option<Plan>) -> Result<Context, Error> {
        let slot = self.slot();
        slot.release();
        let first = match plan {
            Some(plan) => {
                let machine = Machine::clone(&self.machine());
                First::Given(Box::new(plan), Box::new(machine))
            }
            None => First::Again,
        };
        let contract = Contract::new(&self.inner.recipe, first, Progress::default())?;
        let loaded = contract.load()?;
        let Loaded {
            native: model,
            context,
            drafts,
            params,
            attached,
            placed,
        } = loaded;
        let native = Native {
            model,
            params,
            attached,
        };
        slot.refill(native, drafts);
        self.pulse().paced_by(&placed.report.threads);
        *self.placed_mut() = Arc::new(placed);
        self.pulse().placed_anew();
        Ok(context)
    }
}
