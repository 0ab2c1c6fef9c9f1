//! A loaded model: the handle for everything else; and the load that makes it.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use llama_sys::{ModelParams, Vocab};

use super::builder::ModelBuilder;
use super::carry_out::Loaded;
use super::check::check_vocabulary;
use super::contract::{Contract, First};
use super::in_use::Refuted;
use super::lease::Leases;
use super::placed::Placed;
use super::progress::Progress;
use super::recipe::Recipe;
use super::remote::Remote;
use super::replace::Requested;
use super::report::LoadReport;
use super::slot::ContextSlot;
use super::{Adapter, Error, Pulse, native};
use crate::gguf::{self, Header};
use crate::machine::Machine;
use crate::memory::Footprints;
use crate::plan::Plan;
use crate::worker::{self, WorkerProcess};

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
    /// Of a model in a worker, likewise.
    vocab: OnceLock<Vocab>,
    /// What a later room made of it.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A handle that does not keep the model loaded.
#[derive(Debug, Clone)]
pub(crate) struct WeakModel(Weak<Inner>);

impl WeakModel {
    pub(crate) fn upgrade(&self) -> Option<Model> {
        self.0.upgrade().map(|inner| Model { inner })
    }
}

impl Model {
    /// Loads a GGUF file (of a split one, the first part) with as many layers on the GPU as are safe: plans, loads,
    /// warms up, and compares what was taken with the plan. See [`ModelBuilder::load`]. With the feature `hub`, also
    /// what a hub calls `hf:OWNER/NAME[:QUANT][@REVISION]`, if the cache has it.
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

    fn new(recipe: Recipe, slot: ContextSlot, remote: Option<Remote>, placed: Arc<Placed>) -> Self {
        Self {
            inner: Arc::new(Inner {
                recipe,
                slot,
                remote,
                placed: RwLock::new(placed),
                requested: Requested::default(),
                pulse: Arc::default(),
                header: OnceLock::new(),
                vocab: OnceLock::new(),
                kept: OnceLock::new(),
            }),
        }
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        self.inner.remote.as_ref()
    }

    pub(crate) fn is_elsewhere(&self) -> bool {
        self.remote().is_some()
    }

    /// The process that the model runs in, where that is a worker.
    pub fn worker_id(&self) -> Option<u32> {
        self.remote()?.id()
    }

    /// What went where, and why. Its `Display` is a table.
    pub fn placement(&self) -> Arc<Plan> {
        Arc::clone(&self.placed().plan)
    }

    /// What the model's file says of itself: read when first asked for, and then kept.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read any more.
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

    /// The report of the load: plan, llama.cpp's account and the devices' own side by side, the warm-up, every attempt.
    /// Its `Display` puts it in words.
    pub fn report(&self) -> Arc<LoadReport> {
        Arc::clone(&self.placed().report)
    }

    /// What llama.cpp says it has allocated, GPUs in the order of the plan; what compute buffers grew by in the warm-up
    /// included. The buffer of logits is not in it, and a mapped file counts with its span.
    pub fn allocated(&self) -> Footprints {
        let report = self.report();
        let gpus = report.gpus.iter().map(|gpu| gpu.allocated.unwrap_or_default());
        Footprints::new(gpus.collect(), report.host.allocated)
    }

    /// The LoRA adapters beside it, in the order in which they were added.
    pub fn adapters(&self) -> &[Adapter] {
        &self.inner.recipe.adapters.lora
    }

    /// The scale of each adapter in a text that asks for these, or for none of its own.
    pub(crate) fn scales(&self, asked: Option<&[(String, f32)]>) -> Result<super::Scales, Error> {
        Ok(self.inner.recipe.adapters.scales(asked)?)
    }

    /// The model underneath, for what this crate does not cover. Contexts made of it take memory beyond the plan, and
    /// while it is held the model cannot be re-placed.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`] after a re-placement that failed; [`Error::Worker`] for a model in a worker process.
    pub fn native(&self) -> Result<llama_sys::Model, Error> {
        self.with_native(Clone::clone)
    }

    /// Reads the model underneath, which is not re-placed meanwhile.
    pub(crate) fn with_native<T>(&self, read: impl FnOnce(&llama_sys::Model) -> T) -> Result<T, Error> {
        if self.is_elsewhere() {
            return Err(worker::Error::Elsewhere { what: "the model underneath" }.into());
        }
        let _in_place = self.slot().in_place();
        Ok(read(&self.slot().native().ok_or(Error::NotLoaded)?))
    }

    /// Reads the vocabulary, likewise. With a model in a worker, which has loaded it before, it is read from the file
    /// into this process when it is first asked for, without any GPU.
    pub(crate) fn with_vocab<T>(&self, read: impl FnOnce(&Vocab) -> T) -> Result<T, Error> {
        if !self.is_elsewhere() {
            return self.with_native(|native| read(&native.vocab()));
        }
        if let Some(vocab) = self.inner.vocab.get() {
            return Ok(read(vocab));
        }
        let params = ModelParams { vocab_only: true, devices: Some(Vec::new()), ..ModelParams::default() };
        let vocab = native::load(self.header()?, params)?.vocab();
        Ok(read(self.inner.vocab.get_or_init(|| vocab)))
    }

    pub(crate) fn placed(&self) -> Arc<Placed> {
        Arc::clone(&self.inner.placed.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How it was loaded, and is loaded again.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.inner.recipe
    }

    /// What others ask of whoever generates.
    pub(crate) fn requests(&self) -> &Requested {
        &self.inner.requested
    }

    /// Whether both are handles of one load.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn set_placed(&self, placed: Arc<Placed>) {
        *self.inner.placed.write().unwrap_or_else(PoisonError::into_inner) = placed;
        self.pulse().count_placement();
    }

    /// Shows the speed that real use has shown instead of the predicted one, which it has refuted.
    pub(crate) fn refute(&self, refuted: Refuted) {
        let mut placed = self.inner.placed.write().unwrap_or_else(PoisonError::into_inner);
        let mut plan = Plan::clone(&placed.plan);
        let Some(speed) = plan.speed.take() else { return };
        let predicted = speed.tokens_per_second;
        let speed = speed.corrected(refuted.generation, refuted.prompt);
        tracing::info!("{:.1} tokens per second instead of the predicted {predicted:.1}", speed.tokens_per_second);
        plan.speed = Some(speed);
        *placed = Arc::new(Placed { plan: Arc::new(plan), ..Placed::clone(&placed) });
    }

    /// Bytes of the host that checkpoints may take: as many as were asked for, and no more than the plan has left of
    /// it.
    pub(crate) fn checkpoints(&self) -> u64 {
        let plan = self.placement();
        let shared: u64 = plan.gpus().map(|it| it.of_host).sum();
        let left = plan.host().map_or(0, |host| host.budget.saturating_sub(host.footprint.total()));
        self.inner.recipe.checkpoints.min(left.saturating_sub(shared))
    }

    /// The one context, lent to whoever generates.
    pub(crate) fn slot(&self) -> &ContextSlot {
        &self.inner.slot
    }

    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.inner.pulse
    }

    /// What is made of the model once, when it is first asked for, and stays with it wherever it is placed: it must
    /// hold nothing of the loaded model. One type of value is kept; others are made each time.
    #[cfg_attr(not(feature = "constraints"), expect(dead_code, reason = "constraints keep their vocabulary"))]
    pub(crate) fn kept<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Any + Clone + Send + Sync,
    {
        if let Some(kept) = self.inner.kept.get().and_then(|it| it.downcast_ref::<T>()) {
            return Ok(kept.clone());
        }
        let made = make()?;
        // Another thread may have been first: its is as good.
        let _ = self.inner.kept.set(Box::new(made.clone()));
        Ok(made)
    }

    pub(crate) fn downgrade(&self) -> WeakModel {
        WeakModel(Arc::downgrade(&self.inner))
    }
}

impl Recipe {
    /// Loads the model in this process.
    pub(crate) fn load(self, progress: Progress) -> Result<Model, Error> {
        let loaded = Contract::new(&self, self.read()?, First::Fresh, progress)?.load()?;
        let Loaded { native, context, drafts, placed, meter } = loaded;
        let slot = ContextSlot::new(native, context, drafts);
        let model = Model::new(self, slot, None, Arc::new(placed));
        model.pulse().paced_by(&model.report().threads);
        model.pulse().metered_by(meter);
        Ok(model)
    }

    /// The plan that a load would follow.
    pub(crate) fn only_plan(mut self) -> Result<Plan, Error> {
        // A plan takes no memory, so it need not wait for others.
        self.leases = Leases::none();
        let (header, profile) = self.read()?;
        check_vocabulary(&header)?;
        let mut contract = Contract::new(&self, (header, profile), First::Fresh, Progress::default())?;
        let (prepared, _lease) = contract.prepare()?;
        Ok(prepared.plan)
    }

    /// Loads it in a worker.
    pub(super) fn load_in(self, process: WorkerProcess, progress: &Progress) -> Result<Model, Error> {
        // What can be refused without a worker is, with its own type.
        self.profile(&Header::open(&self.path)?)?;
        let (remote, placed) = Remote::start(&self, process, progress)?;
        Ok(Model::new(self, ContextSlot::empty(), Some(remote), placed))
    }
}
