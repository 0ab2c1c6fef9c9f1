//! A loaded model: the handle for everything else, and the load that creates it.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use llama_sys::{ModelParams, Vocab};

use super::builder::ModelBuilder;
use super::carry_out::Loaded;
use super::check::check_vocabulary;
use super::in_use::Refuted;
use super::lease::Leases;
use super::load_loop::{FirstAttempt, LoadLoop};
use super::options::LoadOptions;
use super::placed::Placed;
use super::progress::Progress;
use super::remote::Remote;
use super::replace::Requested;
use super::report::LoadReport;
use super::slot::ContextSlot;
use super::{Adapter, Error, GenerationCounters, native};
use crate::gguf::{self, Header};
use crate::machine::Machine;
use crate::memory::Footprints;
use crate::plan::Plan;
use crate::worker::{self, WorkerProcess};

/// A loaded model. Cloning is cheap. The memory is freed when the last clone and the last stream are dropped.
#[derive(Debug, Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: LoadOptions,
    slot: ContextSlot,
    /// The worker that holds the model; the slot is then empty.
    remote: Option<Remote>,
    placed: RwLock<Arc<Placed>>,
    requested: Requested,
    counters: Arc<GenerationCounters>,
    /// Read on first use.
    header: OnceLock<Header>,
    /// The vocabulary of a model in a worker, read on first use.
    vocab: OnceLock<Vocab>,
    /// A value that a later room keeps with the model.
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
    /// Loads a GGUF file (the first part of a split one) with as many layers on the GPU as are safe: plans, loads,
    /// warms up, and compares the memory taken with the plan. See [`ModelBuilder::load`]. With the feature `hub`, also
    /// takes a name of the form `hf:OWNER/NAME[:QUANT][@REVISION]` if the cache has it.
    ///
    /// # Errors
    ///
    /// As [`ModelBuilder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).load()
    }

    /// Configures a load: context, KV type, headroom, layers, progress.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(path.as_ref())
    }

    fn new(options: LoadOptions, slot: ContextSlot, remote: Option<Remote>, placed: Arc<Placed>) -> Self {
        Self {
            inner: Arc::new(Inner {
                options,
                slot,
                remote,
                placed: RwLock::new(placed),
                requested: Requested::default(),
                counters: Arc::default(),
                header: OnceLock::new(),
                vocab: OnceLock::new(),
                kept: OnceLock::new(),
            }),
        }
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        self.inner.remote.as_ref()
    }

    pub(crate) fn is_in_worker(&self) -> bool {
        self.remote().is_some()
    }

    /// The process id of the model's worker; `None` for a model in this process.
    pub fn worker_id(&self) -> Option<u32> {
        self.remote()?.id()
    }

    /// How the model's worker processes died so far, the oldest first; at most the last 16. Empty for a model in this
    /// process. With [`OnDeath::Resume`](crate::OnDeath::Resume) texts go on in another worker, so that only this list
    /// and [`Statistics::worker_deaths`](crate::generate::Statistics::worker_deaths) show that one died.
    pub fn worker_deaths(&self) -> Vec<worker::Error> {
        self.remote().map(Remote::deaths).unwrap_or_default()
    }

    /// The plan that the model was loaded by: the place of every byte, and the reasons. Its `Display` is a table.
    pub fn placement(&self) -> Arc<Plan> {
        Arc::clone(&self.placed().plan)
    }

    /// The header of the model's file, read on first use.
    ///
    /// # Errors
    ///
    /// The file can no longer be read.
    pub fn header(&self) -> Result<&Header, gguf::Error> {
        if let Some(header) = self.inner.header.get() {
            return Ok(header);
        }
        let header = Header::open(&self.inner.options.path)?;
        Ok(self.inner.header.get_or_init(|| header))
    }

    /// The machine as the plan saw it.
    pub fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.placed().machine)
    }

    /// The report of the load: the plan beside llama.cpp's account and the devices' own, the warm-up, and every
    /// attempt. Its `Display` describes the load.
    pub fn report(&self) -> Arc<LoadReport> {
        Arc::clone(&self.placed().report)
    }

    /// Bytes that llama.cpp reports as allocated, with GPUs in the order of the plan. They include the growth of
    /// compute buffers during the warm-up. They exclude the buffer of logits, and count a mapped file with its span.
    pub fn allocated(&self) -> Footprints {
        let report = self.report();
        let gpus = report.gpus.iter().map(|gpu| gpu.allocated.unwrap_or_default());
        Footprints::new(gpus.collect(), report.host.allocated)
    }

    /// The LoRA adapters of the model, in the order in which they were added.
    pub fn adapters(&self) -> &[Adapter] {
        &self.inner.options.adapters.lora
    }

    /// The scale of each adapter in a text with this request.
    pub(crate) fn scales(&self, asked: Option<&[(String, f32)]>) -> Result<super::Scales, Error> {
        Ok(self.inner.options.adapters.scales(asked)?)
    }

    /// The native model, for features that this crate does not cover. Contexts created from it take memory beyond the
    /// plan. The model cannot be re-placed while the handle is held.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`] after a re-placement that failed; [`Error::Worker`] for a model in a worker process.
    pub fn native(&self) -> Result<llama_sys::Model, Error> {
        self.with_native(Clone::clone)
    }

    /// Gives `read` the native model, which is not re-placed during the call.
    pub(crate) fn with_native<T>(&self, read: impl FnOnce(&llama_sys::Model) -> T) -> Result<T, Error> {
        if self.is_in_worker() {
            return Err(worker::Error::Elsewhere { what: "the native model" }.into());
        }
        let _in_place = self.slot().in_place();
        Ok(read(&self.slot().native().ok_or(Error::NotLoaded)?))
    }

    /// Gives `read` the vocabulary. For a model in a worker, the vocabulary is read from the file into this process on
    /// first use, without any GPU.
    pub(crate) fn with_vocab<T>(&self, read: impl FnOnce(&Vocab) -> T) -> Result<T, Error> {
        if !self.is_in_worker() {
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

    /// The options that the model was loaded with.
    pub(super) fn options(&self) -> &LoadOptions {
        &self.inner.options
    }

    /// Requests for the thread that generates.
    pub(crate) fn requests(&self) -> &Requested {
        &self.inner.requested
    }

    /// Whether both are handles of one load.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn set_placed(&self, placed: Arc<Placed>) {
        *self.inner.placed.write().unwrap_or_else(PoisonError::into_inner) = placed;
        self.counters().count_placement();
    }

    /// Replaces the predicted speed by the measured one after real use has refuted it.
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

    /// Maximum bytes of host memory for checkpoints: the requested limit, or the smaller rest that the plan leaves.
    pub(crate) fn checkpoints(&self) -> u64 {
        let plan = self.placement();
        let shared: u64 = plan.gpus().map(|it| it.of_host).sum();
        let left = plan.host().map_or(0, |host| host.budget.saturating_sub(host.footprint.total()));
        self.inner.options.checkpoints.min(left.saturating_sub(shared))
    }

    /// The slot that lends out the model's one context.
    pub(crate) fn slot(&self) -> &ContextSlot {
        &self.inner.slot
    }

    pub(crate) fn counters(&self) -> &Arc<GenerationCounters> {
        &self.inner.counters
    }

    /// A value that is computed once per model and kept across re-placements, so it must not hold the loaded model.
    /// Only one type of value is kept; any other is computed each time.
    #[cfg_attr(not(feature = "constraints"), expect(dead_code, reason = "constraints keep their vocabulary"))]
    pub(crate) fn kept<T, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Any + Clone + Send + Sync,
    {
        if let Some(kept) = self.inner.kept.get().and_then(|it| it.downcast_ref::<T>()) {
            return Ok(kept.clone());
        }
        let made = make()?;
        // Another thread may have computed it first.
        let _ = self.inner.kept.set(Box::new(made.clone()));
        Ok(made)
    }

    pub(crate) fn downgrade(&self) -> WeakModel {
        WeakModel(Arc::downgrade(&self.inner))
    }
}

impl LoadOptions {
    /// Loads the model in this process.
    pub(crate) fn load(self, progress: Progress) -> Result<Model, Error> {
        let loaded = LoadLoop::new(&self, self.read()?, FirstAttempt::Fresh, progress)?.load()?;
        let Loaded { native, context, drafts, placed, meter } = loaded;
        let slot = ContextSlot::new(native, context, drafts);
        let model = Model::new(self, slot, None, Arc::new(placed));
        model.counters().paced_by(&model.report().threads);
        model.counters().metered_by(meter);
        Ok(model)
    }

    /// Makes the plan that a load would follow.
    pub(crate) fn only_plan(mut self) -> Result<Plan, Error> {
        // A plan takes no memory, so it needs no lease.
        self.leases = Leases::none();
        let (header, profile) = self.read()?;
        check_vocabulary(&header)?;
        let mut attempts = LoadLoop::new(&self, (header, profile), FirstAttempt::Fresh, Progress::default())?;
        let (prepared, _lease) = attempts.prepare()?;
        Ok(prepared.plan)
    }

    /// Loads the model in a worker.
    pub(super) fn load_in(self, process: WorkerProcess, progress: &Progress) -> Result<Model, Error> {
        // Errors that need no worker keep their type.
        self.profile(&Header::open(&self.path)?)?;
        let (remote, placed) = Remote::start(&self, process, progress)?;
        Ok(Model::new(self, ContextSlot::empty(), Some(remote), placed))
    }
}
