//! A loaded model: the handle through which it is used, and the loads that create the handle.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use llama_sys::{Context, ModelParams, Vocab};

use super::check::check_vocabulary;
use super::depth::DepthMove;
use super::in_use::Refuted;
use super::leases::Leases;
use super::load_loop::{FirstAttempt, LoadLoop};
use super::loaded::Loaded;
use super::media::{MediaEncoder, MediaTable};
use super::mmproj::Modalities;
use super::options::LoadOptions;
use super::placed::Placed;
use super::progress::Progress;
use super::remote::Remote;
use super::report::LoadReport;
use super::requested::Requested;
use super::slot::{Contents, ContextSlot, Purpose};
#[cfg(feature = "constraints")]
use super::vocabulary::Vocabulary;
use super::{Adapter, Error, ExpertUses, GenerationCounters, native};
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
    process: Process,
    /// Locked for reading while the native model is in use or its context is being lent, and for writing while the
    /// model is re-placed.
    in_place: RwLock<()>,
    placed: RwLock<Arc<Placed>>,
    requested: Arc<Requested>,
    counters: Arc<GenerationCounters>,
    /// The pictures and sounds that texts have contained.
    media: MediaTable,
    /// The header of the model's file, read on first use.
    header: OnceLock<Header>,
    /// What the projector encodes, read on first use.
    modalities: OnceLock<Modalities>,
    /// The vocabulary of a model in a worker, read on first use.
    vocab: OnceLock<Vocab>,
    /// The vocabulary in the form for constraints, read on first use. This vocabulary does not refer to the loaded
    /// model, so it stays when the model is re-placed.
    #[cfg(feature = "constraints")]
    vocabulary: OnceLock<Arc<Vocabulary>>,
}

/// The process in which the native model is.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of each model")]
enum Process {
    /// The native model is in this process. The slot lends out the model's one context.
    Own(ContextSlot),
    /// The native model is in a worker process.
    Worker(Remote),
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
    fn new(options: LoadOptions, process: Process, placed: Arc<Placed>) -> Self {
        Self {
            inner: Arc::new(Inner {
                options,
                process,
                in_place: RwLock::default(),
                placed: RwLock::new(placed),
                requested: Arc::default(),
                counters: Arc::default(),
                media: MediaTable::default(),
                header: OnceLock::new(),
                modalities: OnceLock::new(),
                vocab: OnceLock::new(),
                #[cfg(feature = "constraints")]
                vocabulary: OnceLock::new(),
            }),
        }
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        match &self.inner.process {
            Process::Own(_) => None,
            Process::Worker(remote) => Some(remote),
        }
    }

    pub(crate) fn is_in_worker(&self) -> bool {
        self.remote().is_some()
    }

    /// The process id of the model's worker; `None` for a model in this process.
    pub fn worker_id(&self) -> Option<u32> {
        self.remote()?.id()
    }

    /// The errors with which the model's worker processes have died so far, the oldest first; at most the last 16.
    /// Empty for a model in this process. With [`OnDeath::Resume`](crate::OnDeath::Resume), texts continue in another
    /// worker, so a death appears only in this list and in
    /// [`Statistics::worker_deaths`](crate::generate::Statistics::worker_deaths).
    pub fn worker_deaths(&self) -> Vec<worker::Error> {
        self.remote().map(Remote::deaths).unwrap_or_default()
    }

    /// The plan by which the model was loaded: where every byte is, and why. Its `Display` is a table.
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

    /// The machine for which the model's plan was made.
    pub fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.placed().machine)
    }

    /// The report of the load: the planned bytes, the bytes that llama.cpp and the devices count, the warm-up, and
    /// every attempt. Its `Display` describes the load.
    pub fn report(&self) -> Arc<LoadReport> {
        Arc::clone(&self.placed().report)
    }

    /// What a person should know of this load: the notes of the [plan](Self::placement) without the first one, which is
    /// the reason for the placement, and the notes of the [report](Self::report). They say, for example, which settings
    /// were lowered.
    pub fn notes(&self) -> Vec<String> {
        let placed = self.placed();
        placed.plan.notes.iter().skip(1).chain(&placed.report.notes).cloned().collect()
    }

    /// Bytes that llama.cpp reports as allocated, with the GPUs in the order of the plan. The numbers include the
    /// growth of compute buffers during the warm-up, but not the buffer of logits. Of a mapped file, the data of the
    /// weights is counted.
    pub fn allocated(&self) -> Footprints {
        let report = self.report();
        let gpus = report.gpus.iter().map(|gpu| gpu.allocated.unwrap_or_default());
        Footprints::new(gpus.collect(), report.host.allocated)
    }

    /// How often generated tokens used an expert that was in the model's cache of experts, over all placements and
    /// texts; `None` before the first use, and for a model in a worker process. If the model is in a worker process,
    /// the [`Statistics`](crate::generate::Statistics) of its texts contain these numbers.
    pub fn expert_uses(&self) -> Option<ExpertUses> {
        Some(self.counters().expert_uses()).filter(|uses| uses.total() > 0)
    }

    /// The LoRA adapters of the model, in the order in which they were added.
    pub fn adapters(&self) -> &[Adapter] {
        &self.inner.options.adapters.lora
    }

    /// The scale of each adapter in a text whose request asks for these adapters.
    pub(crate) fn scales(&self, asked: Option<&[(String, f32)]>) -> Result<super::Scales, Error> {
        Ok(self.inner.options.adapters.scales(asked)?)
    }

    /// The native model, for features that this crate does not cover. Contexts that you create from the native model
    /// take memory beyond the plan. The model cannot be re-placed while the handle is held.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`] after a re-placement that failed; [`Error::Worker`] for a model in a worker process.
    pub fn native(&self) -> Result<llama_sys::Model, Error> {
        self.with_native(Clone::clone)
    }

    /// Calls `read` with the native model. The model cannot be re-placed during the call.
    pub(crate) fn with_native<T>(&self, read: impl FnOnce(&llama_sys::Model) -> T) -> Result<T, Error> {
        if self.is_in_worker() {
            return Err(worker::Error::Elsewhere { what: "the native model" }.into());
        }
        let _in_place = self.in_place();
        Ok(read(&self.slot()?.native().ok_or(Error::NotLoaded)?))
    }

    /// Calls `read` with the vocabulary. The model cannot be re-placed during the call, so `read` must not call other
    /// methods of the model. For a model in a worker, this process reads the vocabulary from the file on first use,
    /// without any GPU.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`] after a re-placement that failed; the errors of reading the file of a model in a worker.
    pub fn with_vocab<T>(&self, read: impl FnOnce(&Vocab) -> T) -> Result<T, Error> {
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

    /// The requests to re-place the model. The thread that generates carries them out.
    pub(crate) fn requests(&self) -> &Arc<Requested> {
        &self.inner.requested
    }

    /// Whether a text, an engine or an embedder has the model's context, or its worker.
    pub(super) fn is_lent(&self) -> bool {
        match &self.inner.process {
            Process::Own(slot) => slot.is_lent(),
            Process::Worker(remote) => remote.is_lent(),
        }
    }

    /// Whether both handles belong to the same loaded model.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn set_placed(&self, placed: Arc<Placed>) {
        *self.inner.placed.write().unwrap_or_else(PoisonError::into_inner) = placed;
        self.counters().count_placement();
    }

    /// Replaces the predicted speed by the measured speed after real use has refuted it.
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

    /// Adds the move to the report of its load.
    pub(crate) fn has_moved(&self, moved: DepthMove) {
        let placed = self.placed();
        let report = LoadReport { moved: Some(moved), ..LoadReport::clone(&placed.report) };
        self.set_placed(Arc::new(Placed { report: Arc::new(report), ..Placed::clone(&placed) }));
    }

    /// Whether the model was loaded with a projector ([`ModelBuilder::mmproj`](super::ModelBuilder::mmproj)), so that
    /// prompts may contain images or sound.
    pub fn has_projector(&self) -> bool {
        let options = self.options();
        options.mmproj.is_some() && self.placement().companions.iter().any(|companion| options.is_loaded(companion))
    }

    /// What prompts may contain besides text: what the model's [projector](Self::has_projector) encodes, as its file
    /// states.
    pub fn modalities(&self) -> Modalities {
        let of_file = || self.options().mmproj.as_ref().and_then(|file| Modalities::of(file).ok()).unwrap_or_default();
        if self.has_projector() { *self.inner.modalities.get_or_init(of_file) } else { Modalities::default() }
    }

    /// The projector, and the media that texts have contained; `None` without a projector, and for a model in a worker.
    pub(crate) fn media(&self) -> Option<(Arc<MediaEncoder>, &MediaTable)> {
        Some((self.slot().ok()?.media()?, &self.inner.media))
    }

    /// Maximum bytes of host memory for encoded images and sounds: the requested limit, or the memory that the plan
    /// leaves if that is less.
    pub(crate) fn media_cache(&self) -> u64 {
        self.inner.options.media_cache.min(self.left_of_host())
    }

    /// Maximum bytes of host memory for checkpoints: the requested limit, or the memory that the plan leaves if that is
    /// less.
    pub(crate) fn checkpoints(&self) -> u64 {
        self.inner.options.checkpoints.min(self.left_of_host())
    }

    /// Bytes of host memory that the plan may use but does not need.
    pub(super) fn left_of_host(&self) -> u64 {
        let plan = self.placement();
        let shared: u64 = plan.gpus().map(|gpu| gpu.of_host).sum();
        let left = plan.host().map_or(0, |host| host.budget.saturating_sub(host.footprint.total()));
        left.saturating_sub(shared)
    }

    /// The slot that lends out the model's one context.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`] for a model in a worker, because the worker has the context.
    pub(crate) fn slot(&self) -> Result<&ContextSlot, Error> {
        match &self.inner.process {
            Process::Own(slot) => Ok(slot),
            Process::Worker(_) => Err(Error::NotLoaded),
        }
    }

    /// Lends the context with its content for this purpose. Waits first until a running re-placement has ended. `None`
    /// if the context is already lent. If the context has failed, it is created again.
    pub(crate) fn take_context(&self, purpose: Purpose) -> Result<Option<(Context, Contents)>, Error> {
        let _in_place = self.in_place();
        self.slot()?.take_for(purpose)
    }

    /// Waits for a running re-placement, and keeps the model in place while the guard lives. A thread must not hold two
    /// such guards at once.
    pub(super) fn in_place(&self) -> RwLockReadGuard<'_, ()> {
        self.inner.in_place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks all other users of the native model and its context while the guard lives.
    pub(crate) fn replacing(&self) -> RwLockWriteGuard<'_, ()> {
        self.inner.in_place.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counters(&self) -> &Arc<GenerationCounters> {
        &self.inner.counters
    }

    /// The vocabulary in the form for constraints. `read` reads it on first use.
    #[cfg(feature = "constraints")]
    pub(crate) fn vocabulary<E>(
        &self,
        read: impl FnOnce() -> Result<Arc<Vocabulary>, E>,
    ) -> Result<Arc<Vocabulary>, E> {
        if let Some(vocabulary) = self.inner.vocabulary.get() {
            return Ok(Arc::clone(vocabulary));
        }
        let vocabulary = read()?;
        // Another thread may have read it first.
        Ok(Arc::clone(self.inner.vocabulary.get_or_init(|| vocabulary)))
    }

    pub(crate) fn downgrade(&self) -> WeakModel {
        WeakModel(Arc::downgrade(&self.inner))
    }
}

impl LoadOptions {
    /// Loads the model in this process.
    pub(crate) fn load(self, progress: Progress) -> Result<Model, Error> {
        let loaded = LoadLoop::new(&self, self.read()?, FirstAttempt::Fresh, progress)?.load()?;
        let Loaded { native, context, drafts, placed, meter, experts, times } = loaded;
        let said = native.said.clone();
        let slot = ContextSlot::new(native, context, drafts);
        let model = Model::new(self, Process::Own(slot), Arc::new(placed));
        model.counters().said_in(said.as_ref());
        // From here on only the slot keeps the notice (`said`) alive; the counters refer to it weakly.
        drop(said);
        let report = model.report();
        model.counters().paced_by(&report.threads);
        model.counters().placed_by(&report.plan, report.time, times);
        model.counters().metered_by(meter);
        model.counters().experts_metered_by(experts);
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
        Ok(Model::new(self, Process::Worker(remote), placed))
    }
}
